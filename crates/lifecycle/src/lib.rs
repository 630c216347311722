#![doc = include_str!("../README.md")]

pub mod containers;
pub mod observed;

pub mod bringup;
pub mod probe;
pub mod status;
pub mod termination;
pub mod timeline;

pub mod backoff;
pub mod deletion;
pub mod drain;
pub mod placement;
pub mod resize;
pub mod resources;

#[cfg(test)]
mod fixture;

pub use bringup::{Plan, plan};
pub use containers::Kind;
pub use observed::Observed;
pub use termination::{Moment, Termination};
