//! How much a pod's volumes hold (N-137).

use super::{VolumeUsage, mount_table};
use std::collections::HashSet;
use std::fs;
use std::io::{ErrorKind, Result};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where the kinds of volumes lie whose content is the pod's own.
pub(crate) const EMPTY_DIR: &str = "kubernetes.io~empty-dir";
pub(crate) const CONFIG_MAP: &str = "kubernetes.io~configmap";
pub(crate) const SECRET: &str = "kubernetes.io~secret";
pub(crate) const PROJECTED: &str = "kubernetes.io~projected";
pub(crate) const DOWNWARD: &str = "kubernetes.io~downward-api";

/// Volumes of the pod's own, by walking through them.
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

/// Blocks in use and inodes, without what is mounted inside. What vanishes meanwhile is not counted.
fn walk(root: &Path) -> Result<(u64, u64)> {
    let device = fs::symlink_metadata(root)?.dev();
    let (mut bytes, mut inodes) = (0u64, 0u64);
    let mut linked = HashSet::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(path) = waiting.pop() {
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
            waiting.extend(entries.map(|entry| entry.path()));
        }
    }
    Ok((bytes, inodes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// N-137
    #[test]
    fn a_volume_is_measured_in_blocks_and_links_count_once() {
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
