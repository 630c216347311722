//! May they: role-based access control over compiled policies.
//!
//! [`Policy`] is built from the four RBAC kinds whenever one of them changes and answers from
//! memory. Nodes are asked about first (`node`): which objects they need is known by [`Relations`].
//! Not here: who is asking (`authn`), the default roles (`bootstrap`), and what a node may write among
//! the things its role allows in general: that is NodeRestriction, an admission step.

pub mod aggregation;
pub mod escalation;
mod forbidden;
mod node;
mod policy;
mod references;
mod relations;
pub mod reviews;
mod rule;

pub use escalation::{may_write_binding, may_write_role};
pub use forbidden::{forbidden_message, forbidden_status};
pub use policy::Policy;
pub(crate) use relations::Relations;
pub use rule::Rule;

use crate::authn::User;

/// What somebody wants to do: something to a resource, or something to a path.
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
    /// The field selector of a request for several, as it was written.
    pub selector: &'a str,
    /// Of a request that is not about a resource; empty otherwise.
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

/// The answer, and why: the binding that allows it, or what stood in the way of knowing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    pub allowed: bool,
    pub reason: String,
}

#[cfg(test)]
mod tests;
