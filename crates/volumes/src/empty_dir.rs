//! emptyDir volumes: on disk, in memory, in huge pages (N-136).

use crate::usage::EMPTY_DIR;
use crate::volumes::volume_dir;
use crate::{fs_group, payload};
use api::quantity::Quantity;
use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Pod, Volume};
use podconfig::{MountedVolume, NodeFacts, amount, make_directory, mount_table, uid};
use std::fs;
use std::io::Result;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

pub(crate) fn set_up(
    pod: &Pod,
    volume: &Volume,
    facts: &NodeFacts,
) -> std::result::Result<MountedVolume, String> {
    let source = volume.empty_dir.clone().unwrap_or_default();
    let path = volume_dir(facts, pod, EMPTY_DIR, &volume.name);
    let ready = ready_marker(facts, pod, &volume.name);
    let medium = source.medium.as_deref().unwrap_or_default();
    // After a restart of the machine, a volume in memory must be mounted again.
    let exists = || match medium {
        "" => Ok(path.is_dir()),
        _ => mount_table::is_mount_point(&path),
    };
    let text = |error: std::io::Error| error.to_string();
    if ready.is_dir() && exists().map_err(text)? {
        return Ok(MountedVolume::writable(&path));
    }
    match medium {
        "" => on_disk(&path).map_err(text)?,
        "Memory" => in_memory(&path, size(pod, &source, facts)).map_err(text)?,
        medium => huge_pages(&path, medium, pod, facts)?,
    }
    if let Some(group) = payload::fs_group(pod) {
        fs_group::apply(&path, group, false).map_err(text)?;
    }
    make_directory(&ready).map_err(text)?;
    Ok(MountedVolume::writable(&path))
}

/// A directory that exists once the volume is complete.
fn ready_marker(facts: &NodeFacts, pod: &Pod, volume: &str) -> PathBuf {
    let plugins = facts.pod_dir(uid(pod)).join("plugins");
    plugins.join(EMPTY_DIR).join(volume).join("ready")
}

/// Creates a directory that every user may write to, whatever the umask.
pub(crate) fn on_disk(path: &Path) -> Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    make_directory(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o777))
}

pub(crate) fn in_memory(path: &Path, size: Option<u64>) -> Result<()> {
    if mount_table::is_mount_point(path)? {
        return Ok(());
    }
    make_directory(path)?;
    mount_table::tmpfs(path, size)
}

/// The smallest of sizeLimit, the pod's memory limit and the node's allocatable memory.
fn size(pod: &Pod, source: &EmptyDirVolumeSource, facts: &NodeFacts) -> Option<u64> {
    let limits = pod.spec.as_ref().map(lifecycle::resources::pod_limits).unwrap_or_default();
    let own = source.size_limit.as_ref().and_then(|limit| Quantity::parse(&limit.0).ok());
    let node = amount(&Some(facts.allocatable.clone()), "memory");
    let all = [own, limits.get("memory").copied(), node];
    let bytes = all.into_iter().flatten().filter_map(|it| u64::try_from(it.value()).ok());
    bytes.filter(|bytes| *bytes > 0).min()
}

/// `HugePages` means the only size that the pod requests, `HugePages-2Mi` that size.
fn huge_pages(
    path: &Path,
    medium: &str,
    pod: &Pod,
    facts: &NodeFacts,
) -> std::result::Result<(), String> {
    let page = match medium.strip_prefix("HugePages-") {
        Some(size) => bytes(size).ok_or_else(|| format!("unknown storage medium {medium:?}"))?,
        None if medium == "HugePages" => only_page_size(pod)?,
        None => return Err(format!("unknown storage medium {medium:?}")),
    };
    if !facts.huge_pages.contains(&page) {
        return Err(format!(
            "medium {medium:?} is not supported: this node has no huge pages of {page} bytes"
        ));
    }
    if mount_table::is_mount_point(path).map_err(|error| error.to_string())? {
        return Ok(());
    }
    let mounted = make_directory(path).and_then(|()| {
        let options = format!("pagesize={page},mode=0777");
        mount_table::filesystem("hugetlbfs", Path::new("nodev"), path, &options)
    });
    mounted.map_err(|error| error.to_string())
}

fn bytes(text: &str) -> Option<u64> {
    let quantity = Quantity::parse(text).ok()?;
    u64::try_from(quantity.value()).ok()
}

fn only_page_size(pod: &Pod) -> std::result::Result<u64, String> {
    let requests = pod.spec.as_ref().map(lifecycle::resources::pod_requests).unwrap_or_default();
    let mut sizes = requests.keys().filter_map(|name| bytes(name.strip_prefix("hugepages-")?));
    match (sizes.next(), sizes.next()) {
        (Some(size), None) => Ok(size),
        (Some(_), Some(_)) => {
            Err("medium: HugePages can't be used if multiple huge page sizes are requested".into())
        }
        (None, _) => Err("no huge pages are requested by the pod".into()),
    }
}
