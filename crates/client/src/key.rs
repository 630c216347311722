//! The key of an object among those of its kind: namespace and name.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::fmt;
use std::sync::Arc;

/// Identifies an object among those of its kind. Cheap to clone; sorts by namespace, then name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    namespace: Arc<str>,
    name: Arc<str>,
}

impl ObjectKey {
    pub fn new(namespace: &str, name: &str) -> Self {
        ObjectKey { namespace: namespace.into(), name: name.into() }
    }

    /// The key of a cluster-scoped object.
    pub fn cluster(name: &str) -> Self {
        ObjectKey::new("", name)
    }

    pub fn of<K: kube::Resource>(object: &K) -> Self {
        ObjectKey::from_meta(object.meta())
    }

    pub(crate) fn from_meta(meta: &ObjectMeta) -> Self {
        let text = |field: &Option<String>| field.as_deref().unwrap_or_default().into();
        ObjectKey { namespace: text(&meta.namespace), name: text(&meta.name) }
    }

    /// Empty for cluster-scoped kinds.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The namespace; `None` for cluster-scoped kinds.
    pub(crate) fn scope(&self) -> Option<&str> {
        Some(self.namespace()).filter(|namespace| !namespace.is_empty())
    }
}

/// `namespace/name`, or the name alone; what [`fmt::Display`] writes.
impl std::str::FromStr for ObjectKey {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (namespace, name) = text.split_once('/').unwrap_or(("", text));
        Ok(ObjectKey::new(namespace, name))
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.scope() {
            Some(namespace) => write!(f, "{namespace}/{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parsing_reverses_formatting() {
        for key in [ObjectKey::new("default", "web"), ObjectKey::cluster("node-1")] {
            assert_eq!(key.to_string().parse(), Ok(key));
        }
    }

    #[test]
    fn keys_of_a_namespace_are_adjacent() {
        let mut keys = [("b", "a"), ("a", "z"), ("a-b", "c"), ("a", "b")]
            .map(|(namespace, name)| ObjectKey::new(namespace, name));
        keys.sort();
        assert_eq!(format!("{keys:?}"), "[a/b, a/z, a-b/c, b/a]");
    }
}
