//! Removes the cgroups of pods and their parents (N-105).

use std::path::{Path, PathBuf};

const MOUNTED: &str = "/sys/fs/cgroup";

/// Removes the cgroup `root` (`/kubepods`) and those below it, in every hierarchy. The kernel keeps
/// cgroups that still have processes.
pub(crate) fn remove(root: &str) {
    for hierarchy in hierarchies() {
        remove_empty(&hierarchy.join(root.trim_start_matches('/')));
    }
}

/// Removes the cgroups of one pod, whatever its QoS class.
pub(crate) fn remove_pod(root: &str, uid: &str) {
    for class in ["", "/burstable", "/besteffort"] {
        remove(&format!("{root}{class}/pod{uid}"));
    }
}

/// The root of cgroup v2, and the hierarchies of v1 controllers.
fn hierarchies() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(MOUNTED).into_iter().flatten().flatten();
    let trees = entries.map(|entry| entry.path()).filter(|path| path.is_dir());
    trees.chain([PathBuf::from(MOUNTED)]).collect()
}

/// Children first. Removing the directory of a cgroup removes its files too.
fn remove_empty(group: &Path) {
    let children = std::fs::read_dir(group).into_iter().flatten().flatten();
    for child in children.map(|entry| entry.path()).filter(|path| path.is_dir()) {
        remove_empty(&child);
    }
    let _ = std::fs::remove_dir(group);
}
