//! Pods: what a real pod has beyond a template, and what may change once it exists.

use super::checks;
use super::{container, pod_spec, pod_template, pod_update, qos};
use crate::field::{At, Errors, Wrong};
use crate::names;
use crate::rules::{Generation, Rules};
use crate::value::ValueExt;
use serde_json::{Value, json};

const CONTAINER_LISTS: &[&str] = &["containers", "initContainers"];

pub(super) const RULES: Rules = Rules {
    default,
    prepare_create,
    validate,
    validate_update: pod_update::validate,
    validate_status_update,
    fields: &[
        ("spec.nodeName", |pod| pod.text(&["spec", "nodeName"]).into()),
        ("spec.host", |pod| pod.text(&["spec", "nodeName"]).into()),
        ("spec.restartPolicy", |pod| pod.text(&["spec", "restartPolicy"]).into()),
        ("spec.schedulerName", |pod| pod.text(&["spec", "schedulerName"]).into()),
        ("spec.serviceAccountName", |pod| pod.text(&["spec", "serviceAccountName"]).into()),
        ("spec.hostNetwork", |pod| {
            (pod.at(&["spec", "hostNetwork"]) == Some(&Value::Bool(true))).to_string()
        }),
        ("status.phase", |pod| pod.text(&["status", "phase"]).into()),
        ("status.podIP", |pod| pod.text(&["status", "podIP"]).into()),
        ("status.podIPs", pod_ips),
        ("status.nominatedNodeName", |pod| pod.text(&["status", "nominatedNodeName"]).into()),
    ],
    generation: Generation::Spec,
    returns_deleted: true,
    ..Rules::NONE
};

fn pod_ips(pod: &Value) -> String {
    let ips = pod.at(&["status", "podIPs"]).and_then(Value::as_array);
    ips.into_iter().flatten().map(|ip| ip.text(&["ip"])).collect::<Vec<_>>().join(",")
}

fn default(pod: &mut Value) {
    let spec = pod.object("spec");
    pod_template::default_spec(spec);
    // Templates keep what they say; a pod never shows a negative grace (T-API-7).
    if spec
        .at(&["terminationGracePeriodSeconds"])
        .and_then(Value::as_i64)
        .is_some_and(|grace| grace < 0)
    {
        spec["terminationGracePeriodSeconds"] = 1.into();
    }
    spec.set_default("enableServiceLinks", true);
    let host_network = spec.at(&["hostNetwork"]) == Some(&Value::Bool(true));
    for list in CONTAINER_LISTS {
        for container in spec.list_mut(list) {
            if host_network {
                container.list_mut("ports").for_each(default_host_port);
            }
            if let Some(resources) = container.get_mut("resources") {
                requests_from_limits(resources);
            }
        }
    }
    default_pod_resources(spec);
}

fn default_host_port(port: &mut Value) {
    let own = port.at(&["containerPort"]).cloned();
    let unset = port.at(&["hostPort"]).and_then(Value::as_i64).unwrap_or_default() == 0;
    if let (Some(own), true) = (own, unset) {
        port.map().insert("hostPort".into(), own);
    }
}

/// Who limits a resource and does not say what to reserve reserves the limit.
fn requests_from_limits(resources: &mut Value) {
    let limits = resources.at(&["limits"]).and_then(Value::as_object).cloned();
    for (name, limit) in limits.into_iter().flatten() {
        resources.object("requests").set_default(&name, limit);
    }
}

/// Limits of a whole pod: reserved is what its containers reserve, or else the limit.
fn default_pod_resources(spec: &mut Value) {
    let limited = spec
        .at(&["resources", "limits"])
        .and_then(Value::as_object)
        .is_some_and(|limits| !limits.is_empty());
    if !limited {
        return;
    }
    let needed = qos::container_requests(spec);
    let resources = spec.object("resources");
    for (name, amount) in needed {
        if name == "cpu" || name == "memory" {
            resources.object("requests").set_default(&name, amount.to_string());
        }
    }
    requests_from_limits(resources);
}

