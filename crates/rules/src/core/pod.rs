//! Pods: defaults and checks that apply to pods but not to templates, and updates of the status.

use super::checks;
use super::{container, pod_spec, pod_template, pod_update};
use crate::{Generation, Rules};
use api::field::{At, Errors, Wrong};
use api::names;
use api::value::ValueExt;
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
    // A pod never has a negative grace period (T-API-7); templates keep it.
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

/// Without a request, the request is the limit.
fn requests_from_limits(resources: &mut Value) {
    let limits = resources.at(&["limits"]).and_then(Value::as_object).cloned();
    for (name, limit) in limits.into_iter().flatten() {
        resources.object("requests").set_default(&name, limit);
    }
}

/// Pod-level requests default to the sum of the containers' requests, or else to the limits.
fn default_pod_resources(spec: &mut Value) {
    let limited = spec
        .at(&["resources", "limits"])
        .and_then(Value::as_object)
        .is_some_and(|limits| !limits.is_empty());
    if !limited {
        return;
    }
    let needed = api::pod::json::container_requests(spec);
    let resources = spec.object("resources");
    for (name, amount) in needed {
        if name == "cpu" || name == "memory" {
            resources.object("requests").set_default(&name, amount.to_string());
        }
    }
    requests_from_limits(resources);
}

fn prepare_create(pod: &mut Value) {
    let mut status =
        json!({"phase": "Pending", "qosClass": api::pod::json::qos_class(pod).as_str()});
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

/// Turns `matchLabelKeys` into selectors with the pod's own label values.
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
    // Only stored pods have a resourceVersion.
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
                let detail = "must not be specified when serviceAccountName is not set";
                errors.forbidden(&token, detail);
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
            // Upstream reports this wrong path.
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
        errors.invalid_value(&class, class.text(), api::metadata::IMMUTABLE);
    }
    let spec = old.field("spec");
    for list in ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"] {
        state_changes(&status.field(list), &before.field(list), &spec, list, errors);
    }
    pod_addresses(&status, errors);
}

/// A terminated container that may not restart cannot run again.
fn state_changes(new: &At, old: &At, spec: &At, list: &str, errors: &mut Errors) {
    let containers = match list {
        "containerStatuses" => Some("containers"),
        "initContainerStatuses" => Some("initContainers"),
        _ => None,
    };
    // A rule that restarts all containers also restarts those that would not restart by themselves.
    if containers.is_some() && can_restart_all(spec) {
        return;
    }
    for (index, before) in old.items().enumerate() {
        let name = before.field("name").text();
        let state = before.field("state");
        let ended = state.field("terminated");
        let code = ended.field("exitCode").int().unwrap_or_default();
        if !ended.is_set() || containers.is_some_and(|list| restarts(spec, list, name, code)) {
            continue;
        }
        for now in new.items().filter(|now| now.field("name").text() == name) {
            if !now.field("state").field("terminated").is_set() {
                let path = format!("{}[{index}].state", new.path());
                let detail = "may not be transitioned to non-terminated state";
                errors.push(Wrong::Forbidden, path, None, detail);
            }
        }
    }
}

fn can_restart_all(spec: &At) -> bool {
    ["containers", "initContainers"].iter().any(|list| {
        spec.field(list).items().any(|container| {
            let rules = container.field("restartPolicyRules");
            rules.items().any(|rule| rule.field("action").text() == "RestartAllContainers")
        })
    })
}

/// Whether a container of `list` that exited with `code` may run again: by the first matching rule, by its own
/// policy, or by the pod's. Upstream: `ContainerShouldRestart`.
fn restarts(spec: &At, list: &str, name: &str, code: i64) -> bool {
    let containers = spec.field(list);
    let Some(container) = containers.items().find(|c| c.field("name").text() == name) else {
        return false;
    };
    let own = container.field("restartPolicy");
    let rules = container.field("restartPolicyRules");
    if own.is_set()
        && let Some(rule) = rules.items().find(|rule| matches_exit(rule, code))
        && rule.field("action").text() == "Restart"
    {
        return true;
    }
    let policy = |policy: &str| match policy {
        "OnFailure" => Some(code != 0),
        "Never" => Some(false),
        "Always" => Some(true),
        _ => None,
    };
    policy(own.text()).or_else(|| policy(spec.field("restartPolicy").text())).unwrap_or(true)
}

