//! `namespaces/{name}/finalize`: changes the finalizers in a Namespace's spec.

use crate::request::call::Call;
use crate::request::decode;
use crate::response::ApiResponse;
use crate::response::error::Result;
use crate::verbs::update::{Changed, change, shown};
use crate::verbs::write::Endpoint;
use api::value::ValueExt;
use http::StatusCode;

/// PUT: changes only `spec.finalizers`. A Namespace that is marked for deletion and has none left is removed.
pub(crate) async fn update(call: &Call) -> Result<ApiResponse> {
    call.check_options()?;
    let dry_run = call.dry_run()?;
    let body = decode::object(call)?;
    let made = change(call, Endpoint::Other, dry_run, |old| {
        let mut object = old.clone();
        object.object("spec");
        match body.at(&["spec", "finalizers"]) {
            Some(finalizers) => object["spec"]["finalizers"] = finalizers.clone(),
            None => drop(object["spec"].remove("finalizers")),
        }
        if let Some(version) = body.at(&["metadata", "resourceVersion"]) {
            object["metadata"]["resourceVersion"] = version.clone();
        }
        Ok(Changed::untracked(object))
    })
    .await?;
    shown(call, &made, StatusCode::OK)
}
