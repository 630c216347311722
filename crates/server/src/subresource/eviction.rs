//! `pods/{name}/eviction`: a delete that asks the disruption budgets first (T-EVICT-1 to T-EVICT-11).

use crate::admission;
use crate::answer::{self, Answer};
use crate::call::{Call, name_of};
use crate::decode;
use crate::error::{ApiError, Result};
use crate::object::Stored;
use crate::verbs::delete::{Options, check_preconditions, delete_one};
use crate::verbs::update::{Changed, change};
use crate::verbs::write::Endpoint;
use crate::views;
use api::selector::LabelSelector;
use api::status::{Cause, Details};
use api::value::ValueExt;
use api::{Kind, Status};
use http::StatusCode;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Conflicts with other writers are met this often, this far apart (T-EVICT-10).
const ATTEMPTS: usize = 20;
const PAUSE: Duration = Duration::from_millis(500);
/// More pods than this on their way at once are refused (T-EVICT-9).
const DISRUPTED_MAX: usize = 2000;
const RETRY_UNOBSERVED: u32 = 10;

pub(crate) async fn create(call: &Call) -> Result<Answer> {
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
        // What the client asked for itself is not met by trying again, and no budget pays for it.
        let pod = views::value(&call.kind, &*call.stored()?);
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
    Ok(answer::status(&success, StatusCode::CREATED))
}

/// `spent`: a budget has paid for this already.
async fn evict(call: &Call, options: &Options, spent: &mut bool) -> Result<()> {
    let stored = call.stored()?;
    let pod = views::value(&call.kind, &stored);
    let mut options = options.clone();
    if ignores_budgets(&pod) {
        if pod.text(&["status", "phase"]) == "Pending" && options.version.is_none() {
            // It may become ready between this look and the delete (T-EVICT-2).
            options.version = Some(stored.revision().to_string());
        }
        return end(call, &options).await;
    }
    let budgets = matching_budgets(call, &stored);
    let budget = match budgets.as_slice() {
        [] => return end(call, &options).await,
        [budget] => budget,
        _ => {
            return Err(ApiError::Said(Box::new(Status::failure(
                500,
                "",
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
            ))));
        }
    };
    if !is_ready(&pod) && unhealthy_may_go(budget) {
        options.version = Some(stored.revision().to_string());
        return end(call, &options).await.map_err(|error| match error {
            ApiError::Conflict { .. } => too_many(0, String::new()),
            error => error,
        });
    }
    if !*spent {
        spend(call, budget, options.dry_run).await?;
        *spent = true;
    }
    end(call, &options).await
}

/// T-EVICT-2: nothing is disrupted by ending these.
fn ignores_budgets(pod: &Value) -> bool {
    matches!(pod.text(&["status", "phase"]), "Pending" | "Succeeded" | "Failed")
        || pod.at(&["metadata", "deletionTimestamp"]).is_some()
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod.at(&["status", "conditions"]).and_then(Value::as_array);
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// T-EVICT-6
fn unhealthy_may_go(budget: &Value) -> bool {
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

/// Takes one disruption from the budget, or says why there is none (T-EVICT-7 to T-EVICT-9).
async fn spend(call: &Call, budget: &Value, dry_run: bool) -> Result<()> {
    let name = name_of(budget).to_owned();
    let beside = call.beside(&budget_kind(call)?, &name);
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
        Ok(Changed::tracked(budget))
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
    ApiError::Said(Box::new(
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

/// Says on the pod why it ends (T-EVICT-3), then deletes it.
async fn end(call: &Call, options: &Options) -> Result<()> {
    let mut options = options.clone();
    if !options.dry_run {
        let now = call.now();
        let (uid, version) = (options.uid.clone(), options.version.clone());
        let beside = call.beside(&call.kind, &call.target.name);
        let marked = change(&beside, Endpoint::Status, false, |old| {
            let mut pod = old.clone();
            pod["metadata"]["resourceVersion"] = version.clone().unwrap_or_default().into();
            if let Some(uid) = &uid {
                pod["metadata"]["uid"] = uid.clone().into();
            }
            set_disruption_target(pod.object("status"), &now);
            Ok(Changed::tracked(pod))
        })
        .await?;
        if options.version.is_some() {
            // The precondition moves on to what was just written.
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
