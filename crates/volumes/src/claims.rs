//! Volumes of PersistentVolumeClaims: finds the PersistentVolume and mounts it (N-147, N-148).

use crate::{fs_group, hostpath, payload};
use client::{Client, ObjectKey};
use k8s_openapi::api::core::v1::{
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, Pod, Volume,
};
use podconfig::{MountedVolume, NodeFacts, make_directory, mount_table};
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

const GROUP_ANNOTATION: &str = "pv.beta.kubernetes.io/gid";
pub(crate) const LOCAL: &str = "kubernetes.io~local-volume";

/// The claim that a volume refers to.
pub(crate) struct Claim<'a> {
    pub(crate) name: String,
    pub(crate) read_only: bool,
    /// Set for an ephemeral volume: the pod that must own the claim.
    pub(crate) owner: Option<&'a Pod>,
}

pub(crate) fn claim<'a>(pod: &'a Pod, volume: &Volume) -> Option<Claim<'a>> {
    if let Some(it) = &volume.persistent_volume_claim {
        let read_only = it.read_only == Some(true);
        return Some(Claim { name: it.claim_name.clone(), read_only, owner: None });
    }
    volume.ephemeral.as_ref().map(|_| Claim {
        name: format!("{}-{}", podconfig::name(pod), volume.name),
        read_only: false,
        owner: Some(pod),
    })
}

/// The PersistentVolume that the claim is bound to, if it refers back to the claim.
pub(crate) async fn bound(
    client: &Client,
    namespace: &str,
    claim: &Claim<'_>,
) -> Result<PersistentVolume, String> {
    let name = &claim.name;
    let on = |why: String| format!("error processing PVC {namespace}/{name}: {why}");
    let found = client.get::<PersistentVolumeClaim>(&ObjectKey::new(namespace, name)).await;
    let found = found
        .map_err(|error| on(format!("failed to fetch PVC from API server: {}", message(&error))))?;
    if let Some(pod) = claim.owner {
        check_owner(&found, pod).map_err(&on)?;
    }
    if found.metadata.deletion_timestamp.is_some() {
        return Err(on("PVC is being deleted".into()));
    }
    let status = found.status.as_ref().and_then(|status| status.phase.as_deref());
    let volume = found.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
    let volume = volume.filter(|volume| !volume.is_empty() && status == Some("Bound"));
    let volume = volume.ok_or_else(|| on("PVC is not bound".into()))?;
    let pv = client.get::<PersistentVolume>(&ObjectKey::cluster(volume)).await;
    let pv = pv.map_err(|error| {
        on(format!("failed to fetch PV {volume} from API server: {}", message(&error)))
    })?;
    let reference = pv.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    match reference {
        None => Err(on(format!(
            "found PV object {volume} with nil pvc.Spec.ClaimRef indicating it is not yet bound to the claim"
        ))),
        Some(reference) if reference.uid != found.metadata.uid => Err(on(format!(
            "found PV object {volume} with a pvc.Spec.ClaimRef.UID {} that does not point to claim {:?}",
            reference.uid.as_deref().unwrap_or_default(),
            found.metadata.uid.as_deref().unwrap_or_default()
        ))),
        Some(_) => Ok(pv),
    }
}

fn message(error: &client::Error) -> String {
    error.status().map_or_else(|| error.to_string(), |status| status.message.clone())
}

fn check_owner(claim: &PersistentVolumeClaim, pod: &Pod) -> Result<(), String> {
    let owners = claim.metadata.owner_references.iter().flatten();
    let mut controllers = owners.filter(|owner| owner.controller == Some(true));
    match controllers.any(|owner| owner.uid == podconfig::uid(pod)) {
        true => Ok(()),
        false => Err(format!(
            "PVC {}/{} was not created for pod {}/{} (pod is not owner)",
            claim.metadata.namespace.as_deref().unwrap_or_default(),
            claim.metadata.name.as_deref().unwrap_or_default(),
            podconfig::namespace(pod),
            podconfig::name(pod)
        )),
    }
}

/// Whether containers use the volume as a filesystem, and whether as a device.
pub(crate) fn used_as(pod: &Pod, volume: &str) -> (bool, bool) {
    let containers = podconfig::containers(pod);
    let files = containers
        .iter()
        .any(|it| it.volume_mounts.iter().flatten().any(|mount| mount.name == volume));
    let device = containers
        .iter()
        .any(|it| it.volume_devices.iter().flatten().any(|device| device.name == volume));
    (files, device)
}

