//! Stories about claims: what is said of a node, and what is chosen on it (N-194).

use super::{Choice, Plan};
use crate::filters::tests::said;
use crate::node::NodeState;
use crate::node::tests::node;
use crate::pod::PodInfo;
use crate::pod::tests::pod;
use crate::view::View;
use crate::world::World;
use crate::world::tests::world;
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

struct Story {
    world: World,
}

impl Story {
    fn new() -> Story {
        let mut world = world([zoned("a", "x"), zoned("b", "y")], []);
        for (name, mode, provisioner) in [
            ("late", "WaitForFirstConsumer", "csi.example.com"),
            ("local", "WaitForFirstConsumer", "kubernetes.io/no-provisioner"),
            ("now", "Immediate", "csi.example.com"),
        ] {
            let class = json!({ "metadata": { "name": name }, "provisioner": provisioner,
                                "volumeBindingMode": mode });
            world.volumes.classes.insert(name.into(), read(class));
        }
        Story { world }
    }

    fn claim(mut self, name: &str, class: &str, more: Value) -> Story {
        let mut claim = json!({
            "metadata": { "namespace": "default", "name": name, "uid": name },
            "spec": { "storageClassName": class, "accessModes": ["ReadWriteOnce"],
                      "resources": { "requests": { "storage": "5Gi" } } },
        });
        crate::node::tests::merge(&mut claim, more);
        self.world.volumes.claims.insert(ObjectKey::new("default", name), read(claim));
        self
    }

    fn volume(mut self, name: &str, class: &str, zone: &str, size: &str, more: Value) -> Story {
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
        self.world.volumes.volumes.insert(name.into(), read(volume));
        self
    }

    /// What is said of the nodes a and b, or of the pod.
    fn says(&self, pod: &PodInfo) -> Vec<String> {
        let view = View::of(&self.world);
        match Plan::make(view, pod) {
            Ok(plan) => self.world.nodes().map(|node| said(plan.check(view, node))).collect(),
            Err(rejection) => vec![said(Err(rejection))],
        }
    }

    fn chooses(&self, pod: &PodInfo, node: &str) -> Choice {
        let view = View::of(&self.world);
        Plan::make(view, pod).unwrap().choose(view, self.world.node(node).unwrap()).unwrap()
    }
}

fn bound_to(volume: &str) -> Value {
    json!({ "spec": { "volumeName": volume }, "status": { "phase": "Bound" } })
}

#[test]
fn n_194_what_is_wrong_with_a_claim_is_said_once_for_all_nodes() {
    let going = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } });
    let lost = json!({ "spec": { "volumeName": "pv" }, "status": { "phase": "Lost" } });
    let story = Story::new()
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
        assert_eq!(story.says(&using("p", claim)), [expected], "{claim}");
    }
}

#[test]
fn n_194_an_ephemeral_volume_waits_for_its_claim_and_takes_no_others() {
    let ephemeral = pod("p", json!({ "volumes": [{ "name": "v", "ephemeral": {} }] }));
    let waiting = "waiting for ephemeral volume controller to create the \
                   persistentvolumeclaim \"p-v\" (hard)";
    assert_eq!(Story::new().says(&ephemeral), [waiting]);
    let foreign = Story::new().claim("p-v", "late", json!({}));
    let not_ours = "PVC default/p-v was not created for pod default/p (pod is not owner) (hard)";
    assert_eq!(foreign.says(&ephemeral), [not_ours]);
    let owner = json!({ "metadata": { "ownerReferences": [
        { "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p", "controller": true } ] } });
    let ours = Story::new().claim("p-v", "late", owner);
    assert_eq!(ours.says(&ephemeral), ["fits", "fits"]);
}

#[test]
fn n_194_a_bound_volume_says_where() {
    let elsewhere = "node(s) didn't match PersistentVolume's node affinity (hard)";
    let gone = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s) (hard)";
    let story = Story::new()
        .claim("data", "local", bound_to("pv"))
        .claim("gone", "local", bound_to("nowhere"))
        .volume("pv", "local", "x", "5Gi", json!({}));
    assert_eq!(story.says(&using("p", "data")), ["fits", elsewhere]);
    assert_eq!(story.says(&using("p", "gone")), [gone, gone]);
}

