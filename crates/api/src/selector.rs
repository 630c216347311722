//! Label and field selectors: which objects a request selects.
//!
//! Parsing, matching, printing and error messages follow upstream to the letter: clients show them to
//! users. The selectable fields of each kind are in the crate `rules`.

mod field;
mod label;

pub use field::{FieldRequirement, FieldSelector};
pub use label::{LabelRequirement, LabelSelector, Operator};
