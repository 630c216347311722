//! What types, operations and tags are called in the documents.

use api::kind::{self, Kind};
use serde_json::{Value, json};

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Gvk {
    group: String,
    version: String,
    kind: String,
}

impl Gvk {
    pub(super) fn new(group: &str, version: &str, kind: &str) -> Self {
        Gvk { group: group.into(), version: version.into(), kind: kind.into() }
    }

    pub(super) fn json(&self) -> Value {
        json!({"group": self.group, "version": self.version, "kind": self.kind})
    }
}

/// A type of the machinery: `io.k8s.apimachinery.pkg.apis.meta.v1.Status`.
pub(super) fn meta(kind: &str) -> String {
    format!("io.k8s.apimachinery.pkg.apis.meta.v1.{kind}")
}

/// A kind's type. Custom kinds are named after their group, from the back.
pub(super) fn definition(kind: &Kind) -> String {
    named_like(kind, &kind.kind)
}

pub(super) fn list_definition(kind: &Kind) -> String {
    named_like(kind, &kind.list_kind())
}

fn named_like(kind: &Kind, name: &str) -> String {
    if kind.custom.is_none() {
        return kind::type_name(&kind.group, &kind.version, name);
    }
    let reversed: Vec<&str> = kind.group.rsplit('.').collect();
    format!("{}.{}.{name}", reversed.join("."), kind.version)
}

/// `/api/v1` or `/apis/apps/v1`
pub(super) fn root(group: &str, version: &str) -> String {
    if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") }
}

/// `CoreV1`, `RbacAuthorizationV1`, as in the names of operations.
pub(super) fn group_version_words(group: &str, version: &str) -> String {
    format!("{}{}", group_words(group), super::operations::capital(version))
}

/// `core_v1`, `rbacAuthorization_v1`
pub(super) fn tag(group: &str, version: &str) -> String {
    let words = group_words(group);
    let mut letters = words.chars();
    let first = letters.next().map(|first| first.to_ascii_lowercase());
    let words: String = first.into_iter().chain(letters).collect();
    format!("{words}_{version}")
}

fn group_words(group: &str) -> String {
    if group.is_empty() {
        return "Core".into();
    }
    let group = group.strip_suffix(".k8s.io").unwrap_or(group);
    group.split(['.', '-']).map(super::operations::capital).collect()
}
