//! Subresources that do more than show or change the object itself.

pub(crate) mod binding;
pub(crate) mod eviction;
pub(crate) mod finalize;
pub(crate) mod scale;
pub(crate) mod token;
