//! What ResourceQuotas count: which resources an object uses, how much of them, and which quotas apply to it
//! (A-157, C-157, C-158). The server checks quotas on admission, a controller recalculates usage.

pub mod scope;
pub mod usage;

use crate::Kind;

/// The kind of a counted object.
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
