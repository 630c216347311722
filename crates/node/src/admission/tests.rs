//! The rows of N-27, and preemption for critical pods.

use super::*;
use serde_json::{Value, json};

fn node() -> Node {
    typed::from_value(json!({
        "metadata": { "name": "n1", "labels": { "kubernetes.io/os": "linux", "disk": "ssd" } },
        "spec": { "unschedulable": true, "taints": [
            { "key": "a", "effect": "NoSchedule" }, { "key": "b", "effect": "NoExecute" }] },
        "status": { "allocatable": {
            "cpu": "940m", "memory": "1Gi", "ephemeral-storage": "10Gi", "pods": "3",
            "example.com/gpu": "1" } },
    }))
    .unwrap()
}

/// A pod that this node admits; `change` is merged into it.
fn pod(name: &str, change: Value) -> Arc<Pod> {
    let mut pod = json!({
        "metadata": { "name": name, "namespace": "default", "uid": format!("uid-{name}") },
        "spec": {
            "nodeName": "n1",
            "containers": [{ "name": "c", "resources": { "requests": { "cpu": "100m" } } }],
            "tolerations": [{ "operator": "Exists", "effect": "NoExecute" }],
        },
    });
    merge(&mut pod, change);
    Arc::new(typed::from_value(pod).unwrap())
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

fn with_requests(requests: Value) -> Value {
    json!({ "spec": { "containers": [{ "name": "c", "resources": { "requests": requests } }] } })
}

fn state<'a>(node: &'a Node, pressure: &'a [String]) -> NodeState<'a> {
    NodeState {
        node,
        pressure,
        sysctls: &[],
        apparmor: false,
        strict_groups: false,
        shutting_down: false,
    }
}

fn outcome(pod: &Pod, admitted: &[Arc<Pod>]) -> (String, String) {
    match decide(&state(&node(), &[]), admitted, pod) {
        Decision::Admit => ("".into(), "".into()),
        Decision::AdmitAfter(victims) => {
            let name = |pod: &Arc<Pod>| pod.metadata.name.clone().unwrap();
            ("after".into(), victims.iter().map(name).collect::<Vec<_>>().join(","))
        }
        Decision::Reject(Rejection { reason, message }) => (reason, message),
    }
}

#[test]
fn n_27_each_row_has_its_reason_and_message() {
    let rows = [
        (json!({}), "", ""),
        (
            json!({ "spec": { "securityContext": { "sysctls": [{ "name": "kernel.msgmax", "value": "1" }] } } }),
            "SysctlForbidden",
            "forbidden sysctl: \"kernel.msgmax\" not allowlisted",
        ),
        (
            json!({ "metadata": { "labels": { "kubernetes.io/os": "windows" } } }),
            "PodOSSelectorNodeLabelDoesNotMatch",
            "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
        ),
        (
            json!({ "spec": { "os": { "name": "windows" } } }),
            "PodOSNotSupported",
            "Failed to admit pod as the OS field doesn't match node OS",
        ),
        (
            json!({ "spec": { "securityContext": { "supplementalGroupsPolicy": "Strict" } } }),
            "SupplementalGroupsPolicyNotSupported",
            "SupplementalGroupsPolicy=Strict is not supported in this node",
        ),
        (
            with_requests(json!({ "cpu": "1" })),
            "OutOfcpu",
            "Node didn't have enough resource: cpu, requested: 1000, used: 100, capacity: 940",
        ),
        (
            with_requests(json!({ "memory": "2Gi" })),
            "OutOfmemory",
            "Node didn't have enough resource: memory, requested: 2147483648, used: 0, capacity: 1073741824",
        ),
        (
            with_requests(json!({ "ephemeral-storage": "11Gi" })),
            "OutOfephemeral-storage",
            "Node didn't have enough resource: ephemeral-storage, requested: 11811160064, used: 0, capacity: 10737418240",
        ),
        (
            with_requests(json!({ "example.com/gpu": "2" })),
            "OutOfexample.com/gpu",
            "Node didn't have enough resource: example.com/gpu, requested: 2, used: 0, capacity: 1",
        ),
        (
            json!({ "spec": { "nodeSelector": { "disk": "hdd" } } }),
            "NodeAffinity",
            "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
        ),
        (
            json!({ "spec": { "nodeName": "n2" } }),
            "NodeName",
            "Predicate NodeName failed: node(s) didn't match the requested node name",
        ),
        (
            json!({ "spec": { "containers": [{ "name": "c", "ports": [{ "containerPort": 1, "hostPort": 80 }] }] } }),
            "NodePorts",
            "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports",
        ),
        (
            json!({ "spec": { "tolerations": [] } }),
            "TaintToleration",
            "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate",
        ),
        (
            json!({ "spec": { "securityContext": { "appArmorProfile": { "type": "RuntimeDefault" } } } }),
            "AppArmor",
            "Cannot enforce AppArmor: AppArmor is not enabled on the host",
        ),
    ];
    let other = pod(
        "other",
        json!({ "spec": { "containers": [{
        "name": "c", "resources": { "requests": { "cpu": "100m" } },
        "ports": [{ "containerPort": 1, "hostPort": 80 }] }] } }),
    );
    for (change, reason, message) in rows {
        let (actual_reason, actual_message) =
            outcome(&pod("new", change.clone()), std::slice::from_ref(&other));
        assert_eq!(
            (actual_reason.as_str(), actual_message.as_str()),
            (reason, message),
            "{change}"
        );
    }
}

#[test]
fn n_27_a_pod_over_the_limit_is_out_of_pods() {
    let others: Vec<_> = (0..3).map(|i| pod(&format!("p{i}"), with_requests(json!({})))).collect();
    let (reason, message) = outcome(&pod("new", json!({})), &others);
    assert_eq!(reason, "OutOfpods");
    assert_eq!(
        message,
        "Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3"
    );
    // A pod that is already admitted is not counted twice.
    assert_eq!(outcome(&others[0], &others).0, "");
}

#[test]
fn n_28_resources_are_reported_before_placement_and_unknown_extended_ones_are_ignored() {
    let mut both = with_requests(json!({ "cpu": "2" }));
    merge(&mut both, json!({ "spec": { "nodeSelector": { "disk": "hdd" } } }));
    assert_eq!(outcome(&pod("new", both), &[]).0, "OutOfcpu");
    assert_eq!(outcome(&pod("new", with_requests(json!({ "example.com/gone": "5" }))), &[]).0, "");
    assert_eq!(
        outcome(&pod("new", with_requests(json!({ "hugepages-2Mi": "2Mi" }))), &[]).0,
        "OutOfhugepages-2Mi"
    );
}

#[test]
fn n_30_the_node_ignores_unschedulable_and_no_schedule_taints() {
    // The node of these tests is unschedulable and has a NoSchedule taint that no pod tolerates.
    assert_eq!(outcome(&pod("new", json!({})), &[]).0, "");
}

#[test]
fn t_node_81_memory_pressure_rejects_best_effort_pods_and_other_pressure_all_but_critical_pods() {
    let (node, best_effort) = (node(), pod("b", with_requests(json!({}))));
    let burstable = pod("u", json!({}));
    let tolerant = pod(
        "t",
        json!({ "spec": {
        "containers": [{ "name": "c" }], "tolerations": [{ "operator": "Exists" }] } }),
    );
    let critical = pod("k", json!({ "spec": { "priority": 2_000_000_000 } }));
    let memory = ["MemoryPressure".to_owned()];
    let disk = ["DiskPressure".to_owned()];
    let two = ["MemoryPressure".to_owned(), "DiskPressure".to_owned()];
    let rows: [(&Pod, &[String], Option<&str>); 8] = [
        (&best_effort, &memory, Some("The node had condition: [MemoryPressure]. ")),
        (&tolerant, &memory, None),
        (&burstable, &memory, None),
        (&critical, &disk, None),
        (&burstable, &disk, Some("The node had condition: [DiskPressure]. ")),
        (&tolerant, &disk, Some("The node had condition: [DiskPressure]. ")),
        (&burstable, &two, Some("The node had condition: [MemoryPressure DiskPressure]. ")),
        (&best_effort, &[], None),
    ];
    for (pod, pressure, expected) in rows {
        let decision = decide(&state(&node, pressure), &[], pod);
        let expected = expected.map_or(Decision::Admit, |message| {
            Decision::Reject(Rejection::new("Evicted", message))
        });
        assert_eq!(decision, expected, "{:?} under {pressure:?}", pod.metadata.name);
    }
}

#[test]
fn n_131_sysctls_are_forbidden_unless_safe_or_allowed() {
    let check = |name: &str, spec: Value, allowed: &[&str]| {
        let mut change = json!({ "spec": { "securityContext": { "sysctls": [{ "name": name, "value": "1" }] } } });
        merge(&mut change, json!({ "spec": spec }));
        let allowed: Vec<String> = allowed.iter().map(|pattern| pattern.to_string()).collect();
        sysctls::forbidden(&pod("p", change), &allowed).map(|rejection| rejection.message)
    };
    let host_net = json!({ "hostNetwork": true });
    let host_ipc = json!({ "hostIPC": true });
    let no = |text: &str| Some(format!("forbidden sysctl: {text}"));
    assert_eq!(check("kernel.shm_rmid_forced", json!({}), &[]), None);
    assert_eq!(check("net/ipv4/tcp_syncookies", json!({}), &[]), None);
    assert_eq!(check("kernel.msgmax", json!({}), &["kernel.msg*"]), None);
    assert_eq!(check("net.core.somaxconn", json!({}), &["net.core.somaxconn"]), None);
    assert_eq!(
        check("vm.swappiness", json!({}), &["vm.*"]),
        no("\"vm.swappiness\" not allowlisted")
    );
    assert_eq!(
        check("net.ipv4.tcp_syncookies", host_net, &[]),
        no("\"net.ipv4.tcp_syncookies\" not allowed with host Net enabled")
    );
    assert_eq!(
        check("kernel.shm_rmid_forced", host_ipc, &[]),
        no("\"kernel.shm_rmid_forced\" not allowed with host IPC enabled")
    );
}

#[test]
fn t_node_83_a_critical_pod_preempts_as_few_pods_as_possible() {
    let of_class = |name: &str, cpu: &str, class: &str| {
        let mut change = with_requests(json!({ "cpu": cpu }));
        merge(&mut change, json!({ "status": { "qosClass": class } }));
        pod(name, change)
    };
    let others = [
        of_class("guaranteed", "300m", "Guaranteed"),
        of_class("small", "100m", "Burstable"),
        of_class("large", "400m", "Burstable"),
    ];
    let critical = |cpu: &str| {
        let mut change = with_requests(json!({ "cpu": cpu }));
        merge(&mut change, json!({ "spec": { "priority": 2_000_000_000 } }));
        pod("critical", change)
    };
    let wide = {
        let mut node = node();
        let allocatable = node.status.as_mut().unwrap().allocatable.as_mut().unwrap();
        allocatable.insert("pods".into(), serde_json::from_value(json!("10")).unwrap());
        node
    };
    let victims = |cpu: &str| match decide(&state(&wide, &[]), &others, &critical(cpu)) {
        Decision::AdmitAfter(victims) => victims
            .iter()
            .map(|pod| pod.metadata.name.clone().unwrap())
            .collect::<Vec<_>>()
            .join(" "),
        other => format!("{other:?}"),
    };
    // 140m are free.
    assert_eq!(victims("200m"), "small");
    assert_eq!(victims("400m"), "large");
    assert_eq!(victims("600m"), "large small");
    assert_eq!(victims("900m"), "large small guaranteed");
    assert!(
        victims("2")
            .contains("no set of running pods found to reclaim resources: [(res: cpu, q: 1060), ]")
    );
    // No pod is preempted for one that would be rejected anyway.
    let mut hopeless = with_requests(json!({ "cpu": "500m" }));
    merge(
        &mut hopeless,
        json!({ "spec": { "priority": 2_000_000_000, "nodeSelector": { "disk": "hdd" } } }),
    );
    let decision = decide(&state(&wide, &[]), &others, &pod("hopeless", hopeless));
    assert!(matches!(decision, Decision::Reject(r) if r.reason == "NodeAffinity"));
}

/// N-27: terminal pods use no capacity unless containers still run, whichever client wrote the phase.
#[test]
fn n_27_a_finished_pod_uses_no_capacity() {
    let running = json!([{ "name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
        "state": { "running": {} } }]);
    let exited = json!([{ "name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
        "state": { "terminated": { "exitCode": 0 } } }]);
    let with = |phase: &str, field: &str, containers: &Value| {
        uses_capacity(&pod("a", json!({ "status": { "phase": phase, field: containers } })))
    };
    assert!(uses_capacity(&pod("a", json!({}))), "not started");
    for phase in ["Pending", "Running", "Unknown"] {
        assert!(with(phase, "containerStatuses", &exited), "{phase}");
    }
    for phase in ["Succeeded", "Failed"] {
        assert!(!with(phase, "containerStatuses", &exited), "{phase}");
        assert!(!with(phase, "containerStatuses", &Value::Null), "{phase}: rejected");
        for field in ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"] {
            assert!(with(phase, field, &running), "{phase} {field}");
        }
    }
}
