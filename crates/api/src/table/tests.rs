//! The tables of all kinds compared with upstream's, and rows of sample objects (A-192, A-196).

use super::*;
use serde_json::json;

/// A kind's headings: `Name`, `Name:i` for types other than string, `Name*` if only for `-o wide`.
fn headings(group: &str, kind: &str) -> String {
    let headings = of(group, kind).iter().map(|printed| {
        let column = printed.column();
        let mut shown = column.name.into_owned();
        match &*column.r#type {
            "string" => {}
            other => shown.push_str(&format!(":{}", &other[..1])),
        }
        if column.priority > 0 {
            shown.push('*');
        }
        shown
    });
    headings.collect::<Vec<_>>().join("; ")
}

fn row(group: &str, kind: &str, object: Value) -> Vec<Value> {
    print(of(group, kind), &object, "2026-01-01T01:00:00Z".parse().unwrap())
}

#[test]
fn a_196_headings_equal_upstreams() {
    for (group, kind, shown) in [
        (
            "",
            "Pod",
            "Name; Ready; Status; Restarts; Age; IP*; Node*; Nominated Node*; Readiness Gates*",
        ),
        ("", "PodTemplate", "Name; Containers; Images; Pod Labels"),
        (
            "",
            "ReplicationController",
            "Name; Desired:i; Current:i; Ready:i; Age; Containers*; Images*; Selector*",
        ),
        (
            "apps",
            "ReplicaSet",
            "Name; Desired:i; Current:i; Ready:i; Age; Containers*; Images*; Selector*",
        ),
        (
            "apps",
            "Deployment",
            "Name; Ready; Up-to-date; Available; Age; Containers*; Images*; Selector*",
        ),
        ("apps", "StatefulSet", "Name; Ready; Age; Containers*; Images*"),
        (
            "apps",
            "DaemonSet",
            "Name; Desired:i; Current:i; Ready:i; Up-to-date:i; Available:i; Node Selector; Age; Containers*; Images*; Selector*",
        ),
        ("apps", "ControllerRevision", "Name; Controller; Revision; Age"),
        (
            "batch",
            "Job",
            "Name; Status; Completions; Duration; Age; Containers*; Images*; Selector*",
        ),
        (
            "batch",
            "CronJob",
            "Name; Schedule; Timezone; Suspend:b; Active:i; Last Schedule; Age; Containers*; Images*; Selector*",
        ),
        ("", "Service", "Name; Type; Cluster-IP; External-IP; Port(s); Age; Selector*"),
        ("", "Endpoints", "Name; Endpoints; Age"),
        ("discovery.k8s.io", "EndpointSlice", "Name; AddressType; Ports; Endpoints; Age"),
        (
            "",
            "Node",
            "Name; Status; Roles; Age; Version; Internal-IP*; External-IP*; OS-Image*; Kernel-Version*; Container-Runtime*",
        ),
        ("", "Namespace", "Name; Status; Age"),
        (
            "",
            "Event",
            "Last Seen; Type; Reason; Object; Subobject*; Source*; Message; First Seen*; Count*; Name*",
        ),
        (
            "events.k8s.io",
            "Event",
            "Last Seen; Type; Reason; Object; Subobject*; Source*; Message; First Seen*; Count*; Name*",
        ),
        ("", "ConfigMap", "Name; Data; Age"),
        ("", "Secret", "Name; Type; Data; Age"),
        ("", "ServiceAccount", "Name; Age"),
        (
            "",
            "PersistentVolume",
            "Name; Capacity; Access Modes; Reclaim Policy; Status; Claim; StorageClass; VolumeAttributesClass; Reason; Age; VolumeMode*",
        ),
        (
            "",
            "PersistentVolumeClaim",
            "Name; Status; Volume; Capacity; Access Modes; StorageClass; VolumeAttributesClass; Age; VolumeMode*",
        ),
        (
            "storage.k8s.io",
            "StorageClass",
            "Name; Provisioner; ReclaimPolicy; VolumeBindingMode; AllowVolumeExpansion; Age",
        ),
        ("storage.k8s.io", "CSIStorageCapacity", "Name; Created At:d"),
        ("networking.k8s.io", "Ingress", "Name; Class; Hosts; Address; Ports; Age"),
        (
            "policy",
            "PodDisruptionBudget",
            "Name; Min Available; Max Unavailable; Allowed Disruptions:i; Age",
        ),
        ("coordination.k8s.io", "Lease", "Name; Holder; Age"),
        ("", "ResourceQuota", "Name; Request; Limit; Age"),
        ("rbac.authorization.k8s.io", "Role", "Name; Created At:d"),
        (
            "rbac.authorization.k8s.io",
            "RoleBinding",
            "Name; Role; Age; Users*; Groups*; ServiceAccounts*",
        ),
        ("", "LimitRange", "Name; Created At:d"),
        ("apiextensions.k8s.io", "CustomResourceDefinition", "Name; Created At:d"),
        ("apiregistration.k8s.io", "APIService", "Name; Service; Available; Age"),
    ] {
        assert_eq!(headings(group, kind), shown, "{kind}");
    }
}