/// Mounts or checks the PersistentVolume for the pod.
pub(crate) fn mount(
    pod: &Pod,
    volume: &Volume,
    pv: &PersistentVolume,
    read_only: bool,
    facts: &NodeFacts,
) -> Result<MountedVolume, String> {
    let empty = PersistentVolumeSpec::default();
    let spec = pv.spec.as_ref().unwrap_or(&empty);
    let block = spec.volume_mode.as_deref() == Some("Block");
    let (files, device) = used_as(pod, &volume.name);
    if block && files {
        let name = &volume.name;
        return Err(format!(
            "volume {name} has volumeMode Block, but is specified in volumeMounts"
        ));
    }
    if !block && device {
        let name = &volume.name;
        return Err(format!(
            "volume {name} has volumeMode Filesystem, but is specified in volumeDevices"
        ));
    }
    let path = match (&spec.local, &spec.host_path) {
        (Some(local), _) if block => block_device(&local.path)?,
        (Some(local), _) => mount_local(pod, pv, local.fs_type.as_deref(), &local.path, facts)?,
        (None, Some(host)) if block => block_device(&host.path)?,
        (None, Some(host)) => {
            hostpath::check(&host.path, host.type_.as_deref().unwrap_or_default())?
        }
        (None, None) => return Err("no volume plugin matched".into()),
    };
    let group = pv.metadata.annotations.as_ref().and_then(|it| it.get(GROUP_ANNOTATION));
    Ok(MountedVolume {
        path,
        read_only,
        no_exec: false,
        block,
        group: group.and_then(|group| group.parse().ok()),
    })
}

fn block_device(path: &str) -> Result<PathBuf, String> {
    let is = fs::metadata(path).is_ok_and(|about| about.file_type().is_block_device());
    match is {
        true => Ok(path.into()),
        false => Err(format!("{path} is not a block device")),
    }
}

/// Mounts a directory, or a device with a filesystem, below the pod's directory.
fn mount_local(
    pod: &Pod,
    pv: &PersistentVolume,
    fs_type: Option<&str>,
    source: &str,
    facts: &NodeFacts,
) -> Result<PathBuf, String> {
    let name = pv.metadata.name.as_deref().unwrap_or_default();
    let target = facts.pod_dir(podconfig::uid(pod)).join("volumes").join(LOCAL).join(name);
    if mount_table::is_mount_point(&target).map_err(text)? {
        return Ok(target);
    }
    if source.split('/').any(|part| part == "..") {
        return Err(format!("the path {source:?} must not contain '..'"));
    }
    let about = fs::metadata(source).map_err(|_| format!("path {source:?} does not exist"))?;
    let used_elsewhere = is_used_by_another(name, &target, facts).map_err(text)?;
    make_directory(&target).map_err(text)?;
    let source = Path::new(source);
    if about.file_type().is_block_device() {
        // Fails for a device without a filesystem: it is never formatted.
        let kind = fs_type.filter(|kind| !kind.is_empty()).unwrap_or("ext4");
        mount_table::filesystem(kind, source, &target, "").map_err(text)?;
    } else {
        mount_table::bind(source, &target).map_err(text)?;
    }
    if let Some(group) = payload::fs_group(pod).filter(|_| !used_elsewhere) {
        apply_fs_group(pod, &target, group).inspect_err(|_| {
            let _ = mount_table::unmount(&target);
        })?;
    }
    Ok(target)
}

/// Whether another pod has mounted the volume: only the first pod applies its fsGroup.
fn is_used_by_another(name: &str, own: &Path, facts: &NodeFacts) -> std::io::Result<bool> {
    let pods = match facts.pods_dir().canonicalize() {
        Ok(pods) => pods,
        Err(_) => return Ok(false),
    };
    let suffix = Path::new("volumes").join(LOCAL).join(name);
    let used = mount_table::points()?
        .into_iter()
        .any(|point| point.starts_with(&pods) && point.ends_with(&suffix) && point != own);
    Ok(used)
}

fn apply_fs_group(pod: &Pod, target: &Path, group: u32) -> Result<(), String> {
    let context = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    let policy = context.and_then(|context| context.fs_group_change_policy.as_deref());
    let on_mismatch = policy == Some("OnRootMismatch");
    if on_mismatch && fs_group::root_matches(target, group).map_err(text)? {
        return Ok(());
    }
    fs_group::apply(target, group, false).map_err(text)
}

fn text(error: std::io::Error) -> String {
    error.to_string()
}