fn prepare_create(pod: &mut Value) {
    let mut status = json!({"phase": "Pending", "qosClass": qos::qos_class(pod)});
    let gates = pod.at(&["spec", "schedulingGates"]).and_then(Value::as_array);
    if gates.is_some_and(|gates| !gates.is_empty()) {
        status["conditions"] = json!([{
            "type": "PodScheduled",
            "status": "False",
            "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
            "lastProbeTime": null,
            "lastTransitionTime": null,
        }]);
    }
    pod.map().insert("status".into(), status);
    select_own_labels(pod);
}

/// `matchLabelKeys` become selectors with the pod's own values.
fn select_own_labels(pod: &mut Value) {
    let labels = pod.at(&["metadata", "labels"]).cloned().unwrap_or_default();
    let Some(spec) = pod.get_mut("spec") else {
        return;
    };
    spec.list_mut("topologySpreadConstraints").for_each(|term| merge_keys(term, &labels));
    for kind in ["podAffinity", "podAntiAffinity"] {
        let Some(pods) = spec.get_mut("affinity").and_then(|affinity| affinity.get_mut(kind))
        else {
            continue;
        };
        pods.list_mut("requiredDuringSchedulingIgnoredDuringExecution")
            .for_each(|term| merge_keys(term, &labels));
        for weighted in pods.list_mut("preferredDuringSchedulingIgnoredDuringExecution") {
            if let Some(term) = weighted.get_mut("podAffinityTerm") {
                merge_keys(term, &labels);
            }
        }
    }
}

fn merge_keys(term: &mut Value, labels: &Value) {
    for (field, operator) in [("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn")] {
        let keys = term.at(&[field]).and_then(Value::as_array).cloned().unwrap_or_default();
        let Some(selector) = term.get_mut("labelSelector").filter(|selector| selector.is_object())
        else {
            return;
        };
        for key in keys {
            if let Some(value) = key.as_str().and_then(|key| labels.get(key)) {
                selector.set_default("matchExpressions", json!([]));
                let requirement = json!({"key": key, "operator": operator, "values": [value]});
                if let Some(Value::Array(list)) = selector.get_mut("matchExpressions") {
                    list.push(requirement);
                }
            }
        }
    }
}

pub(super) fn validate(pod: &At, errors: &mut Errors) {
    let (metadata, spec) = (pod.field("metadata"), pod.field("spec"));
    let annotations = metadata.field("annotations");
    pod_spec::annotations(&annotations, &annotations, &spec, errors);
    pod_spec::validate(&spec, Some(&metadata), errors);
    if spec.field("serviceAccountName").text().is_empty() {
        forbid_tokens(&spec, errors);
    }
    for list in CONTAINER_LISTS {
        for container in spec.field(list).items() {
            container::image_whitespace(&container, errors);
        }
    }
    // Only stored pods have a version.
    if metadata.field("resourceVersion").text().is_empty() {
        validate_create(&spec, errors);
    }
}

fn forbid_tokens(spec: &At, errors: &mut Errors) {
    for volume in spec.field("volumes").items() {
        let projected = volume.field("projected");
        for source in projected.field("sources").items() {
            let token = source.field("serviceAccountToken");
            if token.is_set() {
                let said = "must not be specified when serviceAccountName is not set";
                errors.forbidden(&token, said);
            }
        }
    }
}

fn validate_create(spec: &At, errors: &mut Errors) {
    let ephemeral = spec.field("ephemeralContainers");
    if !ephemeral.is_empty() {
        errors.forbidden(&ephemeral, "cannot be set on create");
    }
    let node = spec.field("nodeName");
    if !node.text().is_empty() && !spec.field("schedulingGates").is_empty() {
        errors.forbidden(&node, "cannot be set until all schedulingGates have been cleared");
    }
}

