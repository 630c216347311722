//! Tests of the whole: the binary is started and used with real clients. `tidy` reads the sources instead.
//!
//! `harness` and `process` start it, `ground` looks at what it leaves in the kernel, `registry` is where images
//! come from.

mod ground;
mod harness;
mod process;
#[path = "../../../runtime/tests/it/registry.rs"]
mod registry;

mod clients;
mod disk;
mod durability;
mod endings;
mod hostile;
mod identity;
mod images;
mod join;
mod pods;
mod servers;
mod siege;
mod strangers;
mod tidy;
