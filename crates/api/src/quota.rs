//! What quotas count: which resources an object uses, how much of them, and which quotas it is meant
//! for (A-157, C-157, C-158). The server asks before it lets an object in, a controller counts anew.

pub mod pods;
pub mod scope;
pub mod usage;

use crate::Kind;

/// The kind of a counted object, as quotas know it.
#[derive(Debug, Clone, Copy)]
pub struct Counted<'a> {
    pub group: &'a str,
    pub plural: &'a str,
}

impl Counted<'_> {
    /// `deployments.apps`, `pods`
    fn resource_group(self) -> String {
        match self.group {
            "" => self.plural.to_owned(),
            group => format!("{}.{group}", self.plural),
        }
    }

    fn is_core(self, plural: &str) -> bool {
        self.group.is_empty() && self.plural == plural
    }
}

impl<'a> From<&'a Kind> for Counted<'a> {
    fn from(kind: &'a Kind) -> Self {
        Counted { group: &kind.group, plural: &kind.plural }
    }
}
