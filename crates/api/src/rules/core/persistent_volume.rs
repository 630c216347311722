//! PersistentVolumes and claims on them.

use crate::field::{At, Errors};
use crate::quantity;
use crate::value::ValueExt;
use serde_json::Value;

pub(super) fn default_claim(claim: &mut Value) {
    default_claim_spec(claim.object("spec"));
    claim.object("status").set_default("phase", "Pending");
}

pub(super) fn default_claim_spec(spec: &mut Value) {
    spec.set_default("volumeMode", "Filesystem");
    if let Some(resources) = spec.get_mut("resources") {
        quantity::canonicalize_list(resources.get_mut("requests"));
        quantity::canonicalize_list(resources.get_mut("limits"));
    }
}

pub(super) fn validate_claim(_at: &At, _errors: &mut Errors) {}
