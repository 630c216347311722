//! `POST terminations/NAME/steps`: nodes, proxies and controllers add steps to a record.
//!
//! The record is created if it does not exist. A step that exists already is not added again, so a client without a
//! response can simply retry.

use super::{append, deletion_steps::of_pod, find};
use crate::admission;
use crate::object::{Stored, store_name};
use crate::request::call::Call;
use crate::response::error::{ApiError, Result};
use crate::response::{self, ApiResponse};
use api::Status;
use api::value::ValueExt;
use http::StatusCode;
use lifecycle::timeline::{self, STEPS_KIND, STEPS_MAX, Steps, Subject};

pub(crate) async fn create(call: &Call) -> Result<ApiResponse> {
    let dry_run = call.dry_run()?;
    let steps: Steps = serde_json::from_slice(&call.body)
        .map_err(|error| ApiError::bad_request(format!("the steps cannot be read: {error}")))?;
    check(call, &steps)?;
    let subject = known(call, &steps.pod)?;
    admission::check_steps(call, &steps, &subject)?;
    if !dry_run {
        append(&call.server, &call.target.namespace, &subject, |_| steps.steps.clone()).await?;
    }
    let mut success = Status::success();
    success.code = 201;
    Ok(response::status(&success, StatusCode::CREATED))
}

fn check(call: &Call, steps: &Steps) -> Result<()> {
    let refuse = |why: String| Err(ApiError::bad_request(why));
    if steps.kind != STEPS_KIND || steps.api_version != timeline::API_VERSION {
        return refuse(format!("the body is not {STEPS_KIND} in {}", timeline::API_VERSION));
    }
    let name = timeline::name(&steps.pod.name, &steps.pod.uid);
    if name != call.target.name {
        return refuse(format!(
            "the record of pod {:?} with uid {:?} is called {name:?}, not {:?}",
            steps.pod.name, steps.pod.uid, call.target.name
        ));
    }
    if steps.steps.is_empty() || steps.steps.len() > STEPS_MAX {
        return refuse(format!("a request adds 1 to {STEPS_MAX} steps"));
    }
    Ok(())
}

/// The pod as this server knows it: from the store, or from an existing record.
fn known(call: &Call, posted: &Subject) -> Result<Subject> {
    let namespace = &call.target.namespace;
    let pod = call.store().get("pods", &store_name(namespace, &posted.name));
    let pod = pod.map(|pod| pod.value()).filter(|pod| pod.text(&["metadata", "uid"]) == posted.uid);
    if let Some(subject) = pod.as_ref().and_then(of_pod) {
        return Ok(subject);
    }
    match find(&call.server, namespace, &call.target.name) {
        Some(record) if record.pod.uid == posted.uid => Ok(record.pod),
        _ => Err(ApiError::not_found(&call.kind, &call.target.name)),
    }
}
