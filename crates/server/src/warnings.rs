//! What is accepted although it is probably not meant, told in Warning headers.

use crate::call::Call;
use serde_json::Value;

/// Of a new object.
pub(crate) fn create(call: &Call, object: &Value) {
    let path = template(&call.kind.kind);
    if let Some(template) = object.pointer(path).filter(|_| !path.is_empty()) {
        of_template(call, path, template);
    }
}

/// Of an object whose pod template changed.
pub(crate) fn update(call: &Call, new: &Value, old: &Value) {
    let path = template(&call.kind.kind);
    if new.pointer(path) != old.pointer(path) {
        create(call, new);
    }
}

/// Where a kind keeps its pod template.
fn template(kind: &str) -> &'static str {
    match kind {
        "Deployment"
        | "ReplicaSet"
        | "StatefulSet"
        | "DaemonSet"
        | "Job"
        | "ReplicationController" => "/spec/template",
        "CronJob" => "/spec/jobTemplate/spec/template",
        "PodTemplate" => "/template",
        _ => "",
    }
}

fn of_template(call: &Call, path: &str, template: &Value) {
    // T-API-7: a pod made from it shows 1.
    if template["spec"]["terminationGracePeriodSeconds"].as_i64().is_some_and(|grace| grace < 0) {
        let field = path.trim_start_matches('/').replace('/', ".");
        call.warn(format!(
            "{field}.spec.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1"
        ));
    }
}
