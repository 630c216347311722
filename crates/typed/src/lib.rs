#![doc = include_str!("../README.md")]

mod codec;
mod kinds;
mod zero;

pub use codec::{Typed, from_value, to_value};

pub use kinds::{LISTED, ListedKind};

/// For [`codec!`].
#[doc(hidden)]
pub use serde_json;
#[doc(hidden)]
pub use zero::decode_with;
