#![doc = include_str!("../README.md")]

pub mod routes;
mod watched;

pub use watched::Watched;
