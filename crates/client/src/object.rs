//! What every function here asks of a kind, and the few questions asked of every object.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// A kind that can be read and written: the typed ones, and kube's `DynamicObject` and
/// `PartialObjectMeta` for those that are known at run time only.
pub trait Object:
    kube::Resource<DynamicType: Clone + Send + Sync + 'static>
    + Clone
    + Debug
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
}

impl<K> Object for K where
    K: kube::Resource<DynamicType: Clone + Send + Sync + 'static>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned
        + Send
        + Sync
        + 'static
{
}

/// The owner that controls `object`: at most one does.
pub(crate) fn controller_of<K: kube::Resource>(object: &K) -> Option<&OwnerReference> {
    let owners = object.meta().owner_references.as_deref().unwrap_or_default();
    owners.iter().find(|owner| owner.controller == Some(true))
}

/// Versions are numbers that grow.
pub(crate) fn version_number(version: &str) -> Option<u64> {
    version.parse().ok()
}
