//! (being written)

pub mod discovery;
pub mod openapi;
