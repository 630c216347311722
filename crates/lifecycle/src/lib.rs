//! How pods live and die: decisions only, no I/O, no clock, no async. See README.md.
//!
//! Time is an argument, effects are return values. The server marks objects by what is decided
//! here; the node will perform by it.

pub mod deletion;
pub mod placement;
