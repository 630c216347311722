//! What the client requires of a kind, and type-erased objects for code that is compiled once for all kinds.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use std::any::{Any, TypeId};
use std::fmt::Debug;
use std::sync::Arc;
use typed::Typed;

/// A kind that can be read and written: those that `typed` lists, and [`crate::PartialObject`] for kinds that are
/// downcast only at run time.
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

    /// Whether `object` is of the type that this decoder returns.
    pub(crate) fn returns_type_of(&self, object: &dyn AnyObject) -> bool {
        let object: &dyn Any = object;
        object.type_id() == self.kind
    }
}

/// Decodes without `managedFields`: they can be half of an object, and no controller reads them. A write that omits
/// them does not change them.
fn decode_for_caches<K: Object>(json: &str) -> serde_json::Result<Arc<dyn AnyObject>> {
    let mut object = K::decode(json)?;
    object.meta_mut().managed_fields = None;
    Ok(Arc::new(object))
}

/// The caller decoded the object with `Decoder::of::<K>`, so it is a `K`.
pub(crate) fn downcast<K: Object>(object: Arc<dyn AnyObject>) -> Arc<K> {
    let object: Arc<dyn Any + Send + Sync> = object;
    object.downcast().expect("a cache of a kind holds objects of that kind")
}

/// As [`downcast`], of a borrowed object.
pub(crate) fn downcast_ref<K: Object>(object: &dyn AnyObject) -> &K {
    let object: &dyn Any = object;
    object.downcast_ref().expect("a cache of a kind holds objects of that kind")
}

/// The owner that controls the object; there is at most one.
pub(crate) fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    let owners = meta.owner_references.as_deref().unwrap_or_default();
    owners.iter().find(|owner| owner.controller == Some(true))
}

/// Resource versions are increasing numbers.
pub(crate) fn version_number(version: &str) -> Option<u64> {
    version.parse().ok()
}