#[test]
fn a_192_every_table_names_its_objects_and_explains_its_columns() {
    for (group, kind, printed) in TABLES {
        let columns: Vec<Column> = printed.iter().map(Printed::column).collect();
        let names = columns.iter().filter(|column| column.format == "name").count();
        assert_eq!(names, 1, "{kind}.{group}");
        for column in &columns {
            assert!(column.description.ends_with('.'), "{kind}.{group}: {}", column.name);
        }
        // Empty and malformed objects are printed as well.
        for object in [json!({}), json!(null), json!({"metadata": 1, "spec": [], "status": "x"})] {
            assert_eq!(row(group, kind, object).len(), columns.len());
        }
    }
}

#[test]
fn no_kind_has_two_tables() {
    for (i, (group, kind, _)) in TABLES.iter().enumerate() {
        let again = TABLES[i + 1..].iter().any(|(g, k, _)| g == group && k == kind);
        assert!(!again, "{kind}.{group} twice");
    }
}

#[test]
fn a_196_kinds_without_a_table_show_when_they_were_created() {
    let role = json!({"metadata": {"name": "r", "creationTimestamp": "2026-01-01T00:00:00Z"}});
    assert_eq!(row("rbac.authorization.k8s.io", "Role", role), ["r", "2026-01-01T00:00:00Z"]);
}

#[test]
fn a_196_scale_shows_desired_and_available_replicas() {
    let scale =
        json!({"metadata": {"name": "s"}, "spec": {"replicas": 3}, "status": {"replicas": 2}});
    let cells = scale_cells(&scale, Timestamp::UNIX_EPOCH);
    assert_eq!(Value::from(cells), json!(["s", 3, 2, "<unknown>"]));
    assert_eq!(scale_columns().len(), 4);
}

/// One row per case: kind, object, and the cells from the second on.
#[test]
fn a_196_rows_equal_upstreams() {
    let created = "2026-01-01T00:50:00Z";
    for (group, kind, mut object, cells) in cases() {
        object["metadata"]["name"] = "x".into();
        object["metadata"]["creationTimestamp"] = created.into();
        let shown = row(group, kind, object);
        assert_eq!(Value::from(&shown[1..]), cells, "{kind}");
    }
}

