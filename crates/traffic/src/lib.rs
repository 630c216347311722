#![doc = include_str!("../README.md")]

pub mod policies;
mod watched;

pub use watched::Watched;
