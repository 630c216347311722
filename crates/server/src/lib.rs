//! (being written)

pub mod discovery;
