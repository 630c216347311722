//! What every function here requires of a kind, and the few questions asked of every object.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use std::any::{Any, TypeId};
use std::fmt::Debug;
use std::sync::Arc;
use typed::Typed;

/// A kind that can be read and written: those that `typed` lists, and [`crate::Outline`] for kinds that are
/// known only at run time.
pub trait Object:
    kube::Resource<DynamicType: Clone + Send + Sync + 'static>
    + Typed
    + Clone
    + Debug
    + Send
    + Sync
    + 'static
{
}

impl<K> Object for K where
    K: kube::Resource<DynamicType: Clone + Send + Sync + 'static>
        + Typed
        + Clone
        + Debug
        + Send
        + Sync
        + 'static
{
}

/// An object of any kind. Caches hold these, so that their code is compiled once and not once per kind.
pub(crate) trait AnyObject: Any + Send + Sync {
    fn metadata(&self) -> &ObjectMeta;
}

impl<K: Object> AnyObject for K {
    fn metadata(&self) -> &ObjectMeta {
        self.meta()
    }
}

/// How objects of one kind are decoded by code that does not know the kind.
#[derive(Clone, Copy)]
pub(crate) struct Decoder {
    kind: TypeId,
    decode: fn(&str) -> serde_json::Result<Arc<dyn AnyObject>>,
}

impl Decoder {
    pub(crate) fn of<K: Object>() -> Decoder {
        Decoder { kind: TypeId::of::<K>(), decode: decode_for_caches::<K> }
    }

    pub(crate) fn decode(&self, json: &str) -> serde_json::Result<Arc<dyn AnyObject>> {
        (self.decode)(json)
    }

    /// Whether this decoder could have made `object`.
    pub(crate) fn makes(&self, object: &dyn AnyObject) -> bool {
        let object: &dyn Any = object;
        object.type_id() == self.kind
    }
}

/// Without the managers of fields: they are half of many an object, and no decision depends on them.
/// A write that leaves them out leaves them as they are.
fn decode_for_caches<K: Object>(json: &str) -> serde_json::Result<Arc<dyn AnyObject>> {
    let mut object = K::decode(json)?;
    object.meta_mut().managed_fields = None;
    Ok(Arc::new(object))
}

/// The caller made the object with `Decoder::of::<K>`, so it is a `K`.
pub(crate) fn known<K: Object>(object: Arc<dyn AnyObject>) -> Arc<K> {
    let object: Arc<dyn Any + Send + Sync> = object;
    object.downcast().expect("a cache of a kind holds objects of that kind")
}

/// As [`known`], without taking hold of the object.
pub(crate) fn known_ref<K: Object>(object: &dyn AnyObject) -> &K {
    let object: &dyn Any = object;
    object.downcast_ref().expect("a cache of a kind holds objects of that kind")
}

/// The owner that controls the object: at most one does.
pub(crate) fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    let owners = meta.owner_references.as_deref().unwrap_or_default();
    owners.iter().find(|owner| owner.controller == Some(true))
}

/// Versions are numbers that grow.
pub(crate) fn version_number(version: &str) -> Option<u64> {
    version.parse().ok()
}
