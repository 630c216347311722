//! A pod's volumes on this node: set up, kept up to date, taken away (N-132 to N-156).
//!
//!     pods/<uid>/volumes/<kind>/<volume>       what containers mount
//!     pods/<uid>/volume-subpaths/…             parts of volumes, one bind mount each
//!     pods/<uid>/plugins/<kind>/<volume>/ready made already, so that it is not made again
//!
//! Not here: how a container sees them (`config::mounts`).

pub(crate) mod beneath;
pub(crate) mod subpath;

mod atomic;
mod claims;
mod clean;
mod empty_dir;
mod fs_group;
mod hostpath;
mod mount_table;
mod nested;
mod payload;
mod tokens;
mod usage;

use crate::config::{self, NodeFacts, Objects, make_pod_directories};
use atomic::Payload;
use client::Client;
use k8s_openapi::api::core::v1::{Pod, Volume};
use payload::Source;
use runtime::Runtime;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use tokens::Tokens;

const IMAGE: &str = "kubernetes.io~image";

/// Why a volume is not there. The message is upstream's, without the words around it (N-133).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VolumeError {
    pub(crate) volume: String,
    pub(crate) message: String,
    /// It was not even clear what to mount: a claim that is not bound, say.
    pub(crate) unprocessed: bool,
}

impl VolumeError {
    fn new(volume: &str, message: impl Into<String>) -> VolumeError {
        VolumeError { volume: volume.to_owned(), message: message.into(), unprocessed: false }
    }

