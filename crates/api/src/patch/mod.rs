//! The three patch documents that are computed without asking who owns what.
//!
//! Each takes the object as it is and answers the object as it should be, or why not. What a
//! patch brings in is not checked here: the result is decoded, defaulted and validated like any
//! update. Server-side apply, the fourth kind of patch, is in [`crate::apply`].

mod json;
mod merge;
mod strategic;

pub use json::json;
pub use merge::merge;
pub(crate) use strategic::go_format;
pub use strategic::strategic;

use crate::status::{Cause, Details, Status};

/// How deep objects and patches may be nested. Decoding JSON allows less, so only a patch that
/// builds its own depth meets this.
pub(crate) const MAX_DEPTH: usize = 256;

/// Why a patch was refused: one variant per answer that clients tell apart.
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
    /// 422: a proper patch that does not fit this object.
    #[error("{0}")]
    NotApplicable(String),
    /// 500: a strategic merge that cannot be carried out. Upstream answers 500 too, although it
    /// is the client's patch that is wrong.
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

    /// What the client is told. Upstream hides why a patch does not fit; it is kept as a cause.
    pub fn status(&self) -> Status {
        let said = self.to_string();
        match self {
            PatchError::Malformed(_) => Status::failure(400, "BadRequest", said),
            PatchError::TooManyOperations { .. } => {
                Status::failure(413, "RequestEntityTooLarge", said)
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
            // Upstream gives no reason for errors it did not foresee.
            PatchError::Unmergeable(_) => Status::failure(500, "", said),
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
