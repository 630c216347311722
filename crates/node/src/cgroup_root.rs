//! The cgroups that all pods are below (N-105): taken away when no pod is left.

use std::path::{Path, PathBuf};

const MOUNTED: &str = "/sys/fs/cgroup";

/// Removes the empty directories of `root` (`/kubepods`) in every hierarchy. What still holds a
/// process stays: the kernel sees to that.
pub(crate) fn remove(root: &str) {
    for hierarchy in hierarchies() {
        remove_empty(&hierarchy.join(root.trim_start_matches('/')));
    }
}

/// The one tree of cgroup v2, and the trees of v1 controllers beside it.
fn hierarchies() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(MOUNTED).into_iter().flatten().flatten();
    let trees = entries.map(|entry| entry.path()).filter(|path| path.is_dir());
    trees.chain([PathBuf::from(MOUNTED)]).collect()
}

/// Children first; a cgroup's files go with it.
fn remove_empty(group: &Path) {
    let children = std::fs::read_dir(group).into_iter().flatten().flatten();
    for child in children.map(|entry| entry.path()).filter(|path| path.is_dir()) {
        remove_empty(&child);
    }
    let _ = std::fs::remove_dir(group);
}
