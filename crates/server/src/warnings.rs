//! What is accepted although it is probably not meant, told in Warning headers.

use crate::call::Call;
use serde_json::Value;

/// Of a kind that has a better successor, whatever is done with it.
pub(crate) fn deprecated(call: &Call) {
    if call.kind.group.is_empty() && call.kind.plural == "endpoints" {
        call.warn("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice");
    }
}

/// Of a new object.
pub(crate) fn create(call: &Call, object: &Value) {
    let path = template(&call.kind.kind);
    if let Some(template) = object.pointer(path).filter(|_| !path.is_empty()) {
        of_template(call, path, template);
    }
    if call.kind.kind == "Pod" {
        of_hooks(object, "spec").for_each(|warning| call.warn(warning));
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
    let field = path.trim_start_matches('/').replace('/', ".");
    of_hooks(template, &format!("{field}.spec")).for_each(|warning| call.warn(warning));
}

/// T-EDGE-10: hooks over TCP pass all rules, and every node refuses to run them (T-NODE-32).
fn of_hooks<'a>(holder: &'a Value, field: &'a str) -> impl Iterator<Item = String> + 'a {
    let lists = ["initContainers", "containers"].into_iter();
    let containers = lists.flat_map(move |list| {
        let containers = holder["spec"][list].as_array().into_iter().flatten();
        containers.enumerate().map(move |(index, one)| (format!("{field}.{list}[{index}]"), one))
    });
    containers.flat_map(|(path, container)| {
        let hooks = ["postStart", "preStop"].into_iter();
        let over_tcp = hooks.filter(|hook| container["lifecycle"][hook]["tcpSocket"].is_object());
        let warn = move |hook| {
            format!(
                "{path}.lifecycle.{hook}.tcpSocket: not supported for hooks; it will always fail"
            )
        };
        over_tcp.map(warn).collect::<Vec<_>>()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn t_edge_10_hooks_that_can_never_work_are_told() {
        let tcp = json!({"tcpSocket": {"port": 80}});
        let works = json!({"preStop": {"sleep": {"seconds": 1}}});
        let pod = json!({"spec": {
            "initContainers": [{"lifecycle": {"postStart": tcp}}],
            "containers": [{"lifecycle": works}, {"lifecycle": {"preStop": tcp}}, {}]}});
        let told: Vec<String> = of_hooks(&pod, "spec").collect();
        let wanted = ["initContainers[0].lifecycle.postStart", "containers[1].lifecycle.preStop"]
            .map(|at| format!("spec.{at}.tcpSocket: not supported for hooks; it will always fail"));
        assert_eq!(told, wanted);
    }
}
