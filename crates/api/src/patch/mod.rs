//! The three kinds of patches that do not depend on field ownership.
//!
//! Each takes the current object and returns the patched one, or an error. The result is not checked here:
//! the server decodes, defaults and validates it like any update. Server-side apply, the fourth kind of
//! patch, is in [`crate::apply`].

mod json;
mod merge;
mod strategic;

pub use json::json;
pub use merge::{merge, merge_into};
pub(crate) use strategic::go_format;
pub use strategic::strategic;

use crate::status::{Cause, Details, Status};

/// How deep objects and patches may be nested. Decoding JSON allows less, so this bounds only patches
/// that create a deeper object by themselves.
pub(crate) const MAX_DEPTH: usize = 256;

/// Why a patch was rejected: one variant per error that clients distinguish.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// 400: not a patch document.
    #[error("{0}")]
    Malformed(String),
    /// 413: more operations than a JSON patch may hold.
    #[error(
        "Request entity too large: The allowed maximum operations in a JSON patch is {max}, got {got}"
    )]
    TooManyOperations { max: usize, got: usize },
    /// 422: a valid patch that cannot be applied to this object.
    #[error("{0}")]
    NotApplicable(String),
    /// 500: a strategic merge patch that cannot be merged. Upstream answers 500 as well, although the
    /// client's patch is wrong.
    #[error("{0}")]
    Unmergeable(String),
}

impl PatchError {
    pub fn code(&self) -> u16 {
        match self {
            PatchError::Malformed(_) => 400,
            PatchError::TooManyOperations { .. } => 413,
            PatchError::NotApplicable(_) => 422,
            PatchError::Unmergeable(_) => 500,
        }
    }

    /// The answer to the client. Upstream does not say why a patch cannot be applied; we add it as a cause.
    pub fn status(&self) -> Status {
        let message = self.to_string();
        match self {
            PatchError::Malformed(_) => Status::failure(400, "BadRequest", message),
            PatchError::TooManyOperations { .. } => {
                Status::failure(413, "RequestEntityTooLarge", message)
            }
            PatchError::NotApplicable(why) => Status::failure(
                422,
                "Invalid",
                "the server rejected our request due to an error in our request",
            )
            .with_details(Details {
                causes: vec![Cause {
                    reason: "UnexpectedServerResponse".into(),
                    message: why.clone(),
                    ..Cause::default()
                }],
                ..Details::default()
            }),
            // Upstream sets no reason for errors that are not API errors.
            PatchError::Unmergeable(_) => Status::failure(500, "", message),
        }
    }
}

/// How deep a value is nested: 1 for a scalar, 2 for an object of scalars.
pub(crate) fn depth(value: &serde_json::Value) -> usize {
    use serde_json::Value;
    let mut deepest = 0;
    let mut left = vec![(value, 1)];
    while let Some((value, depth)) = left.pop() {
        deepest = deepest.max(depth);
        match value {
            Value::Array(list) => left.extend(list.iter().map(|item| (item, depth + 1))),
            Value::Object(map) => left.extend(map.values().map(|item| (item, depth + 1))),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    deepest
}
