//! Provisions directories of this machine as volumes, for claims of pods on its node (C-169, C-171).
//!
//! It is an ordinary provisioner: the annotation that `binding` writes requests a volume, it creates the volume with
//! a `claimRef`, and `binding` does the rest. It deletes its volumes and their data when the claim of a volume with
//! reclaim policy Delete is gone. Only one node has local volumes; the class names it.

use super::Storage;
use super::matching::{self, SELECTED_NODE};
use crate::start::Cluster;
use client::{DeleteOptions, ObjectKey, Queue, Recorder, reference, run_controller};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::{Value, json};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) const PROVISIONER: &str = "landfall.dev/local-directory";
const CLASS: &str = "standard";
const REQUESTED_BY: &str = "volume.kubernetes.io/storage-provisioner";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

/// Where the volumes of a node are.
#[derive(Debug, Clone)]
pub struct LocalVolumes {
    pub node: String,
    pub directory: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Work {
    Class,
    Claim(ObjectKey),
    Volume(String),
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Api(#[from] client::Error),
    #[error("cannot {action} the directory of volume {volume}")]
    Directory {
        volume: String,
        action: &'static str,
        #[source]
        source: std::io::Error,
    },
}

struct Provisioner<'a> {
    cluster: &'a Cluster,
    storage: &'a Storage,
    recorder: Recorder,
    here: &'a LocalVolumes,
}

pub(super) async fn run(cluster: &Cluster, storage: &Storage, here: &LocalVolumes) {
    let queue = Queue::new();
    storage.claims.feed(&queue, |claim| {
        let requested =
            annotation(claim, REQUESTED_BY) == Some(PROVISIONER) && matching::is_pending(claim);
        requested.then(|| Work::Claim(ObjectKey::of(claim))).into_iter().collect()
    });
    storage.volumes.feed(&queue, |volume| {
        let name = volume.metadata.name.clone().filter(|_| is_ours(volume));
        name.map(Work::Volume).into_iter().collect()
    });
    storage.claims.synced().await;
    storage.volumes.synced().await;
    storage.classes.synced().await;
    queue.add(Work::Class);
    let recorder = Recorder::new(&cluster.client, PROVISIONER, &here.node);
    let provisioner = Provisioner { cluster, storage, recorder, here };
    run_controller("local-volumes", &queue, 1, |work| reconcile(&provisioner, work)).await;
}

async fn reconcile(provisioner: &Provisioner<'_>, work: Work) -> Result<(), Error> {
    match work {
        Work::Class => provisioner.create_class().await,
        Work::Claim(key) => provisioner.provision(&key).await,
        Work::Volume(name) => provisioner.remove(&name).await,
    }
}

impl Provisioner<'_> {
    /// Creates the default class if there is no class. If a user deletes or changes it, it stays so until a restart.
    async fn create_class(&self) -> Result<(), Error> {
        if !self.storage.classes.is_empty() {
            return Ok(());
        }
        match self.cluster.client.create::<StorageClass>(&class(&self.here.node)).await {
            Err(error) if error.is_already_exists() => Ok(()),
            created => Ok(created.map(drop)?),
        }
    }

    async fn provision(&self, key: &ObjectKey) -> Result<(), Error> {
        let Some(claim) = self.storage.claims.get(key).filter(|c| matching::is_pending(c)) else {
            return Ok(());
        };
        let class = matching::class_of_claim(&claim).unwrap_or_default();
        let class = self.storage.classes.get(&ObjectKey::cluster(class));
        let Some(class) = class.filter(|class| class.provisioner == PROVISIONER) else {
            return Ok(());
        };
        let on = reference(claim.as_ref());
        if annotation(&claim, SELECTED_NODE).is_some_and(|node| node != self.here.node) {
            let message = format!("only node {:?} has local volumes", self.here.node);
            self.recorder.warning(&on, "ProvisioningFailed", message);
            // Let the scheduler choose another node (C-168).
            let patch = json!({ "metadata": { "annotations": { SELECTED_NODE: null } } });
            self.cluster.client.patch_merge::<PersistentVolumeClaim>(key, &patch).await?;
            return Ok(());
        }
        let spec = claim.spec.as_ref();
        if spec.and_then(|spec| spec.volume_mode.as_deref()) == Some("Block") {
            let message = "local volumes are directories and do not support volumeMode Block";
            self.recorder.warning(&on, "ProvisioningFailed", message);
            return Ok(());
        }
        let Some(volume) = volume(&claim, &class, self.here) else { return Ok(()) };
        let name = volume.metadata.name.clone().unwrap_or_default();
        create_directory(self.here.directory.join(&name)).await.map_err(|source| {
            Error::Directory { volume: name.clone(), action: "create", source }
        })?;
        match self.cluster.client.create(&volume).await {
            Err(error) if error.is_already_exists() => return Ok(()),
            created => drop(created?),
        }
        let message = format!("Successfully provisioned volume {name}");
        self.recorder.normal(&on, "ProvisioningSucceeded", message);
        Ok(())
    }

