//! A write, its precondition, and its errors.

use std::sync::Arc;

use crate::{Draft, Error, Object};

/// One change to one key.
pub struct Write {
    pub collection: Arc<str>,
    /// `namespace/name`, or just `name`.
    pub name: String,
    pub expect: Expect,
    pub change: Change,
}

/// The precondition on the key's current revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    Absent,
    Revision(u64),
}

pub enum Change {
    Put(Draft),
    Delete,
}

#[derive(thiserror::Error)]
pub enum WriteError<I> {
    /// The key is not at the expected revision. `current` is stored now.
    #[error("the object has changed")]
    Conflict { current: Option<Arc<Object<I>>> },
    #[error(transparent)]
    Backend(#[from] Error),
}

impl<I> std::fmt::Debug for WriteError<I> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            WriteError::Conflict { current } => {
                let revision = current.as_ref().map(|object| object.revision());
                f.debug_struct("Conflict").field("current", &revision).finish()
            }
            WriteError::Backend(error) => f.debug_tuple("Backend").field(error).finish(),
        }
    }
}
