#![doc = include_str!("../README.md")]

pub mod dns;
pub mod drain;
pub mod policies;
pub mod routes;
pub mod services;
mod watched;

pub use watched::Watched;
