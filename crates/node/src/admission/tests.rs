//! Rows of N-27, one by one, and who makes room for critical pods.

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

/// A pod that tolerates what there is and asks for little; `change` is merged into it.
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

fn asks(requests: Value) -> Value {
    json!({ "spec": { "containers": [{ "name": "c", "resources": { "requests": requests } }] } })
}

fn here<'a>(node: &'a Node, pressure: &'a [String]) -> Here<'a> {
    Here {
        node,
        pressure,
        sysctls: &[],
        apparmor: false,
        strict_groups: false,
        shutting_down: false,
    }
}

fn outcome(pod: &Pod, admitted: &[Arc<Pod>]) -> (String, String) {
    match decide(&here(&node(), &[]), admitted, pod) {
        Verdict::Admit => ("".into(), "".into()),
        Verdict::AdmitAfter(victims) => {
            let name = |pod: &Arc<Pod>| pod.metadata.name.clone().unwrap();
            ("after".into(), victims.iter().map(name).collect::<Vec<_>>().join(","))
        }
        Verdict::Reject(Rejection { reason, message }) => (reason, message),
    }
}

#[test]
fn n_27_each_row_has_its_reason_and_its_text() {
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
            asks(json!({ "cpu": "1" })),
            "OutOfcpu",
            "Node didn't have enough resource: cpu, requested: 1000, used: 100, capacity: 940",
        ),
        (
            asks(json!({ "memory": "2Gi" })),
            "OutOfmemory",
            "Node didn't have enough resource: memory, requested: 2147483648, used: 0, capacity: 1073741824",
        ),
        (
            asks(json!({ "ephemeral-storage": "11Gi" })),
            "OutOfephemeral-storage",
            "Node didn't have enough resource: ephemeral-storage, requested: 11811160064, used: 0, capacity: 10737418240",
        ),
        (
            asks(json!({ "example.com/gpu": "2" })),
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
        let (said, text) = outcome(&pod("new", change.clone()), std::slice::from_ref(&other));
        assert_eq!((said.as_str(), text.as_str()), (reason, message), "{change}");
    }
}

#[test]
fn n_27_a_pod_too_many_is_out_of_pods() {
    let others: Vec<_> = (0..3).map(|i| pod(&format!("p{i}"), asks(json!({})))).collect();
    let (reason, message) = outcome(&pod("new", json!({})), &others);
    assert_eq!(reason, "OutOfpods");
    assert_eq!(
        message,
        "Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3"
    );
    // Deciding again about a pod that is here already does not count it twice.
    assert_eq!(outcome(&others[0], &others).0, "");
}

#[test]
fn n_28_resources_are_reported_before_placement_and_unknown_extended_ones_are_ignored() {
    let mut both = asks(json!({ "cpu": "2" }));
    merge(&mut both, json!({ "spec": { "nodeSelector": { "disk": "hdd" } } }));
    assert_eq!(outcome(&pod("new", both), &[]).0, "OutOfcpu");
    assert_eq!(outcome(&pod("new", asks(json!({ "example.com/gone": "5" }))), &[]).0, "");
    assert_eq!(
        outcome(&pod("new", asks(json!({ "hugepages-2Mi": "2Mi" }))), &[]).0,
        "OutOfhugepages-2Mi"
    );
}

#[test]
fn n_30_unschedulable_and_no_schedule_taints_are_not_the_nodes_business() {
    // The node of these tests is unschedulable and has a NoSchedule taint nobody tolerates.
    assert_eq!(outcome(&pod("new", json!({})), &[]).0, "");
}

#[test]
fn t_node_81_memory_pressure_refuses_best_effort_and_other_pressure_everybody_but_critical_ones() {
    let (node, best_effort) = (node(), pod("b", asks(json!({}))));
    let burstable = pod("u", json!({}));
    let bears = pod(
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
        (&bears, &memory, None),
        (&burstable, &memory, None),
        (&critical, &disk, None),
        (&burstable, &disk, Some("The node had condition: [DiskPressure]. ")),
        (&bears, &disk, Some("The node had condition: [DiskPressure]. ")),
        (&burstable, &two, Some("The node had condition: [MemoryPressure DiskPressure]. ")),
        (&best_effort, &[], None),
    ];
    for (pod, pressure, expected) in rows {
        let verdict = decide(&here(&node, pressure), &[], pod);
        let expected = expected
            .map_or(Verdict::Admit, |said| Verdict::Reject(Rejection::new("Evicted", said)));
        assert_eq!(verdict, expected, "{:?} under {pressure:?}", pod.metadata.name);
    }
}

#[test]
fn n_131_sysctls_are_safe_allowed_or_forbidden() {
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
fn t_node_83_a_critical_pod_takes_the_place_of_the_least_that_will_do() {
    let of_class = |name: &str, cpu: &str, class: &str| {
        let mut change = asks(json!({ "cpu": cpu }));
        merge(&mut change, json!({ "status": { "qosClass": class } }));
        pod(name, change)
    };
    let others = [
        of_class("guaranteed", "300m", "Guaranteed"),
        of_class("small", "100m", "Burstable"),
        of_class("large", "400m", "Burstable"),
    ];
    let critical = |cpu: &str| {
        let mut change = asks(json!({ "cpu": cpu }));
        merge(&mut change, json!({ "spec": { "priority": 2_000_000_000 } }));
        pod("critical", change)
    };
    let wide = {
        let mut node = node();
        let allocatable = node.status.as_mut().unwrap().allocatable.as_mut().unwrap();
        allocatable.insert("pods".into(), serde_json::from_value(json!("10")).unwrap());
        node
    };
    let victims = |cpu: &str| match decide(&here(&wide, &[]), &others, &critical(cpu)) {
        Verdict::AdmitAfter(victims) => victims
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
    // Nobody goes for a pod that would not be admitted anyway.
    let mut hopeless = asks(json!({ "cpu": "500m" }));
    merge(
        &mut hopeless,
        json!({ "spec": { "priority": 2_000_000_000, "nodeSelector": { "disk": "hdd" } } }),
    );
    let verdict = decide(&here(&wide, &[]), &others, &pod("hopeless", hopeless));
    assert!(matches!(verdict, Verdict::Reject(r) if r.reason == "NodeAffinity"));
}
