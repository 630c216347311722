#![doc = include_str!("../README.md")]

mod frame;
mod headers;

pub mod client;
pub mod server;

pub use frame::Frame;
