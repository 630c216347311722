#![doc = include_str!("../README.md")]

pub mod dns;
mod watched;

pub use watched::Watched;
