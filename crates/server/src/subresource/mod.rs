//! Subresources that do more than return or change the object.

pub(crate) mod backend;
pub(crate) mod binding;
pub(crate) mod eviction;
pub(crate) mod finalize;
mod links;
pub(crate) mod log;
pub(crate) mod node;
pub(crate) mod proxy;
pub(crate) mod scale;
mod service_endpoint;
pub(crate) mod stream;
pub(crate) mod token;