    /// As the FailedMount event says it.
    pub(crate) fn event_message(&self) -> String {
        let VolumeError { volume, message, .. } = self;
        match self.unprocessed {
            true => format!(
                "Unable to attach or mount volumes: unmounted volumes=[{volume}], unattached \
                 volumes=[], failed to process volumes=[{volume}]: {message}"
            ),
            false => format!("MountVolume.SetUp failed for volume \"{volume}\" : {message}"),
        }
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

impl MountedVolume {
    pub(crate) fn writable(path: &Path) -> MountedVolume {
        MountedVolume {
            path: path.to_owned(),
            read_only: false,
            no_exec: false,
            block: false,
            group: None,
        }
    }

    fn read_only(path: &Path) -> MountedVolume {
        MountedVolume { read_only: true, ..MountedVolume::writable(path) }
    }
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
    tokens: Tokens,
    /// Claims are looked at once per pod (N-134): by pod, then by volume.
    claimed: Mutex<HashMap<String, BTreeMap<String, MountedVolume>>>,
}

impl Volumes {
    pub(crate) fn new(
        facts: Arc<NodeFacts>,
        objects: Arc<Objects>,
        client: &Client,
        runtime: Arc<dyn Runtime>,
    ) -> Volumes {
        let tokens = Tokens::new(client);
        Volumes {
            facts,
            objects,
            client: client.clone(),
            runtime,
            tokens,
            claimed: Mutex::default(),
        }
    }

    /// Makes the pod's directories (N-34) and every volume that some container uses; brings
    /// configMap, secret, projected and downwardAPI volumes up to date (N-134). For every pass.
    ///
    /// Image volumes are not pulled here: [`Volumes::mount_image`] adds one once its image is there.
    pub(crate) async fn set_up(&self, pod: &Pod) -> Result<Mounted, Vec<VolumeError>> {
        if let Err(error) = make_pod_directories(&self.facts, config::uid(pod)) {
            let message = format!("error making pod data directories: {error}");
            return Err(vec![VolumeError::new("", message)]);
        }
        let used = used(pod);
        let all = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
        let mut mounted = Mounted::default();
        let mut errors = Vec::new();
        for volume in all.iter().filter(|volume| used.contains(volume.name.as_str())) {
            match self.set_up_one(pod, volume).await {
                Ok(Some(it)) => drop(mounted.volumes.insert(volume.name.clone(), it)),
                Ok(None) => {}
                Err(error) => errors.push(error),
            }
        }
        if errors.is_empty() { Ok(mounted) } else { Err(errors) }
    }

    /// None: an image volume whose image is not there yet.
    async fn set_up_one(
        &self,
        pod: &Pod,
        volume: &Volume,
    ) -> Result<Option<MountedVolume>, VolumeError> {
        let failed = |message: String| VolumeError::new(&volume.name, message);
        let source = Source { objects: &self.objects, tokens: &self.tokens, facts: &self.facts };
        if let Some(payload) = source.payload(pod, volume).await {
            return self.write(pod, volume, payload.map_err(failed)?).await.map(Some);
        }
        if volume.empty_dir.is_some() {
            let made = self.blocking(pod, volume, empty_dir::set_up).await;
            return made.map_err(failed).map(Some);
        }
        if let Some(it) = &volume.host_path {
            let path = hostpath::check(&it.path, it.type_.as_deref().unwrap_or_default());
            return Ok(Some(MountedVolume::writable(&path.map_err(failed)?)));
        }
        if volume.image.is_some() {
            let path = self.place(pod, IMAGE, &volume.name);
            let there = mount_table::is_mount_point(&path).map_err(|e| failed(e.to_string()))?;
            return Ok(there.then(|| image_volume(&path)));
        }
        if let Some(claim) = claims::claim(pod, volume) {
            return self.claimed(pod, volume, claim).await.map(Some);
        }
        Err(failed(unknown(volume)))
    }

    /// Files that the node writes: on tmpfs, except those of a ConfigMap (N-136).
    async fn write(
        &self,
        pod: &Pod,
        volume: &Volume,
        payload: Payload,
    ) -> Result<MountedVolume, VolumeError> {
        let written = self.blocking(pod, volume, move |pod, volume, facts| {
            let (kind, in_memory) = match volume {
                Volume { config_map: Some(_), .. } => (usage::CONFIG_MAP, false),
                Volume { secret: Some(_), .. } => (usage::SECRET, true),
                Volume { downward_api: Some(_), .. } => (usage::DOWNWARD, true),
                _ => (usage::PROJECTED, true),
            };
            let path = place(facts, pod, kind, &volume.name);
            write_files(pod, volume, &path, in_memory, &payload).map_err(|e| e.to_string())?;
            Ok(MountedVolume::read_only(&path))
        });
        written.await.map_err(|message| VolumeError::new(&volume.name, message))
    }

    async fn claimed(
        &self,
        pod: &Pod,
        volume: &Volume,
        claim: claims::Claim<'_>,
    ) -> Result<MountedVolume, VolumeError> {
        let uid = config::uid(pod);
        let known = self.known().get(uid).and_then(|known| known.get(&volume.name)).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let bound = claims::bound(&self.client, config::namespace(pod), &claim).await;
        let pv = bound.map_err(|message| VolumeError {
            unprocessed: true,
            ..VolumeError::new(&volume.name, message)
        })?;
        let read_only = claim.read_only;
        let attached = self.blocking(pod, volume, move |pod, volume, facts| {
            claims::attach(pod, volume, &pv, read_only, facts)
        });
        let made = attached.await.map_err(|message| VolumeError::new(&volume.name, message))?;
        let mut known = self.known();
        known.entry(uid.to_owned()).or_default().insert(volume.name.clone(), made.clone());
        Ok(made)
    }

    /// The image volume `volume` shows `image` from now on. Idempotent.
    pub(crate) async fn mount_image(
        &self,
        pod: &Pod,
        volume: &str,
        image: &runtime::Image,
        mounted: &mut Mounted,
    ) -> Result<(), VolumeError> {
        let path = self.place(pod, IMAGE, volume);
        let failed = |message: String| VolumeError::new(volume, message);
        if !mount_table::is_mount_point(&path).map_err(|error| failed(error.to_string()))? {
            config::make_directory(&path).map_err(|error| failed(error.to_string()))?;
            let shown = self.runtime.images().mount(&image.id, &path).await;
            shown.map_err(|error| failed(error.to_string()))?;
        }
        mounted.volumes.insert(volume.to_owned(), image_volume(&path));
        Ok(())
    }

    /// Unmounts and removes everything below `pods/<uid>`. Needs nothing but the uid; never follows
    /// a link out of it, never touches what a hostPath or a PersistentVolume shows. Idempotent.
    pub(crate) async fn tear_down(&self, uid: &str) -> std::io::Result<()> {
        self.tokens.forget(uid);
        self.known().remove(uid);
        let (pods, uid) = (self.facts.pods_dir(), uid.to_owned());
        apart(move || clean::tear_down(&pods, &uid)).await
    }

    /// The uids that have a directory here.
    pub(crate) fn orphans(&self) -> std::io::Result<Vec<String>> {
        clean::uids(&self.facts.pods_dir())
    }

    /// The emptyDir and configMap-like volumes of a pod, measured now.
    pub(crate) async fn usage(&self, uid: &str) -> std::io::Result<Vec<VolumeUsage>> {
        let folder = self.facts.pod_dir(uid);
        apart(move || usage::measure(&folder)).await
    }

    fn place(&self, pod: &Pod, kind: &str, volume: &str) -> PathBuf {
        place(&self.facts, pod, kind, volume)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, BTreeMap<String, MountedVolume>>> {
        self.claimed.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Work on the filesystem, away from the tasks of other pods.
    async fn blocking(
        &self,
        pod: &Pod,
        volume: &Volume,
        work: impl FnOnce(&Pod, &Volume, &NodeFacts) -> Result<MountedVolume, String> + Send + 'static,
    ) -> Result<MountedVolume, String> {
        let (pod, volume, facts) = (pod.clone(), volume.clone(), self.facts.clone());
        apart(move || Ok(work(&pod, &volume, &facts))).await.map_err(|error| error.to_string())?
    }
}

async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    clock::apart(work).await.map_err(std::io::Error::other)?
}

/// `pods/<uid>/volumes/<kind>/<volume>`
fn place(facts: &NodeFacts, pod: &Pod, kind: &str, volume: &str) -> PathBuf {
    facts.pod_dir(config::uid(pod)).join("volumes").join(kind).join(volume)
}

fn image_volume(path: &Path) -> MountedVolume {
    MountedVolume { no_exec: true, ..MountedVolume::read_only(path) }
}

fn write_files(
    pod: &Pod,
    volume: &Volume,
    path: &Path,
    in_memory: bool,
    payload: &Payload,
) -> std::io::Result<()> {
    match in_memory {
        true => empty_dir::in_memory(path, None)?,
        false => empty_dir::on_disk(path)?,
    }
    nested::make_mount_points(pod, &volume.name, path)?;
    atomic::write(path, payload, || match payload::fs_group(pod) {
        Some(group) => fs_group::apply(path, group, true),
        None => Ok(()),
    })?;
    Ok(())
}

/// Volumes nobody mounts are ignored (N-132).
fn used(pod: &Pod) -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    for container in config::containers(pod) {
        used.extend(container.volume_mounts.iter().flatten().map(|mount| mount.name.clone()));
        used.extend(container.volume_devices.iter().flatten().map(|device| device.name.clone()));
        let files = container.env.iter().flatten().filter_map(|env| env.value_from.as_ref());
        let files = files.filter_map(|from| from.file_key_ref.as_ref());
        used.extend(files.map(|file| file.volume_name.clone()));
    }
    used
}

fn unknown(volume: &Volume) -> String {
    match &volume.csi {
        Some(csi) => {
            format!("driver name {} not found in the list of registered CSI drivers", csi.driver)
        }
        None => "no volume plugin matched".to_owned(),
    }
}

/// Takes away the directories of all pods, whoever they were.
pub(crate) fn clear_away(pods: &std::path::Path) -> std::io::Result<()> {
    clean::uids(pods)?.iter().try_for_each(|uid| clean::tear_down(pods, uid))
}

#[cfg(test)]
mod tests;
