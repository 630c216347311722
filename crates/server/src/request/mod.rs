//! A request, from its URL and headers to a [`call::Call`] that the verbs work on.
//!
//!     target    path and query: which resource, namespace, name, verb
//!     deadline  how long the request may take
//!     negotiate Accept and Content-Type
//!     decode    body to object
//!     call      all of the above, with the authenticated user
//!     summary   what the audit log and the metrics record

pub(crate) mod call;
pub(crate) mod deadline;
pub(crate) mod decode;
pub(crate) mod negotiate;
pub(crate) mod summary;
mod target;

pub(crate) use target::{Query, Route, Target, verb};
