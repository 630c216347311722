//! Reads how much of each resource is available on the node.

use super::thresholds::{Reading, Readings, Signal};
use crate::node_object::kilobytes;
use std::fs;
use std::path::{Path, PathBuf};

/// The directories whose filesystems are checked.
#[derive(Debug, Clone)]
pub(crate) struct Filesystems {
    /// The node's directory: volumes, logs.
    pub(crate) node: PathBuf,
    pub(crate) images: PathBuf,
}

/// Omits what cannot be read.
pub(super) fn read(filesystems: &Filesystems) -> Readings {
    let mut readings = Readings::new();
    readings.extend(memory().map(|reading| (Signal::MemoryAvailable, reading)));
    let disks = [
        (&filesystems.node, Signal::NodefsAvailable, Signal::NodefsInodesFree),
        (&filesystems.images, Signal::ImagefsAvailable, Signal::ImagefsInodesFree),
    ];
    for (path, space, inodes) in disks {
        if let Some((bytes, files)) = filesystem(path) {
            readings.insert(space, bytes);
            readings.extend(files.map(|files| (inodes, files)));
        }
    }
    readings.extend(processes().map(|reading| (Signal::PidAvailable, reading)));
    readings
}

/// Memory outside of working sets. The kernel can reclaim inactive file pages.
fn memory() -> Option<Reading> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let of = |name: &str| kilobytes(&meminfo, name).map(|number| number * 1024);
    let capacity = of("MemTotal:")?;
    let in_use = match cgroup_v1_working_set() {
        Some(bytes) => bytes,
        None => capacity.checked_sub(of("MemFree:")? + of("Inactive(file):")?)?,
    };
    Some(Reading { available: capacity.saturating_sub(in_use), capacity })
}

fn cgroup_v1_working_set() -> Option<u64> {
    let root = Path::new("/sys/fs/cgroup/memory");
    let usage: u64 =
        fs::read_to_string(root.join("memory.usage_in_bytes")).ok()?.trim().parse().ok()?;
    let stat = fs::read_to_string(root.join("memory.stat")).ok()?;
    let inactive = stat.lines().find_map(|line| line.strip_prefix("total_inactive_file "))?;
    Some(usage.saturating_sub(inactive.trim().parse().ok()?))
}

/// Bytes and, if the filesystem counts them, inodes.
fn filesystem(path: &Path) -> Option<(Reading, Option<Reading>)> {
    let about = nix::sys::statvfs::statvfs(path).ok()?;
    let unit = about.fragment_size() as u64;
    let available = about.blocks_available() as u64 * unit;
    let bytes = Reading { available, capacity: about.blocks() as u64 * unit };
    let (free, all) = (about.files_free() as u64, about.files() as u64);
    Some((bytes, (all > 0).then_some(Reading { available: free, capacity: all })))
}

fn processes() -> Option<Reading> {
    let capacity = fs::read_to_string("/proc/sys/kernel/pid_max").ok()?.trim().parse().ok()?;
    let load = fs::read_to_string("/proc/loadavg").ok()?;
    // `0.00 0.01 0.05 1/234 5678`: the fourth field is running/all tasks.
    let tasks: u64 = load.split_whitespace().nth(3)?.split_once('/')?.1.parse().ok()?;
    Some(Reading { available: u64::saturating_sub(capacity, tasks), capacity })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n_115_signals_are_read_on_this_machine() {
        let dir = tempfile::tempdir().unwrap();
        let filesystems = Filesystems { node: dir.path().into(), images: dir.path().into() };
        let readings = read(&filesystems);
        for signal in [Signal::MemoryAvailable, Signal::NodefsAvailable, Signal::PidAvailable] {
            let reading = readings[&signal];
            assert!(reading.capacity > 0 && reading.available <= reading.capacity, "{signal:?}");
        }
        let nowhere = dir.path().join("nowhere");
        let missing = Filesystems { node: nowhere.clone(), images: nowhere };
        assert!(!read(&missing).contains_key(&Signal::NodefsAvailable));
    }
}
