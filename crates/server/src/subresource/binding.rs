//! Binds a pod to a node: `pods/{name}/binding` and `POST bindings` (A-86, T-API-43).

use crate::request::call::Call;
use crate::request::decode;
use crate::response::error::{ApiError, Result};
use crate::response::{self, ApiResponse};
use crate::verbs::update::{Changed, change};
use crate::verbs::write::Endpoint;
use api::value::ValueExt;
use api::{At, Errors, Status};
use http::StatusCode;
use serde_json::{Value, json};

/// Node labels that a pod gets when it is bound (admission plugin PodTopologyLabels).
const TOPOLOGY_LABELS: [&str; 2] = ["topology.kubernetes.io/zone", "topology.kubernetes.io/region"];

pub(crate) async fn create(call: &Call) -> Result<ApiResponse> {
    let dry_run = call.dry_run()?;
    let binding = decode::other(call, "io.k8s.api.core.v1.Binding")?;
    check(call, &binding)?;
    let node = binding.text(&["target", "name"]).to_owned();
    let topology = topology(call, &node);
    let now = call.now();
    change(call, Endpoint::Other, dry_run, |old| {
        refuse(call, old)?;
        let uid = binding.text(&["metadata", "uid"]);
        if !uid.is_empty() && uid != old.text(&["metadata", "uid"]) {
            return Err(conflict(
                call,
                format!(
                    "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
                    old.text(&["metadata", "uid"])
                ),
            ));
        }
        let mut pod = old.clone();
        pod["spec"]["nodeName"] = node.clone().into();
        if let Some(Value::Object(annotations)) = binding.at(&["metadata", "annotations"]) {
            let merged = pod["metadata"].object("annotations").map();
            annotations
                .iter()
                .for_each(|(key, value)| drop(merged.insert(key.clone(), value.clone())));
        }
        for (key, value) in &topology {
            pod["metadata"].object("labels").set_default(key, value.as_str());
        }
        let status = pod.object("status");
        status.remove("nominatedNodeName");
        set_scheduled(status, &now);
        // Upstream's field manager sees the Binding, not the pod, so the node name has no manager.
        Ok(Changed { object: pod, tracked: true })
    })
    .await?;
    let mut success = Status::success();
    success.code = 201;
    Ok(response::status(&success, StatusCode::CREATED))
}

fn check(call: &Call, binding: &Value) -> Result<()> {
    let root = At::root(binding);
    let target = root.field("target");
    let mut errors = Errors::default();
    let kind = target.field("kind");
    if !matches!(kind.text(), "" | "Node") {
        errors.not_supported(&kind, &["Node", "<empty>"]);
    }
    if target.field("name").text().is_empty() {
        errors.required(&target.field("name"), "");
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(ApiError::Invalid(Box::new(Status::invalid("Binding", "", &call.target.name, errors))))
}

fn refuse(call: &Call, pod: &Value) -> Result<()> {
    let name = &call.target.name;
    if pod.at(&["metadata", "deletionTimestamp"]).is_some() {
        return Err(conflict(
            call,
            format!("pod {name} is being deleted, cannot be assigned to a host"),
        ));
    }
    let node = pod.text(&["spec", "nodeName"]);
    if !node.is_empty() {
        return Err(conflict(call, format!("pod {name} is already assigned to node \"{node}\"")));
    }
    if pod
        .at(&["spec", "schedulingGates"])
        .and_then(Value::as_array)
        .is_some_and(|gates| !gates.is_empty())
    {
        return Err(conflict(call, format!("pod {name} has non-empty .spec.schedulingGates")));
    }
    Ok(())
}

fn conflict(call: &Call, why: String) -> ApiError {
    ApiError::Conflict {
        resource: "pods/binding".into(),
        group: String::new(),
        name: call.target.name.clone(),
        why,
    }
}

fn topology(call: &Call, node: &str) -> Vec<(&'static str, String)> {
    use crate::object::Stored;
    let Some(node) = call.store().get("nodes", node) else { return Vec::new() };
    TOPOLOGY_LABELS
        .iter()
        .filter_map(|label| node.label(label).map(|value| (*label, value.to_owned())))
        .collect()
}

fn set_scheduled(status: &mut Value, now: &str) {
    let condition = json!({ "type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": now });
    status.set_default("conditions", json!([]));
    if let Some(Value::Array(conditions)) = status.get_mut("conditions") {
        conditions.retain(|condition| condition["type"] != "PodScheduled");
        conditions.push(condition);
    }
}