#[rustfmt::skip]
fn cases() -> Vec<(&'static str, &'static str, Value, Value)> {
    let template = json!({"metadata": {"labels": {"l": "m"}}, "spec": {"containers": [{"name": "a", "image": "i"}, {"name": "b", "image": "j"}], "nodeSelector": {"d": "e"}}});
    let selector = json!({"matchLabels": {"l": "m"}});
    vec![
        ("apps", "Deployment", json!({"spec": {"replicas": 3, "selector": selector, "template": template}, "status": {"readyReplicas": 1, "updatedReplicas": 2, "availableReplicas": 1}}),
            json!(["1/3", 2, 1, "10m", "a,b", "i,j", "l=m"])),
        ("apps", "StatefulSet", json!({"spec": {"replicas": 2, "template": template}}), json!(["0/2", "10m", "a,b", "i,j"])),
        ("apps", "DaemonSet", json!({"spec": {"selector": selector, "template": template}, "status": {"desiredNumberScheduled": 1}}),
            json!([1, 0, 0, 0, 0, "d=e", "10m", "a,b", "i,j", "l=m"])),
        ("", "ReplicationController", json!({"spec": {"replicas": 2, "selector": {"l": "m"}, "template": template}, "status": {"replicas": 1}}),
            json!([2, 1, 0, "10m", "a,b", "i,j", "l=m"])),
        ("", "PodTemplate", json!({"template": template}), json!(["a,b", "i,j", "l=m"])),
        ("apps", "ControllerRevision", json!({"revision": 2, "metadata": {"ownerReferences": [{"kind": "StatefulSet", "apiVersion": "apps/v1", "name": "web", "controller": true}]}}),
            json!(["statefulset.apps/web", 2, "10m"])),
        ("batch", "Job", json!({"spec": {"completions": 4}, "status": {"succeeded": 1, "startTime": "2026-01-01T00:55:00Z"}}),
            json!(["Running", "1/4", "5m", "10m", "", "", "<none>"])),
        ("batch", "Job", json!({"spec": {"parallelism": 3}, "status": {"conditions": [{"type": "Complete", "status": "True"}], "startTime": "2026-01-01T00:55:00Z", "completionTime": "2026-01-01T00:55:07Z"}}),
            json!(["Complete", "0/1 of 3", "7s", "10m", "", "", "<none>"])),
        ("batch", "Job", json!({"metadata": {"deletionTimestamp": "2026-01-01T00:55:00Z"}, "spec": {"parallelism": 1}}),
            json!(["Terminating", "0/1", "", "10m", "", "", "<none>"])),
        ("batch", "CronJob", json!({"spec": {"schedule": "* * * * *", "suspend": true}, "status": {"active": [{}], "lastScheduleTime": "2026-01-01T00:59:00Z"}}),
            json!(["* * * * *", "<none>", "True", 1, "60s", "10m", "", "", "<none>"])),
        ("", "Service", json!({"spec": {"type": "ClusterIP", "clusterIP": "None", "clusterIPs": ["None"]}}),
            json!(["ClusterIP", "None", "<none>", "<none>", "10m", "<none>"])),
        ("", "Service", json!({"spec": {"type": "NodePort", "clusterIPs": ["10.0.0.1"], "externalIPs": ["1.1.1.1"], "ports": [{"port": 80, "nodePort": 30080, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}], "selector": {"b": "c", "a": "b"}}}),
            json!(["NodePort", "10.0.0.1", "1.1.1.1", "80:30080/TCP,53/UDP", "10m", "a=b,b=c"])),
        ("", "Service", json!({"spec": {"type": "LoadBalancer", "clusterIPs": ["10.0.0.1"]}}),
            json!(["LoadBalancer", "10.0.0.1", "<pending>", "<none>", "10m", "<none>"])),
        ("", "Service", json!({"spec": {"type": "LoadBalancer", "clusterIPs": ["10.0.0.1"], "externalIPs": ["1.1.1.1"]}, "status": {"loadBalancer": {"ingress": [{"ip": "9.9.9.9"}, {"hostname": "lb"}]}}}),
            json!(["LoadBalancer", "10.0.0.1", "9.9.9.9,lb,1.1.1.1", "<none>", "10m", "<none>"])),
        ("", "Service", json!({"spec": {"type": "ExternalName", "externalName": "example.com"}}),
            json!(["ExternalName", "<none>", "example.com", "<none>", "10m", "<none>"])),
        ("", "Endpoints", json!({}), json!(["<none>", "10m"])),
        ("", "Endpoints", json!({"subsets": [{"addresses": [{"ip": "1.1.1.1"}, {"ip": "fd::1"}], "ports": [{"port": 80}, {"port": 81}]}]}),
            json!(["1.1.1.1:80,[fd::1]:80,1.1.1.1:81 + 1 more...", "10m"])),
        ("discovery.k8s.io", "EndpointSlice", json!({"addressType": "IPv4", "ports": [{"port": 80}, {"name": "n"}, {}], "endpoints": [{"addresses": ["1.1.1.1"]}]}),
            json!(["IPv4", "80,n,*", "1.1.1.1", "10m"])),
        ("discovery.k8s.io", "EndpointSlice", json!({"addressType": "IPv4"}), json!(["IPv4", "<unset>", "<unset>", "10m"])),
        ("", "Node", json!({}), json!(["Unknown", "<none>", "10m", "", "<none>", "<none>", "<unknown>", "<unknown>", "<unknown>"])),
        ("", "Node", json!({"metadata": {"labels": {"node-role.kubernetes.io/worker": "", "kubernetes.io/role": "a", "node-role.kubernetes.io/": ""}}, "spec": {"unschedulable": true}, "status": {"conditions": [{"type": "Ready", "status": "False"}], "addresses": [{"type": "InternalIP", "address": "10.0.0.9"}], "nodeInfo": {"kubeletVersion": "v1.36.0", "osImage": "Debian", "kernelVersion": "6.1", "architecture": "amd64", "containerRuntimeVersion": "r://1"}}}),
            json!(["NotReady,SchedulingDisabled", "a,worker", "10m", "v1.36.0", "10.0.0.9", "<none>", "Debian", "6.1 (amd64)", "r://1"])),
        ("", "ConfigMap", json!({"data": {"a": "", "b": ""}, "binaryData": {"c": ""}}), json!([3, "10m"])),
        ("", "Secret", json!({"type": "Opaque", "data": {"a": ""}}), json!(["Opaque", 1, "10m"])),
        ("", "PersistentVolume", json!({"spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany", "ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Retain", "claimRef": {"namespace": "n", "name": "c"}, "volumeMode": "Filesystem"}, "status": {"phase": "Bound"}}),
            json!(["1Gi", "RWO,RWX", "Retain", "Bound", "n/c", "", "<unset>", "", "10m", "Filesystem"])),
        ("", "PersistentVolumeClaim", json!({"spec": {"storageClassName": "s"}, "status": {"phase": "Pending"}}),
            json!(["Pending", "", "", "", "s", "<unset>", "10m", "<unset>"])),
        ("", "PersistentVolumeClaim", json!({"metadata": {"deletionTimestamp": "2026-01-01T00:55:00Z"}, "spec": {"volumeName": "v"}, "status": {"phase": "Bound", "capacity": {"storage": "2Gi"}, "accessModes": ["ReadWriteOnce"]}}),
            json!(["Terminating", "v", "2Gi", "RWO", "", "<unset>", "10m", "<unset>"])),
        ("storage.k8s.io", "StorageClass", json!({"provisioner": "p", "allowVolumeExpansion": true}), json!(["p", "Delete", "Immediate", true, "10m"])),
        ("storage.k8s.io", "CSIDriver", json!({"spec": {"tokenRequests": [{"audience": "a"}], "attachRequired": false, "volumeLifecycleModes": ["Persistent"]}}),
            json!([false, false, false, "a", false, "Persistent", "10m"])),
        ("storage.k8s.io", "CSINode", json!({"spec": {"drivers": [{}, {}]}}), json!([2, "10m"])),
        ("networking.k8s.io", "Ingress", json!({"spec": {"rules": [{"host": "a"}, {"host": "b"}, {"host": "c"}, {"host": "d"}], "tls": [{}]}, "status": {"loadBalancer": {"ingress": [{"ip": "1.1.1.1"}]}}}),
            json!(["<none>", "a,b,c + 1 more...", "1.1.1.1", "80, 443", "10m"])),
        ("networking.k8s.io", "Ingress", json!({"spec": {"rules": [{}], "ingressClassName": "n"}}), json!(["n", "*", "", "80", "10m"])),
        ("networking.k8s.io", "IngressClass", json!({"spec": {"controller": "c", "parameters": {"apiGroup": "g", "kind": "K", "name": "n"}}}), json!(["c", "K.g/n", "10m"])),
        ("networking.k8s.io", "NetworkPolicy", json!({"spec": {"podSelector": {}}}), json!(["<none>", "10m"])),
        ("networking.k8s.io", "ServiceCIDR", json!({"spec": {"cidrs": ["10.0.0.0/8", "fd::/64"]}}), json!(["10.0.0.0/8,fd::/64", "10m"])),
        ("networking.k8s.io", "IPAddress", json!({"spec": {"parentRef": {"resource": "services", "namespace": "n", "name": "s"}}}), json!(["services/n/s", "10m"])),
        ("policy", "PodDisruptionBudget", json!({"spec": {"minAvailable": "50%"}, "status": {"disruptionsAllowed": 1}}), json!(["50%", "N/A", 1, "10m"])),
        ("policy", "PodDisruptionBudget", json!({"spec": {"maxUnavailable": 2}}), json!(["N/A", "2", 0, "10m"])),
        ("autoscaling", "HorizontalPodAutoscaler", json!({"spec": {"scaleTargetRef": {"kind": "Deployment", "name": "d"}, "maxReplicas": 5, "metrics": [
                {"type": "Resource", "resource": {"name": "cpu", "target": {"averageUtilization": 80}}}, {"type": "Pods", "pods": {"target": {"averageValue": "10"}}}, {"type": "External"}]},
                "status": {"currentReplicas": 2, "currentMetrics": [{"type": "Resource", "resource": {"current": {"averageUtilization": 10}}}]}}),
            json!(["Deployment/d", "cpu: 10%/80%, <unknown>/10 + 1 more...", "<unset>", 5, 2, "10m"])),
        ("autoscaling", "HorizontalPodAutoscaler", json!({"spec": {"minReplicas": 1, "targetCPUUtilizationPercentage": 50}}), json!(["/", "cpu: <unknown>/50%", "1", 0, 0, "10m"])),
        ("", "ResourceQuota", json!({"status": {"hard": {"pods": "10", "limits.cpu": "2"}, "used": {"pods": "1"}}}), json!(["pods: 1/10", "limits.cpu: 0/2", "10m"])),
        ("scheduling.k8s.io", "PriorityClass", json!({"value": 7}), json!([7, false, "10m", "PreemptLowerPriority"])),
        ("certificates.k8s.io", "CertificateSigningRequest", json!({"spec": {"signerName": "s", "username": "u", "expirationSeconds": 3600}, "status": {"conditions": [{"type": "Approved"}], "certificate": "x"}}),
            json!(["10m", "s", "u", "60m", "Approved,Issued"])),
        ("rbac.authorization.k8s.io", "RoleBinding", json!({"roleRef": {"kind": "Role", "name": "r"}, "subjects": [{"kind": "User", "name": "u"}, {"kind": "User", "name": "v"}, {"kind": "ServiceAccount", "namespace": "n", "name": "s"}]}),
            json!(["Role/r", "10m", "u, v", "", "n/s"])),
        ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration", json!({"webhooks": [{}]}), json!([1, "10m"])),
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy", json!({"spec": {"validations": [{}], "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}}}), json!([1, "v1/ConfigMap", "10m"])),
        ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding", json!({"spec": {"policyName": "p", "paramRef": {"namespace": "n", "name": "c"}}}), json!(["p", "n/c", "10m"])),
        ("flowcontrol.apiserver.k8s.io", "FlowSchema", json!({"spec": {"priorityLevelConfiguration": {"name": "p"}, "matchingPrecedence": 5}}), json!(["p", 5, "<none>", "10m", "?"])),
        ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration", json!({"spec": {"type": "Limited", "limited": {"nominalConcurrencyShares": 30}}}), json!(["Limited", 30, "<none>", "<none>", "<none>", "10m"])),
        ("resource.k8s.io", "ResourceClaim", json!({"status": {"allocation": {}, "reservedFor": [{}]}}), json!(["allocated,reserved", "10m"])),
        ("apiregistration.k8s.io", "APIService", json!({}), json!(["Local", "Unknown", "10m"])),
        ("apiregistration.k8s.io", "APIService", json!({"spec": {"service": {"namespace": "n", "name": "s"}}, "status": {"conditions": [{"type": "Available", "status": "False", "reason": "R"}]}}), json!(["n/s", "False (R)", "10m"])),
        ("coordination.k8s.io", "Lease", json!({"spec": {"holderIdentity": "h"}}), json!(["h", "10m"])),
    ]
}

