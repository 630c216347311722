//! Label and field selectors: which objects a request means.
//!
//! Parsing, matching and printing follow upstream to the letter, error texts included: clients
//! show them to people. Which fields a kind can be selected by is in `rules`.

mod field;
mod label;

pub use field::{FieldRequirement, FieldSelector};
pub use label::{LabelRequirement, LabelSelector, Operator};
