#![doc = include_str!("../README.md")]

pub mod services;
mod watched;

pub use watched::Watched;
