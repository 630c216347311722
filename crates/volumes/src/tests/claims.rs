//! Volumes of PersistentVolumeClaims, and ephemeral ones.

use super::test_node::{TestNode, mode_and_owner};
use crate::volumes::VolumeError;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use podconfig::uid;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

impl TestNode {
    /// Creates a claim `name` and a PersistentVolume of the same name with this source, bound to
    /// each other.
    async fn bound(&self, name: &str, source: Value, extra: Value) -> PersistentVolume {
        let claim = self.claim(name, json!([])).await;
        let mut spec = json!({
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": "s",
            "claimRef": { "namespace": "default", "name": name, "uid": claim.metadata.uid },
            "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [
                { "key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"] },
            ] }] } },
        });
        spec.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        let pv = json!({ "metadata": { "name": name, "annotations": extra }, "spec": spec });
        let pv = self.create(pv).await;
        self.bind(&claim).await;
        pv
    }

    async fn claim(&self, name: &str, owners: Value) -> PersistentVolumeClaim {
        self.create(json!({
            "metadata": { "namespace": "default", "name": name, "ownerReferences": owners },
            "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": "s", "volumeName": name,
                "resources": { "requests": { "storage": "1Gi" } } },
        }))
        .await
    }

    async fn bind(&self, claim: &PersistentVolumeClaim) {
        self.client.update_status(claim, json!({ "phase": "Bound" })).await.unwrap();
    }

    async fn claiming(&self, pod: &str, claim: &str, context: Value) -> Pod {
        let volume = json!([{ "name": "v", "persistentVolumeClaim": { "claimName": claim } }]);
        self.pod_with(pod, context, volume).await
    }
}

fn messages(errors: Vec<VolumeError>) -> String {
    errors.iter().map(VolumeError::event_message).collect::<Vec<_>>().join("\n")
}

fn folder(node: &TestNode, name: &str) -> std::path::PathBuf {
    let path = node.dir.path().join(name);
    fs::create_dir(&path).unwrap();
    fs::write(path.join("data"), "precious").unwrap();
    path
}

#[tokio::test]
async fn n_144_n_148_a_local_volume_is_mounted_and_its_content_outlives_its_pods() {
    let node = TestNode::new().await;
    let disk = folder(&node, "disk");
    node.bound(
        "pv",
        json!({ "local": { "path": disk } }),
        json!({ "pv.beta.kubernetes.io/gid": "777" }),
    )
    .await;
    let first = node.claiming("first", "pv", json!({ "fsGroup": 4321 })).await;
    let mounted = node.set_up(&first).await.unwrap();
    let volume = &mounted.volumes["v"];
    assert!(volume.path.ends_with("volumes/kubernetes.io~local-volume/pv"));
    assert_eq!((volume.read_only, volume.block, volume.group), (false, false, Some(777)));
    assert_eq!(fs::read_to_string(volume.path.join("data")).unwrap(), "precious");
    assert_eq!(mode_and_owner(&disk.join("data")).2, 4321);

    let second = node.claiming("second", "pv", json!({ "fsGroup": 99 })).await;
    node.set_up(&second).await.unwrap();
    assert_eq!(mode_and_owner(&disk.join("data")).2, 4321, "only the first pod's group is set");

    for pod in [&first, &second] {
        node.volumes.tear_down(uid(pod)).await.unwrap();
    }
    assert_eq!(fs::read_to_string(disk.join("data")).unwrap(), "precious");
}

#[tokio::test]
async fn n_147_a_claim_bound_to_a_host_path_uses_the_path_itself() {
    let node = TestNode::new().await;
    let disk = folder(&node, "disk");
    node.bound("pv", json!({ "hostPath": { "path": disk } }), json!({})).await;
    let pod = node.claiming("p", "pv", json!({ "fsGroup": 4321 })).await;
    assert_eq!(node.path(&pod, "v").await, disk);
    assert_eq!(mode_and_owner(&disk).2, 0, "N-144: not for hostPath");
    node.volumes.tear_down(uid(&pod)).await.unwrap();
    assert!(disk.join("data").exists());
}

#[tokio::test]
async fn n_147_n_148_the_error_tells_why_a_claim_cannot_be_used() {
    let node = TestNode::new().await;
    let missing = node.claiming("a", "nowhere", json!({})).await;
    let unbound = node.claiming("b", "unbound", json!({})).await;
    let nothing = node.claiming("c", "nothing", json!({})).await;
    node.claim("unbound", json!([])).await;
    node.bound("nothing", json!({ "local": { "path": "/nowhere/at/all" } }), json!({})).await;
    const UNABLE: &str = "Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], failed to process volumes=[v]: ";
    let error = messages(node.set_up(&missing).await.unwrap_err());
    assert_eq!(
        error,
        format!(
            "{UNABLE}error processing PVC default/nowhere: failed to fetch PVC from API server: \
            persistentvolumeclaims \"nowhere\" not found"
        )
    );
    let error = messages(node.set_up(&unbound).await.unwrap_err());
    assert_eq!(error, format!("{UNABLE}error processing PVC default/unbound: PVC is not bound"));
    let error = messages(node.set_up(&nothing).await.unwrap_err());
    assert_eq!(
        error,
        "MountVolume.SetUp failed for volume \"v\" : path \"/nowhere/at/all\" does not exist"
    );
}

#[tokio::test]
async fn n_147_a_block_volume_in_volume_mounts_is_an_error() {
    let node = TestNode::new().await;
    let source = json!({ "local": { "path": "/dev/null" }, "volumeMode": "Block" });
    node.bound("pv", source, json!({})).await;
    let pod = node.claiming("p", "pv", json!({})).await;
    let error = messages(node.set_up(&pod).await.unwrap_err());
    assert!(
        error.ends_with("volume v has volumeMode Block, but is specified in volumeMounts"),
        "{error}"
    );
}

#[tokio::test]
async fn n_147_the_claim_of_an_ephemeral_volume_must_be_owned_by_the_pod() {
    let node = TestNode::new().await;
    let disk = folder(&node, "disk");
    let template = json!({ "spec": { "accessModes": ["ReadWriteOnce"],
        "resources": { "requests": { "storage": "1Gi" } } } });
    let volume = json!([{ "name": "v", "ephemeral": { "volumeClaimTemplate": template } }]);
    let stranger = node.pod_with("stranger", json!({}), volume.clone()).await;
    node.bound("stranger-v", json!({ "hostPath": { "path": disk } }), json!({})).await;
    let error = messages(node.set_up(&stranger).await.unwrap_err());
    assert!(
        error.ends_with(
            "PVC default/stranger-v was not created for pod default/stranger (pod is not owner)"
        ),
        "{error}"
    );

    let pod = node.pod_with("own", json!({}), volume).await;
    let owner = json!([{ "apiVersion": "v1", "kind": "Pod", "name": "own", "uid": uid(&pod), "controller": true }]);
    let claim = node.claim("own-v", owner).await;
    let pv = json!({ "metadata": { "name": "own-v" }, "spec": {
        "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": "s",
        "hostPath": { "path": disk },
        "claimRef": { "namespace": "default", "name": "own-v", "uid": claim.metadata.uid } } });
    node.create::<PersistentVolume>(pv).await;
    node.bind(&claim).await;
    assert_eq!(node.path(&pod, "v").await, Path::new(&disk));
}