fn validate_status_update(new: &At, old: &At, errors: &mut Errors) {
    pod_update::annotation_changes(new, old, errors);
    let (status, before) = (new.field("status"), old.field("status"));
    let metadata = new.field("metadata");
    let shown = metadata.field("conditions");
    for (index, condition) in status.field("conditions").items().enumerate() {
        let kind = condition.field("type").text();
        for wrong in names::qualified_name(kind) {
            // The path is upstream's slip.
            let path = format!("{}[{index}].Type", shown.path());
            errors.push(Wrong::Invalid, path, Some(&kind.into()), &wrong);
        }
    }
    let nominated = status.field("nominatedNodeName");
    if nominated.text() != before.field("nominatedNodeName").text() {
        checks::optional_name(&nominated, names::dns1123_subdomain, errors);
    }
    let class = status.field("qosClass");
    if class.text() != before.field("qosClass").text() {
        errors.invalid_value(&class, class.text(), crate::metadata::IMMUTABLE);
    }
    let spec = old.field("spec");
    for list in ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"] {
        state_changes(&status.field(list), &before.field(list), &spec, list, errors);
    }
    pod_addresses(&status, errors);
}

/// A container that ended and must not start again stays ended.
fn state_changes(new: &At, old: &At, spec: &At, list: &str, errors: &mut Errors) {
    let policy = match list {
        "ephemeralContainerStatuses" => "Never",
        _ => spec.field("restartPolicy").text(),
    };
    if policy == "Always" {
        return;
    }
    for (index, before) in old.items().enumerate() {
        let name = before.field("name").text();
        let state = before.field("state");
        let ended = state.field("terminated");
        let code = ended.field("exitCode").int().unwrap_or_default();
        if !ended.is_set() || (code != 0 && policy == "OnFailure") || restarts(spec, name) {
            continue;
        }
        for now in new.items().filter(|now| now.field("name").text() == name) {
            if !now.field("state").field("terminated").is_set() {
                let path = format!("{}[{index}].state", new.path());
                let said = "may not be transitioned to non-terminated state";
                errors.push(Wrong::Forbidden, path, None, said);
            }
        }
    }
}

/// Sidecars, and containers with a restart policy of their own.
fn restarts(spec: &At, name: &str) -> bool {
    CONTAINER_LISTS.iter().any(|list| {
        spec.field(list).items().any(|container| {
            let own = container.field("restartPolicy");
            container.field("name").text() == name && own.is_set() && own.text() != "Never"
        })
    })
}

