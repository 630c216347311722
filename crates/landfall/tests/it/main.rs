//! Tests of the whole program: they start the binary and use it with real clients. `tidy` reads the sources instead.
//!
//! `harness` and `process` start it; `kernel_state` checks that it leaves nothing in the kernel.

mod harness;
mod kernel_state;
mod process;

mod backup;
mod clients;
mod disk;
mod docs;
mod drain;
mod durability;
mod endings;
mod examples;
mod first_steps;
mod history;
mod hostile;
mod identity;
mod images;
mod join;
mod pods;
mod servers;
mod several_nodes;
mod siege;
mod strangers;
mod tidy;