fn matches_exit(rule: &At, code: i64) -> bool {
    let codes = rule.field("exitCodes");
    let listed = codes.field("values").items().any(|value| value.int() == Some(code));
    match codes.field("operator").text() {
        "In" => listed,
        "NotIn" => !listed,
        _ => false,
    }
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
                let detail = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
                errors.invalid_value(&ip, address.text(), detail);
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

    /// NET-12: with `hostNetwork`, the host port is the container's port.
    #[test]
    fn a_147_pods_get_more_defaults_than_templates() {
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
    fn net_108_dns_settings_have_limits() {
        let servers = |count| (0..count).map(|n| format!("10.0.0.{n}")).collect::<Vec<_>>();
        let config = |servers: Vec<String>, searches: Vec<String>| {
            let config = json!({"nameservers": servers, "searches": searches});
            create("Pod", pod(json!({"dnsPolicy": "None", "dnsConfig": config})))
        };
        let names = |count| (0..count).map(|n| format!("s{n}")).collect::<Vec<_>>();
        assert_eq!(config(servers(3), names(32)), NOTHING);
        assert_eq!(config(servers(1), vec![".".into(), "_sip._tcp.example.com".into()]), NOTHING);
        let at_most = |found: Vec<String>, limit: &str| {
            assert!(found.len() == 1 && found[0].contains(limit), "{limit}: {found:?}");
        };
        at_most(config(servers(4), vec![]), "must not have more than 3 nameservers");
        at_most(config(servers(1), names(33)), "must not have more than 32 search paths");
        let label = "x".repeat(63);
        let long = format!("{label}.{label}.{label}.{}", "x".repeat(60));
        let characters = "must not have more than 2048 characters";
        at_most(config(servers(1), vec![long; 9]), characters);
        at_most(config(vec![], vec![]), "must provide at least one DNS nameserver");
    }

    #[test]
    fn a_147_match_label_keys_select_the_pods_own_labels() {
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

    #[test]
    fn a_92_invalid_pods_are_rejected_with_upstreams_messages() {
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
                "spec.HostPID: Forbidden: when `hostUsers` is false",
            ),
            (
                pod(json!({"hostUsers": false, "hostIPC": true})),
                "spec.HostIPC: Forbidden: when `hostUsers` is false",
            ),
            (
                pod(json!({"hostUsers": false, "hostNetwork": true})),
                "spec.hostNetwork: Forbidden: when `hostUsers` is false",
            ),
            (
                pod(json!({"hostUsers": false,
                    "volumes": [{"name": "disk", "persistentVolumeClaim": {"claimName": "c"}}],
                    "containers": [{"name": "app", "image": "nginx",
                        "volumeDevices": [{"name": "disk", "devicePath": "/dev/xvda"}]}]})),
                "spec.containers[0].volumeDevices: Forbidden: when `hostUsers` is false",
            ),
            (
                pod_with(json!({"image": " nginx"})),
                "spec.containers[0].image: Invalid value: \" nginx\": must not have leading or trailing whitespace",
            ),
        ];
        for (object, message) in rows {
            assert_eq!(create("Pod", object.clone()), [*message]);
        }
        assert_eq!(create("Pod", pod(json!({}))), NOTHING);
    }

    #[test]
    fn a_84_the_qos_class_is_immutable_and_terminated_containers_stay_terminated() {
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

    /// A-84: upstream's `ValidateContainerStateTransition`.
    #[test]
    fn a_84_a_terminated_container_runs_again_if_a_policy_or_rule_allows_it() {
        let rule = |action: &str, operator: &str, code: i64| json!([{"action": action, "exitCodes": {"operator": operator, "values": [code]}}]);
        let container = |policy: &str, rules: serde_json::Value| match policy {
            "" => json!({}),
            _ => json!({"restartPolicy": policy, "restartPolicyRules": rules}),
        };
        let none = json!([]);
        let rows = [
            ("Never", container("", none.clone()), 1, false),
            ("OnFailure", container("", none.clone()), 1, true),
            ("OnFailure", container("", none.clone()), 0, false),
            ("Always", container("", none.clone()), 0, true),
            ("Always", container("Never", none.clone()), 1, false),
            ("Never", container("OnFailure", none.clone()), 1, true),
            ("Never", container("OnFailure", none.clone()), 0, false),
            ("Never", container("Never", rule("Restart", "In", 42)), 42, true),
            ("Never", container("Never", rule("Restart", "In", 42)), 1, false),
            ("Never", container("Never", rule("Restart", "NotIn", 42)), 1, true),
            ("Never", container("Never", rule("RestartAllContainers", "In", 42)), 1, true),
        ];
        for (policy, container, code, allowed) in rows {
            let mut old = created("Pod", pod_with(container.clone()));
            old["spec"]["restartPolicy"] = json!(policy);
            let ended = json!([{"name": "app", "state": {"terminated": {"exitCode": code}}}]);
            old["status"]["containerStatuses"] = ended;
            let running = json!([{"name": "app", "state": {"running": {}}}]);
            let messages = update_status("Pod", &old, json!({"containerStatuses": running}));
            assert_eq!(messages.is_empty(), allowed, "{policy} {container} {code}: {messages:?}");
        }
        let mut old =
            created("Pod", pod_with(container("Never", rule("RestartAllContainers", "In", 42))));
        let ended = json!([{"name": "debug", "state": {"terminated": {"exitCode": 0}}}]);
        old["status"]["ephemeralContainerStatuses"] = ended;
        let running = json!([{"name": "debug", "state": {"running": {}}}]);
        let messages = update_status("Pod", &old, json!({"ephemeralContainerStatuses": running}));
        assert_eq!(messages.len(), 1, "ephemeral containers never run again");
    }
}
