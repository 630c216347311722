//! The typed objects of the API and their JSON, each decoded and encoded by one function. See README.md.

mod codec;
mod kinds;

pub use codec::{Typed, from_value, to_value};

/// For [`codec!`].
#[doc(hidden)]
pub use serde_json;