#[test]
fn a_196_events_of_both_groups_print_the_same() {
    let old = json!({
        "metadata": {"name": "e"},
        "lastTimestamp": "2026-01-01T00:59:00Z", "firstTimestamp": "2026-01-01T00:50:00Z", "count": 3,
        "type": "Normal", "reason": "Killing", "message": " Stopping container \n",
        "involvedObject": {"kind": "Pod", "name": "web", "fieldPath": "spec.containers{a}"},
        "source": {"component": "kubelet", "host": "n1"},
    });
    let cells = json!([
        "60s",
        "Normal",
        "Killing",
        "pod/web",
        "spec.containers{a}",
        "kubelet, n1",
        "Stopping container",
        "10m",
        3,
        "e"
    ]);
    assert_eq!(Value::from(row("", "Event", old)), cells);
    let new = json!({
        "metadata": {"name": "e"}, "eventTime": "2026-01-01T00:50:00.000000Z",
        "series": {"count": 3, "lastObservedTime": "2026-01-01T00:59:00.000000Z"},
        "type": "Normal", "reason": "Killing", "note": "Stopping container",
        "regarding": {"kind": "Pod", "name": "web", "fieldPath": "spec.containers{a}"},
        "reportingController": "kubelet", "reportingInstance": "n1",
    });
    assert_eq!(Value::from(row("events.k8s.io", "Event", new)), cells);
    let once =
        json!({"eventTime": "2026-01-01T00:50:00.000000Z", "involvedObject": {"kind": "Node"}});
    let cells = row("", "Event", once);
    assert_eq!(Value::from(cells), json!(["10m", "", "", "node", "", "", "", "10m", 1, ""]));
}

/// The kinds of A-196 that upstream has no printer for.
const WITHOUT_A_TABLE: &[&str] =
    &["LimitRange", "CSIStorageCapacity", "CustomResourceDefinition", "Role", "ClusterRole"];

#[test]
fn every_kind_has_a_table_or_is_known_to_have_none() {
    let registry = crate::Registry::built_in();
    for kind in registry.kinds().iter().filter(|kind| kind.is_stored()) {
        let described = columns(kind).iter().all(|column| column.name != "Created At");
        assert_ne!(described, WITHOUT_A_TABLE.contains(&kind.kind.as_str()), "{}", kind.kind);
    }
    for (group, kind, _) in TABLES {
        let served = registry.kinds().iter().any(|k| k.group == *group && k.kind == *kind);
        assert!(served, "{kind}.{group} is not a kind");
    }
}
