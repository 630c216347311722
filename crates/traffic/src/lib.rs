#![doc = include_str!("../README.md")]

mod watched;

pub use watched::Watched;
