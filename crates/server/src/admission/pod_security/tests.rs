//! Tables of what each level refuses, with upstream's messages.

use super::*;
use serde_json::json;

fn pod(spec: Value) -> Value {
    json!({"metadata": {"name": "p"}, "spec": spec})
}

fn with(context: Value) -> Value {
    pod(json!({"containers": [{"name": "a", "securityContext": context}]}))
}

fn refusal(level: Level, version: Version, pod: &Value) -> String {
    Policy { level, version }.violations(pod).unwrap_or_default()
}

fn baseline(pod: &Value) -> String {
    refusal(Level::Baseline, LATEST, pod)
}

#[test]
fn a_158_baseline_refuses_access_to_the_host() {
    let containers = json!([{"name": "a"}]);
    for (pod, violations) in [
        (pod(json!({"containers": containers})), ""),
        (
            with(json!({"privileged": true})),
            "privileged (container \"a\" must not set securityContext.privileged=true)",
        ),
        (with(json!({"privileged": false, "runAsUser": 0})), ""),
        (
            pod(
                json!({"hostNetwork": true, "hostPID": true, "hostIPC": true, "containers": containers}),
            ),
            "host namespaces (hostNetwork=true, hostPID=true, hostIPC=true)",
        ),
        (
            pod(
                json!({"volumes": [{"name": "v", "hostPath": {}}, {"name": "w", "hostPath": {}}, {"name": "x", "emptyDir": {}}]}),
            ),
            "hostPath volumes (volumes \"v\", \"w\")",
        ),
        (
            pod(
                json!({"containers": [{"name": "a", "ports": [{"hostPort": 80}, {"hostPort": 443}]}, {"name": "b", "ports": [{"hostPort": 80}]}]}),
            ),
            "hostPort (containers \"a\", \"b\" use hostPorts 443, 80)",
        ),
        (
            with(json!({"capabilities": {"add": ["NET_ADMIN", "CHOWN"]}})),
            "non-default capabilities (container \"a\" must not include \"NET_ADMIN\" in securityContext.capabilities.add)",
        ),
        (
            with(json!({"procMount": "Unmasked"})),
            "procMount (container \"a\" must not set securityContext.procMount to \"Unmasked\")",
        ),
        (
            pod(json!({"securityContext": {"seccompProfile": {"type": "Unconfined"}}})),
            "seccompProfile (pod must not set securityContext.seccompProfile.type to \"Unconfined\")",
        ),
        (
            pod(
                json!({"securityContext": {"sysctls": [{"name": "kernel.msgmax"}, {"name": "net.ipv4.tcp_rmem"}]}}),
            ),
            "forbidden sysctls (kernel.msgmax)",
        ),
        (
            pod(
                json!({"securityContext": {"seLinuxOptions": {"type": "spc_t", "role": "r"}}, "containers": [
                {"name": "a", "securityContext": {"seLinuxOptions": {"user": "u"}}}]}),
            ),
            "seLinuxOptions (pod and container \"a\" set forbidden securityContext.seLinuxOptions: type \"spc_t\"; user may not be set; role may not be set)",
        ),
        (
            with(json!({"appArmorProfile": {"type": "Unconfined"}})),
            "forbidden AppArmor profile (container \"a\" must not set AppArmor profile type to \"Unconfined\")",
        ),
        (
            with(json!({"windowsOptions": {"hostProcess": true}})),
            "hostProcess (container \"a\" must not set securityContext.windowsOptions.hostProcess=true)",
        ),
        (
            pod(
                json!({"containers": [{"name": "a", "livenessProbe": {"httpGet": {"host": "example.com"}}}]}),
            ),
            "probe or lifecycle host (container \"a\" uses probe or lifecycle host \"example.com\")",
        ),
    ] {
        assert_eq!(baseline(&pod), violations, "{pod}");
    }
}

#[test]
fn a_158_a_plain_pod_violates_restricted_in_four_ways() {
    let plain =
        pod(json!({"containers": [{"name": "app"}], "volumes": [{"name": "t", "projected": {}}]}));
    assert_eq!(
        refusal(Level::Restricted, LATEST, &plain),
        "allowPrivilegeEscalation != false (container \"app\" must set securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (container \"app\" must set securityContext.capabilities.drop=[\"ALL\"]), runAsNonRoot != true (pod or container \"app\" must set securityContext.runAsNonRoot=true), seccompProfile (pod or container \"app\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")"
    );
}

fn careful() -> Value {
    pod(json!({
        "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "a", "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
        }}],
    }))
}

#[test]
fn a_158_restricted_admits_hardened_pods_and_names_each_violation() {
    assert_eq!(refusal(Level::Restricted, LATEST, &careful()), "");
    for (path, value, violations) in [
        (
            "/spec/securityContext/runAsNonRoot",
            json!(false),
            "runAsNonRoot != true (pod must not set securityContext.runAsNonRoot=false)",
        ),
        (
            "/spec/securityContext/seccompProfile/type",
            json!("Unconfined"),
            "seccompProfile (pod must not set securityContext.seccompProfile.type to \"Unconfined\")",
        ),
        (
            "/spec/containers/0/securityContext/capabilities/add",
            json!(["CHOWN"]),
            "unrestricted capabilities (container \"a\" must not include \"CHOWN\" in securityContext.capabilities.add)",
        ),
        (
            "/spec/containers/0/securityContext/allowPrivilegeEscalation",
            json!(true),
            "allowPrivilegeEscalation != false (container \"a\" must set securityContext.allowPrivilegeEscalation=false)",
        ),
    ] {
        let mut pod = careful();
        *pod.pointer_mut(path).unwrap() = value;
        assert_eq!(refusal(Level::Restricted, LATEST, &pod), violations);
    }
    let mut root = careful();
    root["spec"]["securityContext"]["runAsUser"] = 0.into();
    root["spec"]["volumes"] = json!([{"name": "h", "hostPath": {}}, {"name": "n", "nfs": {}}]);
    assert_eq!(
        refusal(Level::Restricted, LATEST, &root),
        "restricted volume types (volumes \"h\", \"n\" use restricted volume types \"hostPath\", \"nfs\"), runAsUser=0 (pod must not set runAsUser=0)"
    );
}

#[test]
fn a_158_a_namespace_can_require_the_standard_of_an_older_version() {
    let probe = pod(
        json!({"containers": [{"name": "a", "livenessProbe": {"tcpSocket": {"host": "1.1.1.1"}}}]}),
    );
    assert_eq!(refusal(Level::Baseline, Version(33), &probe), "");
    assert_ne!(refusal(Level::Baseline, Version(34), &probe), "");
    for (text, version) in [
        ("latest", Some(LATEST)),
        ("v1.24", Some(Version(24))),
        ("v1.024", None),
        ("v2.1", None),
        ("v1.+5", None),
        ("", None),
    ] {
        assert_eq!(Version::parse(text), version, "{text}");
    }
    let named = |level, version| Policy::parse(level, version, Level::Restricted).to_string();
    assert_eq!(named(Some("baseline"), Some("v1.24")), "baseline:v1.24");
    assert_eq!(named(None, None), "privileged:latest");
    assert_eq!(named(Some("typo"), None), "restricted:latest");
}

#[test]
fn a_158_only_updates_that_can_add_violations_are_checked() {
    let old = careful();
    let mut labelled = old.clone();
    labelled["metadata"]["labels"] = json!({"a": "b"});
    assert!(!changes_matter(&labelled, &old));
    let mut debugged = old.clone();
    debugged["spec"]["ephemeralContainers"] = json!([{"name": "debug"}]);
    assert!(changes_matter(&debugged, &old));
}
