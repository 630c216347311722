//! Measures a pod's volumes (N-137).

use crate::VolumeUsage;
use podconfig::mount_table;
use std::collections::HashSet;
use std::fs;
use std::io::{ErrorKind, Result};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Directories of the kinds of volumes whose content belongs to the pod.
pub(crate) const EMPTY_DIR: &str = "kubernetes.io~empty-dir";
pub(crate) const CONFIG_MAP: &str = "kubernetes.io~configmap";
pub(crate) const SECRET: &str = "kubernetes.io~secret";
pub(crate) const PROJECTED: &str = "kubernetes.io~projected";
pub(crate) const DOWNWARD: &str = "kubernetes.io~downward-api";

/// Walks through each volume whose content belongs to the pod.
pub(crate) fn measure(pod_dir: &Path) -> Result<Vec<VolumeUsage>> {
    let mut found = Vec::new();
    for kind in [EMPTY_DIR, CONFIG_MAP, SECRET, PROJECTED, DOWNWARD] {
        for folder in folders(&pod_dir.join("volumes").join(kind))? {
            let Some(volume) = folder.file_name().map(|name| name.to_string_lossy().into_owned())
            else {
                continue;
            };
            let on_disk = !mount_table::is_mount_point(&folder)?;
            let (bytes, inodes) = walk(&folder)?;
            found.push(VolumeUsage { volume, bytes, inodes, on_disk });
        }
    }
    Ok(found)
}

fn folders(kind: &Path) -> Result<Vec<PathBuf>> {
    match fs::read_dir(kind) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Bytes and inodes in use, without other filesystems mounted inside. Files that vanish meanwhile
/// do not count.
fn walk(root: &Path) -> Result<(u64, u64)> {
    let device = fs::symlink_metadata(root)?.dev();
    let (mut bytes, mut inodes) = (0u64, 0u64);
    let mut linked = HashSet::new();
    let mut pending = vec![root.to_owned()];
    while let Some(path) = pending.pop() {
        let Ok(about) = fs::symlink_metadata(&path) else { continue };
        if about.dev() != device
            || (about.nlink() > 1 && !about.is_dir() && !linked.insert(about.ino()))
        {
            continue;
        }
        bytes = bytes.saturating_add(about.blocks().saturating_mul(512));
        inodes += 1;
        if about.is_dir() {
            let entries = fs::read_dir(&path).into_iter().flatten().flatten();
            pending.extend(entries.map(|entry| entry.path()));
        }
    }
    Ok((bytes, inodes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n_137_a_volume_is_measured_in_blocks_and_hard_links_count_once() {
        let pod = tempfile::tempdir().unwrap();
        let volume = pod.path().join("volumes").join(EMPTY_DIR).join("scratch");
        fs::create_dir_all(volume.join("dir")).unwrap();
        fs::write(volume.join("dir/file"), vec![1u8; 300_000]).unwrap();
        fs::hard_link(volume.join("dir/file"), volume.join("again")).unwrap();
        std::os::unix::fs::symlink("/", volume.join("everything")).unwrap();
        let used = measure(pod.path()).unwrap();
        assert_eq!(used.len(), 1);
        assert_eq!(
            (used[0].volume.as_str(), used[0].inodes, used[0].on_disk),
            ("scratch", 4, true)
        );
        assert!((300_000..1_000_000).contains(&used[0].bytes), "{}", used[0].bytes);
    }
}