    /// Deletes a released volume and its data if its reclaim policy is Delete.
    async fn remove(&self, name: &str) -> Result<(), Error> {
        let key = ObjectKey::cluster(name);
        let Some(volume) = self.storage.volumes.get(&key).filter(|v| is_deletable(v, self.here))
        else {
            return Ok(());
        };
        let gone = remove_directory(self.here.directory.join(name)).await;
        if let Err(source) = gone {
            self.recorder.warning(
                &reference(volume.as_ref()),
                "VolumeFailedDelete",
                source.to_string(),
            );
            return Err(Error::Directory { volume: name.to_owned(), action: "remove", source });
        }
        let only = DeleteOptions::only(volume.as_ref());
        match self.cluster.client.delete::<PersistentVolume>(&key, &only).await {
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            deleted => Ok(deleted.map(drop)?),
        }
    }
}

fn annotation<'a>(claim: &'a PersistentVolumeClaim, key: &str) -> Option<&'a str> {
    claim.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

pub(super) fn is_ours(volume: &PersistentVolume) -> bool {
    let annotations = volume.metadata.annotations.as_ref();
    annotations.and_then(|all| all.get(PROVISIONED_BY)).is_some_and(|by| by == PROVISIONER)
}

/// Only volumes of this provisioner whose path is the one it created, so that a crafted volume cannot make it remove
/// another directory.
fn is_deletable(volume: &PersistentVolume, here: &LocalVolumes) -> bool {
    let Some(spec) = volume.spec.as_ref() else { return false };
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    let path = spec.local.as_ref().map(|local| Path::new(&local.path));
    let made = !name.is_empty() && path == Some(here.directory.join(name).as_path());
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    let policy = spec.persistent_volume_reclaim_policy.as_deref();
    made && is_ours(volume) && phase == Some("Released") && policy == Some("Delete")
}

fn class(node: &str) -> StorageClass {
    let class = json!({
        "metadata": {
            "name": CLASS,
            "annotations": { "storageclass.kubernetes.io/is-default-class": "true" },
        },
        "provisioner": PROVISIONER,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "WaitForFirstConsumer",
        "allowVolumeExpansion": true,
        "allowedTopologies": [{ "matchLabelExpressions": [
            { "key": "kubernetes.io/hostname", "values": [node] },
        ]}],
    });
    typed::from_value(class).unwrap_or_default()
}

fn volume(
    claim: &PersistentVolumeClaim,
    class: &Arc<StorageClass>,
    here: &LocalVolumes,
) -> Option<PersistentVolume> {
    let name = format!("pvc-{}", claim.metadata.uid.as_deref()?);
    let spec = claim.spec.as_ref()?;
    let size = spec.resources.as_ref()?.requests.as_ref()?.get("storage")?;
    let on_node: Value = json!({ "nodeSelectorTerms": [{ "matchExpressions": [
        { "key": "kubernetes.io/hostname", "operator": "In", "values": [here.node] },
    ]}]});
    let volume = json!({
        "metadata": { "name": name, "annotations": { PROVISIONED_BY: PROVISIONER } },
        "spec": {
            "capacity": { "storage": size },
            "accessModes": spec.access_modes,
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "namespace": claim.metadata.namespace, "name": claim.metadata.name,
                "uid": claim.metadata.uid, "resourceVersion": claim.metadata.resource_version,
            },
            "persistentVolumeReclaimPolicy": class.reclaim_policy.as_deref().unwrap_or("Delete"),
            "storageClassName": class.metadata.name,
            "mountOptions": class.mount_options,
            "volumeMode": "Filesystem",
            "local": { "path": here.directory.join(&name) },
            "nodeAffinity": { "required": on_node },
        },
    });
    typed::from_value(volume).ok()
}

/// Creates a directory that any user of a pod can write.
async fn create_directory(path: PathBuf) -> std::io::Result<()> {
    blocking(move || {
        std::fs::DirBuilder::new().recursive(true).mode(0o777).create(&path)?;
        // The umask of this process must not apply.
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(&path, all)
    })
    .await
}

async fn remove_directory(path: PathBuf) -> std::io::Result<()> {
    blocking(move || match std::fs::remove_dir_all(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        erased => erased,
    })
    .await
}

async fn blocking(
    work: impl FnOnce() -> std::io::Result<()> + Send + 'static,
) -> std::io::Result<()> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(std::io::Error::other(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c_171_only_own_directories_are_removed() {
        let here = LocalVolumes { node: "n".into(), directory: "/d".into() };
        let volume = |by: &str, path: &str, phase: &str, policy: &str| -> PersistentVolume {
            typed::from_value(json!({
                "metadata": { "name": "pvc-1", "annotations": { PROVISIONED_BY: by } },
                "spec": { "local": { "path": path }, "persistentVolumeReclaimPolicy": policy },
                "status": { "phase": phase },
            }))
            .unwrap()
        };
        for (what, volume, expected) in [
            ("ours", volume(PROVISIONER, "/d/pvc-1", "Released", "Delete"), true),
            ("in use", volume(PROVISIONER, "/d/pvc-1", "Bound", "Delete"), false),
            ("policy Retain", volume(PROVISIONER, "/d/pvc-1", "Released", "Retain"), false),
            ("another provisioner", volume("other", "/d/pvc-1", "Released", "Delete"), false),
            ("elsewhere", volume(PROVISIONER, "/etc", "Released", "Delete"), false),
            (
                "outside of the directory",
                volume(PROVISIONER, "/d/pvc-1/../../etc", "Released", "Delete"),
                false,
            ),
        ] {
            assert_eq!(is_deletable(&volume, &here), expected, "{what}");
        }
    }
}
