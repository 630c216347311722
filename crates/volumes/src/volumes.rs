//! Sets up the volumes of a pod, keeps them up to date, measures and removes them (N-132 to N-156).
//!
//!     pods/<uid>/volumes/<kind>/<volume>        what containers mount
//!     pods/<uid>/volume-subpaths/…              one bind mount per subPath (`podconfig::subpath`)
//!     pods/<uid>/plugins/<kind>/<volume>/ready  the volume is complete; it is not set up again
//!
//! Not here: how a container sees them (`podconfig::mounts`).

use crate::atomic::Payload;
use crate::payload::PayloadSources;
use crate::tokens::Tokens;
use crate::{atomic, claims, empty_dir, fs_group, hostpath, nested, payload, removal, usage};
use client::Client;
use k8s_openapi::api::core::v1::{Pod, Volume};
use podconfig::{
    MountedVolume, MountedVolumes, NodeFacts, Objects, make_pod_directories, mount_table, pod_uids,
};
use runtime::Runtime;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

const IMAGE: &str = "kubernetes.io~image";

/// Why a volume could not be set up. `message` is the part that upstream's event has after its
/// prefix (N-133).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeError {
    pub volume: String,
    pub message: String,
    /// It is not known what to mount, for example because a claim is not bound.
    pub unprocessed: bool,
}

impl VolumeError {
    pub(crate) fn new(volume: &str, message: impl Into<String>) -> VolumeError {
        VolumeError { volume: volume.to_owned(), message: message.into(), unprocessed: false }
    }

    /// The message of the FailedMount event.
    pub fn event_message(&self) -> String {
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

/// The measured size of one volume of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeUsage {
    pub volume: String,
    pub bytes: u64,
    pub inodes: u64,
    /// On disk, not in memory: it counts as ephemeral storage, and the caller enforces its sizeLimit.
    pub on_disk: bool,
}

pub struct Volumes {
    facts: Arc<NodeFacts>,
    objects: Arc<Objects>,
    client: Client,
    runtime: Arc<dyn Runtime>,
    tokens: Tokens,
    /// Volumes of claims, by pod and by volume. A claim is read only once per pod (N-134).
    claimed: Mutex<HashMap<String, BTreeMap<String, MountedVolume>>>,
}

impl Volumes {
    pub fn new(
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

    /// Creates the pod's directories (N-34) and every volume that a container uses, and brings
    /// configMap, secret, projected and downwardAPI volumes up to date (N-134). Called at every
    /// pass of the pod's worker.
    ///
    /// Does not pull images: [`Volumes::mount_image`] adds an image volume once its image is there.
    pub async fn set_up(&self, pod: &Pod) -> Result<MountedVolumes, Vec<VolumeError>> {
        if let Err(error) = make_pod_directories(&self.facts, podconfig::uid(pod)) {
            let message = format!("error making pod data directories: {error}");
            return Err(vec![VolumeError::new("", message)]);
        }
        let used = used(pod);
        let all = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
        let mut mounted = MountedVolumes::default();
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

    /// None for an image volume whose image is not there yet.
    async fn set_up_one(
        &self,
        pod: &Pod,
        volume: &Volume,
    ) -> Result<Option<MountedVolume>, VolumeError> {
        let failed = |message: String| VolumeError::new(&volume.name, message);
        let sources =
            PayloadSources { objects: &self.objects, tokens: &self.tokens, facts: &self.facts };
        if let Some(payload) = sources.payload(pod, volume).await {
            return self.write(pod, volume, payload.map_err(failed)?).await.map(Some);
        }
        if volume.empty_dir.is_some() {
            let set_up = self.blocking(pod, volume, empty_dir::set_up).await;
            return set_up.map_err(failed).map(Some);
        }
        if let Some(it) = &volume.host_path {
            let path = hostpath::check(&it.path, it.type_.as_deref().unwrap_or_default());
            return Ok(Some(MountedVolume::writable(&path.map_err(failed)?)));
        }
        if volume.image.is_some() {
            let path = self.volume_dir(pod, IMAGE, &volume.name);
            let mounted = mount_table::is_mount_point(&path).map_err(|e| failed(e.to_string()))?;
            return Ok(mounted.then(|| image_volume(&path)));
        }
        if let Some(claim) = claims::claim(pod, volume) {
            return self.set_up_claim(pod, volume, claim).await.map(Some);
        }
        Err(failed(no_plugin(volume)))
    }

    /// Writes the files of a volume: on tmpfs, except those of a ConfigMap (N-136).
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
            let path = volume_dir(facts, pod, kind, &volume.name);
            write_files(pod, volume, &path, in_memory, &payload).map_err(|e| e.to_string())?;
            Ok(MountedVolume::read_only(&path))
        });
        written.await.map_err(|message| VolumeError::new(&volume.name, message))
    }

