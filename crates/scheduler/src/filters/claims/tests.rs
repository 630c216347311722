//! Claims: the rejections of nodes, and the chosen volumes (N-194).

use super::{Plan, VolumeChoice};
use crate::cluster_state::ClusterState;
use crate::cluster_state::tests::cluster;
use crate::filters::tests::reasons;
use crate::node::NodeState;
use crate::node::tests::node;
use crate::pod::PodInfo;
use crate::pod::tests::pod;
use crate::view::View;
use client::ObjectKey;
use serde_json::{Value, json};
use std::sync::Arc;

fn read<T: client::Object>(value: Value) -> Arc<T> {
    Arc::new(typed::from_value(value).unwrap())
}

fn zoned(name: &str, zone: &str) -> NodeState {
    node(name, json!({ "metadata": { "labels": { "topology.kubernetes.io/zone": zone } } }))
}

fn using(name: &str, claim: &str) -> PodInfo {
    pod(
        name,
        json!({ "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": claim } }] }),
    )
}

struct Scenario {
    cluster: ClusterState,
}

impl Scenario {
    fn new() -> Scenario {
        let mut cluster = cluster([zoned("a", "x"), zoned("b", "y")], []);
        for (name, mode, provisioner) in [
            ("late", "WaitForFirstConsumer", "csi.example.com"),
            ("local", "WaitForFirstConsumer", "kubernetes.io/no-provisioner"),
            ("now", "Immediate", "csi.example.com"),
        ] {
            let class = json!({ "metadata": { "name": name }, "provisioner": provisioner,
                                "volumeBindingMode": mode });
            cluster.volumes.classes.insert(name.into(), read(class));
        }
        Scenario { cluster }
    }

    fn claim(mut self, name: &str, class: &str, more: Value) -> Scenario {
        let mut claim = json!({
            "metadata": { "namespace": "default", "name": name, "uid": name },
            "spec": { "storageClassName": class, "accessModes": ["ReadWriteOnce"],
                      "resources": { "requests": { "storage": "5Gi" } } },
        });
        crate::node::tests::merge(&mut claim, more);
        self.cluster.volumes.claims.insert(ObjectKey::new("default", name), read(claim));
        self
    }

    fn volume(mut self, name: &str, class: &str, zone: &str, size: &str, more: Value) -> Scenario {
        let mut volume = json!({
            "metadata": { "name": name },
            "spec": {
                "storageClassName": class, "capacity": { "storage": size },
                "accessModes": ["ReadWriteOnce"],
                "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [
                    { "key": "topology.kubernetes.io/zone", "operator": "In", "values": [zone] },
                ] }] } },
            },
            "status": { "phase": "Available" },
        });
        crate::node::tests::merge(&mut volume, more);
        self.cluster.volumes.volumes.insert(name.into(), read(volume));
        self
    }

    /// The results for the nodes a and b, or for the pod.
    fn results(&self, pod: &PodInfo) -> Vec<String> {
        let view = View::of(&self.cluster);
        match Plan::make(view, pod) {
            Ok(plan) => self.cluster.nodes().map(|node| reasons(plan.check(view, node))).collect(),
            Err(rejection) => vec![reasons(Err(rejection))],
        }
    }

    fn chooses(&self, pod: &PodInfo, node: &str) -> VolumeChoice {
        let view = View::of(&self.cluster);
        Plan::make(view, pod).unwrap().choose(view, self.cluster.node(node).unwrap()).unwrap()
    }
}

fn bound_to(volume: &str) -> Value {
    json!({ "spec": { "volumeName": volume }, "status": { "phase": "Bound" } })
}

#[test]
fn n_194_an_unusable_claim_rejects_all_nodes() {
    let going = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } });
    let lost = json!({ "spec": { "volumeName": "pv" }, "status": { "phase": "Lost" } });
    let scenario = Scenario::new()
        .claim("waiting", "now", json!({}))
        .claim("classless", "", json!({}))
        .claim("going", "now", going)
        .claim("lost", "now", lost);
    let cases = [
        ("x", "persistentvolumeclaim \"x\" not found (hard)"),
        ("waiting", "pod has unbound immediate PersistentVolumeClaims (hard)"),
        ("classless", "pod has unbound immediate PersistentVolumeClaims (hard)"),
        ("going", "persistentvolumeclaim \"going\" is being deleted (hard)"),
        (
            "lost",
            "persistentvolumeclaim \"lost\" bound to non-existent persistentvolume \"pv\" (hard)",
        ),
    ];
    for (claim, expected) in cases {
        assert_eq!(scenario.results(&using("p", claim)), [expected], "{claim}");
    }
}

#[test]
fn n_194_an_ephemeral_volume_needs_a_claim_owned_by_its_pod() {
    let ephemeral = pod("p", json!({ "volumes": [{ "name": "v", "ephemeral": {} }] }));
    let waiting = "waiting for ephemeral volume controller to create the \
                   persistentvolumeclaim \"p-v\" (hard)";
    assert_eq!(Scenario::new().results(&ephemeral), [waiting]);
    let foreign = Scenario::new().claim("p-v", "late", json!({}));
    let not_ours = "PVC default/p-v was not created for pod default/p (pod is not owner) (hard)";
    assert_eq!(foreign.results(&ephemeral), [not_ours]);
    let owner = json!({ "metadata": { "ownerReferences": [
        { "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p", "controller": true } ] } });
    let ours = Scenario::new().claim("p-v", "late", owner);
    assert_eq!(ours.results(&ephemeral), ["fits", "fits"]);
}

