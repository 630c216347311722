//! Claims, the volumes they are bound to, and those made for one pod only.

use super::world::{World, about};
use crate::config::uid;
use crate::volumes::VolumeError;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

impl World {
    /// A claim `name`, bound to a volume of the same name with that source.
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

fn told(errors: Vec<VolumeError>) -> String {
    errors.iter().map(VolumeError::event_message).collect::<Vec<_>>().join("\n")
}

fn folder(world: &World, name: &str) -> std::path::PathBuf {
    let path = world.place.path().join(name);
    fs::create_dir(&path).unwrap();
    fs::write(path.join("data"), "precious").unwrap();
    path
}

/// N-144, N-148
#[tokio::test]
async fn a_local_volume_appears_and_outlives_its_pods() {
    let world = World::new().await;
    let disk = folder(&world, "disk");
    world
        .bound(
            "pv",
            json!({ "local": { "path": disk } }),
            json!({ "pv.beta.kubernetes.io/gid": "777" }),
        )
        .await;
    let first = world.claiming("first", "pv", json!({ "fsGroup": 4321 })).await;
    let mounted = world.pass(&first).await.unwrap();
    let volume = &mounted.volumes["v"];
    assert!(volume.path.ends_with("volumes/kubernetes.io~local-volume/pv"));
    assert_eq!((volume.read_only, volume.block, volume.group), (false, false, Some(777)));
    assert_eq!(fs::read_to_string(volume.path.join("data")).unwrap(), "precious");
    assert_eq!(about(&disk.join("data")).2, 4321);

    let second = world.claiming("second", "pv", json!({ "fsGroup": 99 })).await;
    world.pass(&second).await.unwrap();
    assert_eq!(about(&disk.join("data")).2, 4321, "only the first pod's group is set");

    for pod in [&first, &second] {
        world.volumes.tear_down(uid(pod)).await.unwrap();
    }
    assert_eq!(fs::read_to_string(disk.join("data")).unwrap(), "precious");
}

/// N-147
#[tokio::test]
async fn a_host_path_behind_a_claim_is_the_path_itself() {
    let world = World::new().await;
    let disk = folder(&world, "disk");
    world.bound("pv", json!({ "hostPath": { "path": disk } }), json!({})).await;
    let pod = world.claiming("p", "pv", json!({ "fsGroup": 4321 })).await;
    assert_eq!(world.path(&pod, "v").await, disk);
    assert_eq!(about(&disk).2, 0, "N-144: not for hostPath");
    world.volumes.tear_down(uid(&pod)).await.unwrap();
    assert!(disk.join("data").exists());
}

/// N-147, N-148
#[tokio::test]
async fn a_claim_that_cannot_be_used_says_why() {
    let world = World::new().await;
    let missing = world.claiming("a", "nowhere", json!({})).await;
    let unbound = world.claiming("b", "unbound", json!({})).await;
    let nothing = world.claiming("c", "nothing", json!({})).await;
    world.claim("unbound", json!([])).await;
    world.bound("nothing", json!({ "local": { "path": "/nowhere/at/all" } }), json!({})).await;
    const UNABLE: &str = "Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], failed to process volumes=[v]: ";
    let error = told(world.pass(&missing).await.unwrap_err());
    assert_eq!(
        error,
        format!(
            "{UNABLE}error processing PVC default/nowhere: failed to fetch PVC from API server: \
            persistentvolumeclaims \"nowhere\" not found"
        )
    );
    let error = told(world.pass(&unbound).await.unwrap_err());
    assert_eq!(error, format!("{UNABLE}error processing PVC default/unbound: PVC is not bound"));
    let error = told(world.pass(&nothing).await.unwrap_err());
    assert_eq!(
        error,
        "MountVolume.SetUp failed for volume \"v\" : path \"/nowhere/at/all\" does not exist"
    );
}

/// N-147
#[tokio::test]
async fn a_block_volume_is_not_mounted_as_files() {
    let world = World::new().await;
    let source = json!({ "local": { "path": "/dev/null" }, "volumeMode": "Block" });
    world.bound("pv", source, json!({})).await;
    let pod = world.claiming("p", "pv", json!({})).await;
    let error = told(world.pass(&pod).await.unwrap_err());
    assert!(
        error.ends_with("volume v has volumeMode Block, but is specified in volumeMounts"),
        "{error}"
    );
}

/// N-147
#[tokio::test]
async fn an_ephemeral_claim_must_be_the_pods_own() {
    let world = World::new().await;
    let disk = folder(&world, "disk");
    let template = json!({ "spec": { "accessModes": ["ReadWriteOnce"],
        "resources": { "requests": { "storage": "1Gi" } } } });
    let volume = json!([{ "name": "v", "ephemeral": { "volumeClaimTemplate": template } }]);
    let stranger = world.pod_with("stranger", json!({}), volume.clone()).await;
    world.bound("stranger-v", json!({ "hostPath": { "path": disk } }), json!({})).await;
    let error = told(world.pass(&stranger).await.unwrap_err());
    assert!(
        error.ends_with(
            "PVC default/stranger-v was not created for pod default/stranger (pod is not owner)"
        ),
        "{error}"
    );

    let pod = world.pod_with("own", json!({}), volume).await;
    let owner = json!([{ "apiVersion": "v1", "kind": "Pod", "name": "own", "uid": uid(&pod), "controller": true }]);
    let claim = world.claim("own-v", owner).await;
    let pv = json!({ "metadata": { "name": "own-v" }, "spec": {
        "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": "s",
        "hostPath": { "path": disk },
        "claimRef": { "namespace": "default", "name": "own-v", "uid": claim.metadata.uid } } });
    world.create::<PersistentVolume>(pv).await;
    world.bind(&claim).await;
    assert_eq!(world.path(&pod, "v").await, Path::new(&disk));
}
