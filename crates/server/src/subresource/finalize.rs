//! `namespaces/{name}/finalize`: the last word on a Namespace.

use crate::answer::Answer;
use crate::call::Call;
use crate::decode;
use crate::error::Result;
use crate::verbs::update::{Changed, change, shown};
use crate::verbs::write::Endpoint;
use api::value::ValueExt;
use http::StatusCode;

/// PUT: takes only `spec.finalizers`; a marked Namespace without any left goes.
pub(crate) async fn update(call: &Call) -> Result<Answer> {
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
        Ok(Changed::tracked(object))
    })
    .await?;
    shown(call, &made, StatusCode::OK)
}