#[test]
fn n_194_a_bound_volume_restricts_the_nodes() {
    let elsewhere = "node(s) didn't match PersistentVolume's node affinity (hard)";
    let gone = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s) (hard)";
    let scenario = Scenario::new()
        .claim("data", "local", bound_to("pv"))
        .claim("gone", "local", bound_to("nowhere"))
        .volume("pv", "local", "x", "5Gi", json!({}));
    assert_eq!(scenario.results(&using("p", "data")), ["fits", elsewhere]);
    assert_eq!(scenario.results(&using("p", "gone")), [gone, gone]);
}

#[test]
fn n_189_a_volume_with_zone_labels_is_for_its_zones() {
    let anywhere = json!({ "spec": { "nodeAffinity": null },
                           "metadata": { "labels": { "topology.kubernetes.io/zone": "y__z" } } });
    let scenario = Scenario::new()
        .claim("data", "local", bound_to("pv"))
        .volume("pv", "local", "x", "5Gi", anywhere);
    let no = "node(s) had no available volume zone (hard)";
    assert_eq!(scenario.results(&using("p", "data")), [no, "fits"]);
}

#[test]
fn n_194_an_unbound_claim_gets_the_smallest_fitting_volume() {
    let none = "node(s) didn't find available persistent volumes to bind (hard)";
    let scenario = Scenario::new()
        .claim("data", "local", json!({}))
        .volume("small", "local", "x", "1Gi", json!({}))
        .volume("large", "local", "x", "100Gi", json!({}))
        .volume("right", "local", "x", "5Gi", json!({}))
        .volume("other", "late", "y", "5Gi", json!({}))
        .volume(
            "taken",
            "local",
            "y",
            "5Gi",
            json!({ "spec": { "claimRef": {
            "namespace": "default", "name": "another" } } }),
        );
    let pod = using("p", "data");
    assert_eq!(scenario.results(&pod), ["fits", none]);
    let claim = ObjectKey::new("default", "data");
    assert_eq!(scenario.chooses(&pod, "a").bind, [(claim.clone(), "right".to_owned())]);

    let mut scenario = scenario;
    scenario.cluster.volumes.reserve("right", &ObjectKey::new("default", "another"));
    assert_eq!(scenario.chooses(&pod, "a").bind, [(claim, "large".to_owned())]);
}

#[test]
fn n_194_a_volume_is_provisioned_on_the_node_of_the_pod() {
    let none = "node(s) didn't find available persistent volumes to bind (hard)";
    let scenario = Scenario::new().claim("data", "late", json!({}));
    let pod = using("p", "data");
    assert_eq!(scenario.results(&pod), ["fits", "fits"]);
    let claim = ObjectKey::new("default", "data");
    assert_eq!(scenario.chooses(&pod, "b").provision, [claim]);
    let chosen = json!({ "metadata": { "annotations": {
        "volume.kubernetes.io/selected-node": "b" } } });
    let scenario = Scenario::new().claim("data", "late", chosen);
    assert_eq!(scenario.results(&pod), [none, "fits"], "it is being provisioned there");
}

#[test]
fn n_189_a_read_write_once_pod_claim_is_used_by_one_pod() {
    let once = json!({ "spec": { "accessModes": ["ReadWriteOncePod"] } });
    let mut scenario = Scenario::new().claim("data", "late", once);
    assert_eq!(scenario.results(&using("p", "data")), ["fits", "fits"]);
    scenario.cluster.put_pod(using("other", "data").on(&"a".into()));
    let taken = "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access \
                 mode already in-use by another pod";
    assert_eq!(scenario.results(&using("p", "data")), [taken, taken]);
}

#[test]
fn n_189_an_exclusive_disk_is_used_once_per_node_unless_read_only() {
    let disk = |name: &str, read_only: bool| {
        let disk = json!({ "pdName": "d", "readOnly": read_only });
        pod(name, json!({ "volumes": [{ "name": "v", "gcePersistentDisk": disk }] }))
    };
    let mut scenario = Scenario::new();
    scenario.cluster.put_pod(disk("reader", true).on(&"a".into()));
    assert_eq!(scenario.results(&disk("p", true)), ["fits", "fits"]);
    assert_eq!(scenario.results(&disk("p", false)), ["node(s) had no available disk", "fits"]);
}

#[test]
fn n_189_the_number_of_volumes_per_driver_is_limited() {
    let limits = json!({ "metadata": { "name": "a" }, "spec": { "drivers": [
        { "name": "csi.example.com", "nodeID": "a", "allocatable": { "count": 1 } } ] } });
    let mut scenario =
        Scenario::new().claim("one", "late", json!({})).claim("two", "late", json!({}));
    scenario.cluster.volumes.attachments.insert("a".into(), read(limits));
    assert_eq!(scenario.results(&using("p", "two")), ["fits", "fits"]);
    scenario.cluster.put_pod(using("there", "one").on(&"a".into()));
    assert_eq!(scenario.results(&using("p", "two")), ["node(s) exceed max volume count", "fits"]);
    assert_eq!(scenario.results(&using("p", "one")), ["fits", "fits"], "it is attached already");
}
