//! DefaultStorageClass: a claim without a class gets the default one. An empty name is different: it requests no
//! class.

use super::newest_default;
use crate::request::call::{Call, name_of};
use api::value::ValueExt;
use serde_json::Value;

/// The name of the class before there was a field for it.
const OLD_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";
const DEFAULT_ANNOTATIONS: [&str; 2] = [
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];

pub(super) fn admit(call: &Call, claim: &mut Value) {
    if claim.at(&["spec", "storageClassName"]).is_some()
        || claim.at(&["metadata", "annotations", OLD_ANNOTATION]).is_some()
    {
        return;
    }
    if let Some(class) = newest_default(call, "storage.k8s.io/storageclasses", &DEFAULT_ANNOTATIONS)
    {
        claim.object("spec")["storageClassName"] = name_of(&class).into();
    }
}
