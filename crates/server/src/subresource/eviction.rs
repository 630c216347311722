//! `pods/{name}/eviction`: a delete that respects disruption budgets (T-EVICT-1 to T-EVICT-11).

use crate::admission;
use crate::object::Stored;
use crate::request::call::{Call, name_of};
use crate::request::decode;
use crate::response::error::{ApiError, Result};
use crate::response::views;
use crate::response::{self, ApiResponse};
use crate::verbs::delete::{Options, check_preconditions, delete_one};
use crate::verbs::update::{Changed, change};
use crate::verbs::write::Endpoint;
use api::selector::LabelSelector;
use api::status::{Cause, Details};
use api::value::ValueExt;
use api::{Kind, Status};
use http::StatusCode;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Retries after conflicts: number and pause (T-EVICT-10).
const ATTEMPTS: usize = 20;
const PAUSE: Duration = Duration::from_millis(500);
/// The maximum number of evicted pods that the controller has not confirmed yet (T-EVICT-9).
const DISRUPTED_MAX: usize = 2000;
const RETRY_UNOBSERVED: u32 = 10;

pub(crate) async fn create(call: &Call) -> Result<ApiResponse> {
    let eviction = decode::other(call, "io.k8s.api.policy.v1.Eviction")?;
    let name = name_of(&eviction);
    if !name.is_empty() && name != call.target.name {
        return Err(ApiError::bad_request("name in URL does not match name in Eviction object"));
    }
    let mut options = Options::parse(&eviction.get("deleteOptions").cloned().unwrap_or(json!({})))?;
    options.dry_run |= call.dry_run()?;
    admission::check_namespace(call)?;
    let given_version = options.version.is_some();
    let mut spent = false;
    for attempt in 1.. {
        // A failed precondition of the client is not retried, and costs no budget.
        let pod = views::value(&call.kind, &*call.find().await?);
        check_preconditions(call, &call.target.name, &pod, &options)?;
        match evict(call, &options, &mut spent).await {
            Err(ApiError::Conflict { .. }) if !given_version && attempt < ATTEMPTS => {
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => return Err(error),
            Ok(()) => break,
        }
    }
    let mut success = Status::success();
    success.code = 201;
    Ok(response::status(&success, StatusCode::CREATED))
}

/// `spent`: the eviction is already counted in a budget.
async fn evict(call: &Call, options: &Options, spent: &mut bool) -> Result<()> {
    let stored = call.stored()?;
    let pod = views::value(&call.kind, &stored);
    let mut options = options.clone();
    if ignores_budgets(&pod) {
        if pod.text(&["status", "phase"]) == "Pending" && options.version.is_none() {
            // It may become ready before the delete (T-EVICT-2).
            options.version = Some(stored.revision().to_string());
        }
        return delete_pod(call, &options).await;
    }
    let budgets = matching_budgets(call, &stored);
    let budget = match budgets.as_slice() {
        [] => return delete_pod(call, &options).await,
        [budget] => budget,
        _ => {
            return Err(ApiError::Status(Box::new(Status::failure(
                500,
                "",
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
            ))));
        }
    };
    if !is_ready(&pod) && unhealthy_may_be_evicted(budget) {
        options.version = Some(stored.revision().to_string());
        return delete_pod(call, &options).await.map_err(|error| match error {
            ApiError::Conflict { .. } => too_many(0, String::new()),
            error => error,
        });
    }
    if !*spent {
        spend(call, budget, options.dry_run).await?;
        *spent = true;
    }
    delete_pod(call, &options).await
}

/// Deleting these pods disrupts nothing (T-EVICT-2).
fn ignores_budgets(pod: &Value) -> bool {
    let phase = pod.text(&["status", "phase"]);
    phase == "Pending"
        || api::pod::is_terminal_phase(phase)
        || pod.at(&["metadata", "deletionTimestamp"]).is_some()
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod.at(&["status", "conditions"]).and_then(Value::as_array);
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// Whether a pod that is not Ready may be evicted without using the budget (T-EVICT-6).
fn unhealthy_may_be_evicted(budget: &Value) -> bool {
    if budget.text(&["spec", "unhealthyPodEvictionPolicy"]) == "AlwaysAllow" {
        return true;
    }
    let count = |field: &str| budget.at(&["status", field]).and_then(Value::as_i64).unwrap_or(0);
    count("desiredHealthy") > 0 && count("currentHealthy") >= count("desiredHealthy")
}

fn budget_kind(call: &Call) -> Result<Arc<Kind>> {
    let registry = call.server.registry();
    registry
        .resource("policy", "v1", "poddisruptionbudgets")
        .cloned()
        .ok_or_else(|| ApiError::Internal("PodDisruptionBudget is not served".into()))
}

fn matching_budgets(call: &Call, pod: &crate::object::Object) -> Vec<Value> {
    let prefix = format!("{}/", call.target.namespace);
    let (_, budgets) = call.store().list("policy/poddisruptionbudgets", &prefix, None);
    budgets
        .iter()
        .map(|budget| budget.value())
        .filter(|budget| {
            let selector = budget.at(&["spec", "selector"]).cloned().unwrap_or(Value::Null);
            LabelSelector::from_object(&selector)
                .is_ok_and(|selector| selector.matches(|key| pod.label(key)))
        })
        .collect()
}

/// Uses one disruption of the budget, or fails if none is left (T-EVICT-7 to T-EVICT-9).
async fn spend(call: &Call, budget: &Value, dry_run: bool) -> Result<()> {
    let name = name_of(budget).to_owned();
    let beside = call.on_other(&budget_kind(call)?, &name);
    let pod = call.target.name.clone();
    let now = call.now();
    change(&beside, Endpoint::Status, dry_run, |old| {
        let count = |field: &str| old.at(&["status", field]).and_then(Value::as_i64).unwrap_or(0);
        if count("observedGeneration") < old["metadata"]["generation"].as_i64().unwrap_or(0) {
            return Err(too_many(
                RETRY_UNOBSERVED,
                format!("The disruption budget {name} is still being processed by the server."),
            ));
        }
        let disrupted = old
            .at(&["status", "disruptedPods"])
            .and_then(Value::as_object)
            .map_or(0, |map| map.len());
        if disrupted > DISRUPTED_MAX {
            return Err(ApiError::forbidden(
                &beside.kind,
                &name,
                "DisruptedPods map too big - too many evictions not confirmed by PDB controller",
            ));
        }
        let allowed = count("disruptionsAllowed");
        if allowed < 0 {
            return Err(ApiError::forbidden(
                &beside.kind,
                &name,
                "pdb disruptions allowed is negative",
            ));
        }
        if allowed == 0 {
            return Err(too_many(
                0,
                format!(
                    "The disruption budget {name} needs {} healthy pods and has {} currently",
                    count("desiredHealthy"),
                    count("currentHealthy")
                ),
            ));
        }
        let mut budget = old.clone();
        let status = budget.object("status");
        status["disruptionsAllowed"] = (allowed - 1).into();
        status.object("disruptedPods")[&pod] = now.clone().into();
        Ok(Changed::untracked(budget))
    })
    .await
    .map(drop)
}

fn too_many(retry_after: u32, cause: String) -> ApiError {
    let causes = if cause.is_empty() {
        Vec::new()
    } else {
        vec![Cause { reason: "DisruptionBudget".into(), message: cause, field: String::new() }]
    };
    ApiError::Status(Box::new(
        Status::failure(
            429,
            "TooManyRequests",
            "Cannot evict pod as it would violate the pod's disruption budget.",
        )
        .with_details(Details {
            causes,
            retry_after_seconds: retry_after,
            ..Details::default()
        }),
    ))
}

/// Sets the pod's DisruptionTarget condition (T-EVICT-3), then deletes it.
async fn delete_pod(call: &Call, options: &Options) -> Result<()> {
    let mut options = options.clone();
    if !options.dry_run {
        let now = call.now();
        let (uid, version) = (options.uid.clone(), options.version.clone());
        let beside = call.on_other(&call.kind, &call.target.name);
        let marked = change(&beside, Endpoint::Status, false, |old| {
            let mut pod = old.clone();
            pod["metadata"]["resourceVersion"] = version.clone().unwrap_or_default().into();
            if let Some(uid) = &uid {
                pod["metadata"]["uid"] = uid.clone().into();
            }
            set_disruption_target(pod.object("status"), &now);
            Ok(Changed::untracked(pod))
        })
        .await?;
        if options.version.is_some() {
            // The precondition now refers to the version that was just written.
            let pod = marked.value(&beside);
            options.version = Some(pod.text(&["metadata", "resourceVersion"]).to_owned());
        }
    }
    delete_one(call, &call.target.name, &options).await.map(drop)
}

fn set_disruption_target(status: &mut Value, now: &str) {
    status.set_default("conditions", json!([]));
    if let Some(Value::Array(conditions)) = status.get_mut("conditions") {
        conditions.retain(|condition| condition["type"] != "DisruptionTarget");
        conditions.push(json!({
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
            "lastProbeTime": null,
            "lastTransitionTime": now,
        }));
    }
}