#[test]
fn n_189_a_volume_with_zone_labels_is_for_its_zones() {
    let anywhere = json!({ "spec": { "nodeAffinity": null },
                           "metadata": { "labels": { "topology.kubernetes.io/zone": "y__z" } } });
    let story = Story::new()
        .claim("data", "local", bound_to("pv"))
        .volume("pv", "local", "x", "5Gi", anywhere);
    let no = "node(s) had no available volume zone (hard)";
    assert_eq!(story.says(&using("p", "data")), [no, "fits"]);
}

#[test]
fn n_194_a_claim_that_waits_for_its_pod_gets_the_smallest_fitting_volume() {
    let none = "node(s) didn't find available persistent volumes to bind (hard)";
    let story = Story::new()
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
    assert_eq!(story.says(&pod), ["fits", none]);
    let claim = ObjectKey::new("default", "data");
    assert_eq!(story.chooses(&pod, "a").bind, [(claim.clone(), "right".to_owned())]);

    let mut story = story;
    story.world.volumes.reserve("right", &ObjectKey::new("default", "another"));
    assert_eq!(story.chooses(&pod, "a").bind, [(claim, "large".to_owned())]);
}

#[test]
fn n_194_what_can_be_made_is_made_where_the_pod_goes() {
    let none = "node(s) didn't find available persistent volumes to bind (hard)";
    let story = Story::new().claim("data", "late", json!({}));
    let pod = using("p", "data");
    assert_eq!(story.says(&pod), ["fits", "fits"]);
    let claim = ObjectKey::new("default", "data");
    assert_eq!(story.chooses(&pod, "b").provision, [claim]);
    let chosen = json!({ "metadata": { "annotations": {
        "volume.kubernetes.io/selected-node": "b" } } });
    let story = Story::new().claim("data", "late", chosen);
    assert_eq!(story.says(&pod), [none, "fits"], "it is being made there");
}

#[test]
fn n_189_a_claim_for_one_pod_is_for_one_pod() {
    let once = json!({ "spec": { "accessModes": ["ReadWriteOncePod"] } });
    let mut story = Story::new().claim("data", "late", once);
    assert_eq!(story.says(&using("p", "data")), ["fits", "fits"]);
    story.world.put_pod(using("other", "data").on(&"a".into()));
    let taken = "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access \
                 mode already in-use by another pod";
    assert_eq!(story.says(&using("p", "data")), [taken, taken]);
}

#[test]
fn n_189_an_exclusive_disk_is_on_a_node_once_unless_all_only_read() {
    let disk = |name: &str, read_only: bool| {
        let disk = json!({ "pdName": "d", "readOnly": read_only });
        pod(name, json!({ "volumes": [{ "name": "v", "gcePersistentDisk": disk }] }))
    };
    let mut story = Story::new();
    story.world.put_pod(disk("reader", true).on(&"a".into()));
    assert_eq!(story.says(&disk("p", true)), ["fits", "fits"]);
    assert_eq!(story.says(&disk("p", false)), ["node(s) had no available disk", "fits"]);
}

#[test]
fn n_189_a_node_attaches_so_many_volumes_of_a_driver() {
    let limits = json!({ "metadata": { "name": "a" }, "spec": { "drivers": [
        { "name": "csi.example.com", "nodeID": "a", "allocatable": { "count": 1 } } ] } });
    let mut story = Story::new().claim("one", "late", json!({})).claim("two", "late", json!({}));
    story.world.volumes.attachments.insert("a".into(), read(limits));
    assert_eq!(story.says(&using("p", "two")), ["fits", "fits"]);
    story.world.put_pod(using("there", "one").on(&"a".into()));
    assert_eq!(story.says(&using("p", "two")), ["node(s) exceed max volume count", "fits"]);
    assert_eq!(story.says(&using("p", "one")), ["fits", "fits"], "it is attached already");
}
