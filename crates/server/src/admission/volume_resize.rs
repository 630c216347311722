//! PersistentVolumeClaimResize: a claim can grow only if it is bound and its class allows it.

use super::refuse;
use crate::object::Stored;
use crate::request::call::Call;
use crate::response::error::Result;
use api::quantity::Quantity;
use api::quota::usage::class_of;
use api::value::ValueExt;
use serde_json::Value;

pub(super) fn check(call: &Call, new: &Value, old: &Value) -> Result<()> {
    if size(new) <= size(old) {
        return Ok(());
    }
    if old.text(&["status", "phase"]) != "Bound" {
        return Err(refuse(call, new, "Only bound persistent volume claims can be expanded"));
    }
    let class = class_of(new);
    let may_grow = !class.is_empty()
        && class == class_of(old)
        && call
            .store()
            .get("storage.k8s.io/storageclasses", class)
            .is_some_and(|class| class.value()["allowVolumeExpansion"] == Value::Bool(true));
    if may_grow {
        return Ok(());
    }
    let why = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize";
    Err(refuse(call, new, why))
}

fn size(claim: &Value) -> Option<Quantity> {
    claim.at(&["spec", "resources", "requests", "storage"]).and_then(Quantity::from_value)
}