fn pod_addresses(status: &At, errors: &mut Errors) {
    for (list, first) in [("podIPs", None), ("hostIPs", Some("hostIP"))] {
        let ips = status.field(list);
        for (index, ip) in ips.items().enumerate() {
            let address = ip.field("ip");
            if let (0, Some(first)) = (index, first)
                && status.field(first).text() != address.text()
            {
                errors.invalid(&address, &format!("must be equal to `{first}`"));
            }
            if address.text().parse::<std::net::IpAddr>().is_err() {
                let said = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
                errors.invalid_value(&ip, address.text(), said);
            }
        }
        if ips.len() > 2 {
            errors.invalid(&ips, "may specify no more than one IP for each IP family");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::trial::{NOTHING, create, created, pod, pod_with, update_status};
    use serde_json::json;

    /// A-147
    #[test]
    fn a_147_pods_are_filled_in_beyond_templates() {
        let made = created(
            "Pod",
            pod(json!({
                "hostNetwork": true,
                "schedulingGates": [{"name": "example.com/wait"}],
                "containers": [{
                    "name": "app", "image": "app",
                    "ports": [{"containerPort": 80}],
                    "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "0.5"}},
                }],
            })),
        );
        let spec = &made["spec"];
        assert_eq!(spec["enableServiceLinks"], true);
        assert_eq!(spec["containers"][0]["ports"][0]["hostPort"], 80);
        assert_eq!(
            spec["containers"][0]["resources"]["requests"],
            json!({"cpu": "500m", "memory": "1Gi"})
        );
        assert_eq!(made["status"]["phase"], "Pending");
        assert_eq!(made["status"]["qosClass"], "Burstable");
        assert_eq!(made["status"]["conditions"][0]["reason"], "SchedulingGated");
    }

    #[test]
    fn a_147_keys_to_match_select_the_pods_own_labels() {
        let term = json!({"topologyKey": "zone", "labelSelector": {}, "matchLabelKeys": ["rev"]});
        let mut object = pod(json!({"affinity": {"podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [term]
        }}}));
        object["metadata"] = json!({"labels": {"rev": "7"}});
        let made = created("Pod", object);
        let terms = &made["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        assert_eq!(
            terms[0]["labelSelector"]["matchExpressions"],
            json!([{"key": "rev", "operator": "In", "values": ["7"]}])
        );
    }

    /// A-92
    #[test]
    fn a_92_pods_are_refused_in_upstreams_words() {
        let rows: &[(_, &str)] = &[
            (pod(json!({"containers": []})), "spec.containers: Required value"),
            (
                pod(json!({"restartPolicy": "Maybe"})),
                "spec.restartPolicy: Unsupported value: \"Maybe\": supported values: \"Always\", \"OnFailure\", \"Never\"",
            ),
            (
                pod(json!({"dnsPolicy": "None"})),
                "spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None",
            ),
            (
                pod(json!({"activeDeadlineSeconds": 0})),
                "spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive",
            ),
            (
                pod(json!({"ephemeralContainers": [{"name": "debug", "image": "busybox"}]})),
                "spec.ephemeralContainers: Forbidden: cannot be set on create",
            ),
            (
                pod(json!({"nodeName": "n", "schedulingGates": [{"name": "a"}]})),
                "spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared",
            ),
            (
                pod(json!({"hostAliases": [{"ip": "x"}]})),
                "spec.hostAliases[0].ip: Invalid value: \"x\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
            ),
            (
                pod(json!({"os": {"name": "plan9"}})),
                "spec.os: Unsupported value: \"plan9\": supported values: \"linux\", \"windows\"",
            ),
            (
                pod(json!({"overhead": {"cpu": "-1"}})),
                "spec.overhead.limits[cpu]: Invalid value: \"-1\": must be greater than or equal to 0",
            ),
            (
                pod(json!({"securityContext": {"sysctls": [{"name": "Bad", "value": "1"}]}})),
                r#"spec.securityContext.sysctls[0].name: Invalid value: "Bad": must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$"#,
            ),
            (
                pod(json!({"hostUsers": false, "hostPID": true})),
                "spec.HostPID: Forbidden: when `pod.Spec.HostUsers` is false",
            ),
            (
                pod_with(json!({"image": " nginx"})),
                "spec.containers[0].image: Invalid value: \" nginx\": must not have leading or trailing whitespace",
            ),
        ];
        for (object, said) in rows {
            assert_eq!(create("Pod", object.clone()), [*said]);
        }
        assert_eq!(create("Pod", pod(json!({}))), NOTHING);
    }

    /// A-84
    #[test]
    fn a_84_status_keeps_its_class_and_ended_containers_stay_ended() {
        let mut old = created("Pod", pod(json!({"restartPolicy": "Never"})));
        old["status"]["containerStatuses"] =
            json!([{"name": "app", "state": {"terminated": {"exitCode": 0}}}]);
        assert_eq!(update_status("Pod", &old, json!({"phase": "Succeeded"})), NOTHING);
        assert_eq!(
            update_status("Pod", &old, json!({"qosClass": "Burstable"})),
            ["status.qosClass: Invalid value: \"Burstable\": field is immutable"]
        );
        let restarted = json!([{"name": "app", "state": {"running": {}}}]);
        assert_eq!(
            update_status("Pod", &old, json!({"containerStatuses": restarted})),
            [
                "status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state"
            ]
        );
    }
}