    async fn set_up_claim(
        &self,
        pod: &Pod,
        volume: &Volume,
        claim: claims::Claim<'_>,
    ) -> Result<MountedVolume, VolumeError> {
        let uid = podconfig::uid(pod);
        let known = self.claimed().get(uid).and_then(|known| known.get(&volume.name)).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let bound = claims::bound(&self.client, podconfig::namespace(pod), &claim).await;
        let pv = bound.map_err(|message| VolumeError {
            unprocessed: true,
            ..VolumeError::new(&volume.name, message)
        })?;
        let read_only = claim.read_only;
        let mounted = self.blocking(pod, volume, move |pod, volume, facts| {
            claims::mount(pod, volume, &pv, read_only, facts)
        });
        let mounted = mounted.await.map_err(|message| VolumeError::new(&volume.name, message))?;
        let mut known = self.claimed();
        known.entry(uid.to_owned()).or_default().insert(volume.name.clone(), mounted.clone());
        Ok(mounted)
    }

    /// Mounts `image` as the image volume `volume`. Idempotent.
    pub async fn mount_image(
        &self,
        pod: &Pod,
        volume: &str,
        image: &runtime::Image,
        mounted: &mut MountedVolumes,
    ) -> Result<(), VolumeError> {
        let path = self.volume_dir(pod, IMAGE, volume);
        let failed = |message: String| VolumeError::new(volume, message);
        if !mount_table::is_mount_point(&path).map_err(|error| failed(error.to_string()))? {
            podconfig::make_directory(&path).map_err(|error| failed(error.to_string()))?;
            let shown = self.runtime.images().mount(&image.id, &path).await;
            shown.map_err(|error| failed(error.to_string()))?;
        }
        mounted.volumes.insert(volume.to_owned(), image_volume(&path));
        Ok(())
    }

    /// Unmounts and removes everything below `pods/<uid>`. Never follows a link out of it and never
    /// touches the content of a hostPath or a PersistentVolume. Idempotent.
    pub async fn tear_down(&self, uid: &str) -> std::io::Result<()> {
        self.tokens.forget(uid);
        self.claimed().remove(uid);
        let (pods, uid) = (self.facts.pods_dir(), uid.to_owned());
        run_blocking(move || removal::tear_down(&pods, &uid)).await
    }

    /// The uids of all pods that have a directory on this node.
    pub fn pods_on_disk(&self) -> std::io::Result<Vec<String>> {
        pod_uids(&self.facts.pods_dir())
    }

    /// Measures the emptyDir, configMap, secret, projected and downwardAPI volumes of a pod.
    pub async fn usage(&self, uid: &str) -> std::io::Result<Vec<VolumeUsage>> {
        let folder = self.facts.pod_dir(uid);
        run_blocking(move || usage::measure(&folder)).await
    }

    fn volume_dir(&self, pod: &Pod, kind: &str, volume: &str) -> PathBuf {
        volume_dir(&self.facts, pod, kind, volume)
    }

    fn claimed(&self) -> MutexGuard<'_, HashMap<String, BTreeMap<String, MountedVolume>>> {
        self.claimed.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Runs work on the filesystem without blocking the tasks of other pods.
    async fn blocking(
        &self,
        pod: &Pod,
        volume: &Volume,
        work: impl FnOnce(&Pod, &Volume, &NodeFacts) -> Result<MountedVolume, String> + Send + 'static,
    ) -> Result<MountedVolume, String> {
        let (pod, volume, facts) = (pod.clone(), volume.clone(), self.facts.clone());
        run_blocking(move || Ok(work(&pod, &volume, &facts)))
            .await
            .map_err(|error| error.to_string())?
    }
}

async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    clock::run_blocking(work).await.map_err(std::io::Error::other)?
}

/// `pods/<uid>/volumes/<kind>/<volume>`
pub(crate) fn volume_dir(facts: &NodeFacts, pod: &Pod, kind: &str, volume: &str) -> PathBuf {
    facts.pod_dir(podconfig::uid(pod)).join("volumes").join(kind).join(volume)
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

/// The names of the volumes that containers use; others are ignored (N-132).
fn used(pod: &Pod) -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    for container in podconfig::containers(pod) {
        used.extend(container.volume_mounts.iter().flatten().map(|mount| mount.name.clone()));
        used.extend(container.volume_devices.iter().flatten().map(|device| device.name.clone()));
        let files = container.env.iter().flatten().filter_map(|env| env.value_from.as_ref());
        let files = files.filter_map(|from| from.file_key_ref.as_ref());
        used.extend(files.map(|file| file.volume_name.clone()));
    }
    used
}

fn no_plugin(volume: &Volume) -> String {
    match &volume.csi {
        Some(csi) => {
            format!("driver name {} not found in the list of registered CSI drivers", csi.driver)
        }
        None => "no volume plugin matched".to_owned(),
    }
}

/// Removes the directories of all pods.
pub fn remove_all(pods: &std::path::Path) -> std::io::Result<()> {
    pod_uids(pods)?.iter().try_for_each(|uid| removal::tear_down(pods, uid))
}
