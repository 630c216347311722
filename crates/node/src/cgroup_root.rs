//! Removes the cgroups of pods and their parents (N-105), and the processes in them.

use std::path::{Path, PathBuf};
use std::time::Duration;

const MOUNTED: &str = "/sys/fs/cgroup";
/// Killed processes normally disappear within milliseconds.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Removes the cgroup `root` (`/kubepods`) and those below it, in every hierarchy. The kernel keeps
/// cgroups that still have processes.
pub(crate) fn remove(root: &str) {
    for hierarchy in hierarchies() {
        remove_empty(&hierarchy.join(root.trim_start_matches('/')));
    }
}

/// Removes the cgroups of one pod, whatever its QoS class.
pub(crate) fn remove_pod(root: &str, uid: &str) {
    groups_of_pod(root, uid).iter().for_each(|group| remove_empty(group));
}

/// Kills all processes of one pod and waits until they are gone. The caller must know that the pod is one of this
/// node: a kubelet on the same machine may use the same parent cgroup.
pub(crate) async fn kill_pod(root: &str, uid: &str) {
    let groups = groups_of_pod(root, uid);
    if kill_all(&groups) {
        return;
    }
    tracing::warn!(uid, "killing processes of a pod that the container runtime does not know");
    let killed = tokio::time::timeout(KILL_TIMEOUT, async {
        while !kill_all(&groups) {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    });
    if killed.await.is_err() {
        tracing::warn!(uid, "killed processes of a pod still exist");
    }
}

/// Sends SIGKILL to all processes in these cgroups. Returns true if there were none.
fn kill_all(groups: &[PathBuf]) -> bool {
    let mut found = Vec::new();
    for group in groups {
        processes(group, &mut found);
        // On v2 this also kills processes that are being forked.
        let file = std::fs::OpenOptions::new().write(true).open(group.join("cgroup.kill"));
        let _ = file.and_then(|mut file| std::io::Write::write_all(&mut file, b"1"));
    }
    for pid in &found {
        let pid = nix::unistd::Pid::from_raw(*pid);
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
    }
    found.is_empty()
}

/// The processes in a cgroup and its children.
fn processes(group: &Path, found: &mut Vec<i32>) {
    let listed = std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    // A process outside our PID namespace is listed as 0, which would mean our own process group.
    found.extend(listed.lines().filter_map(|pid| pid.parse().ok()).filter(|pid: &i32| *pid > 0));
    children(group).for_each(|child| processes(&child, found));
}

/// The existing cgroups of one pod: one per hierarchy.
fn groups_of_pod(root: &str, uid: &str) -> Vec<PathBuf> {
    let root = root.trim_start_matches('/');
    // The uid of a static pod comes from its manifest.
    if uid.is_empty() || uid.contains('/') {
        return Vec::new();
    }
    let hierarchies = hierarchies();
    let classes = ["", "/burstable", "/besteffort"].map(|class| format!("{root}{class}/pod{uid}"));
    let groups = hierarchies.iter().flat_map(|top| classes.iter().map(|group| top.join(group)));
    groups.filter(|group| group.is_dir()).collect()
}

/// The root of cgroup v2, and the hierarchies of v1 controllers.
fn hierarchies() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(MOUNTED).into_iter().flatten().flatten();
    let trees = entries.map(|entry| entry.path()).filter(|path| path.is_dir());
    trees.chain([PathBuf::from(MOUNTED)]).collect()
}

/// Children first. Removing the directory of a cgroup removes its files too.
fn remove_empty(group: &Path) {
    children(group).for_each(|child| remove_empty(&child));
    let _ = std::fs::remove_dir(group);
}

fn children(group: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = std::fs::read_dir(group).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir())
}
