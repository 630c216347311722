//! Authorization: may the caller do this?
//!
//! [`Policy`] is built from the four RBAC kinds whenever one of them changes and decides from memory. Requests
//! of nodes are first checked by `node`, which reads from a [`NodeGraph`] which objects a node needs.
//! Not here: who the caller is (`authn`), the default roles (`default_roles`), and the limits on what a node may
//! write (NodeRestriction, an admission plugin of `server`).

pub mod aggregation;
pub mod escalation;
mod forbidden;
mod node;
mod node_graph;
mod policy;
mod references;
pub mod reviews;
mod rule;

pub use escalation::{may_write_binding, may_write_role};
pub use forbidden::{forbidden_message, forbidden_status};
pub use node_graph::{NodeGraph, StoreNodeGraph};
pub use policy::Policy;
pub use references::{MIRROR_ANNOTATION, is_mirror_pod};
pub use rule::Rule;

use crate::authn::User;

/// What the caller wants to do: a verb on a resource, or on a path that is not a resource.
#[derive(Debug, Clone, Copy)]
pub struct Attributes<'a> {
    pub user: &'a User,
    pub verb: &'a str,
    pub group: &'a str,
    pub version: &'a str,
    pub resource: &'a str,
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    /// The field selector of a list, watch or deletecollection, as the client wrote it.
    pub selector: &'a str,
    /// The path of a request that is not about a resource; empty otherwise.
    pub path: &'a str,
}

impl<'a> Attributes<'a> {
    pub fn resource(user: &'a User, verb: &'a str, group: &'a str, resource: &'a str) -> Self {
        Attributes { group, resource, ..Self::path(user, verb, "") }
    }

    pub fn path(user: &'a User, verb: &'a str, path: &'a str) -> Self {
        let none = "";
        Attributes {
            user,
            verb,
            path,
            group: none,
            version: none,
            resource: none,
            subresource: none,
            namespace: none,
            name: none,
            selector: none,
        }
    }

    pub fn is_resource(&self) -> bool {
        self.path.is_empty()
    }
}

/// Whether it is allowed, and why: the binding that allows it, or errors that occurred.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    pub allowed: bool,
    pub reason: String,
}

#[cfg(test)]
mod tests;
