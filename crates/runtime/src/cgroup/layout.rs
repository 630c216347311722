//! The cgroup hierarchies of this machine. They are read once, because they do not change while landfall runs.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

#[derive(Debug)]
pub(crate) enum Layout {
    V2 {
        root: PathBuf,
    },
    /// Hybrid machines also have a v2 tree.
    V1 {
        hierarchies: Vec<Hierarchy>,
        unified: Option<PathBuf>,
        /// Hierarchies without a controller that we use, such as that of systemd. Other runtimes use them.
        others: Vec<PathBuf>,
    },
}

#[derive(Debug)]
pub(crate) struct Hierarchy {
    pub(crate) root: PathBuf,
    /// `cpu`, `cpuacct`: several may share one hierarchy.
    pub(crate) controllers: Vec<String>,
}

/// The v1 controllers that we use. Each one costs time at every container start.
const CONTROLLERS: &[&str] =
    &["cpu", "cpuacct", "cpuset", "memory", "pids", "devices", "blkio", "hugetlb", "freezer"];

pub(crate) fn layout() -> &'static Layout {
    static LAYOUT: OnceLock<Layout> = OnceLock::new();
    LAYOUT.get_or_init(|| {
        Layout::read(&std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
    })
}

impl Layout {
    fn read(mountinfo: &str) -> Layout {
        /// Index of the field in a line of mountinfo.
        const MOUNT_POINT: usize = 4;
        let (mut hierarchies, mut unified, mut others) = (Vec::new(), None, Vec::new());
        for line in mountinfo.lines() {
            let Some((mount_point, kind)) = line.split_once(" - ") else { continue };
            let Some(root) = mount_point.split(' ').nth(MOUNT_POINT).map(PathBuf::from) else {
                continue;
            };
            let mut kind = kind.split(' ');
            match kind.next() {
                Some("cgroup2") if unified.is_none() => unified = Some(root),
                Some("cgroup") => {
                    let options = kind.nth(1).unwrap_or_default().split(',');
                    let controllers: Vec<String> = options
                        .filter(|option| CONTROLLERS.contains(option))
                        .map(str::to_owned)
                        .collect();
                    match controllers.is_empty() {
                        true => others.push(root),
                        false => hierarchies.push(Hierarchy { root, controllers }),
                    }
                }
                _ => {}
            }
        }
        match unified {
            Some(root) if hierarchies.is_empty() => Layout::V2 { root },
            unified => Layout::V1 { hierarchies, unified, others },
        }
    }

    pub(crate) fn is_v2(&self) -> bool {
        matches!(self, Layout::V2 { .. })
    }

    /// The roots of all hierarchies that we use.
    pub(super) fn roots(&self) -> impl Iterator<Item = &Path> {
        let (v1, unified) = match self {
            Layout::V2 { root } => (&[][..], Some(root)),
            Layout::V1 { hierarchies, unified, .. } => (&hierarchies[..], unified.as_ref()),
        };
        v1.iter().map(|hierarchy| hierarchy.root.as_path()).chain(unified.map(PathBuf::as_path))
    }

    /// The roots of hierarchies that only other runtimes use.
    pub(super) fn other_roots(&self) -> &[PathBuf] {
        match self {
            Layout::V2 { .. } => &[],
            Layout::V1 { others, .. } => others,
        }
    }

    pub(super) fn root_of(&self, controller: &str) -> Option<&Path> {
        match self {
            Layout::V2 { root } => Some(root),
            Layout::V1 { hierarchies, .. } => hierarchies
                .iter()
                .find(|hierarchy| hierarchy.controllers.iter().any(|name| name == controller))
                .map(|hierarchy| hierarchy.root.as_path()),
        }
    }

    pub(super) fn unified(&self) -> Option<&Path> {
        match self {
            Layout::V2 { root } => Some(root),
            Layout::V1 { unified, .. } => unified.as_deref(),
        }
    }

    /// The hierarchy that is used to list the processes of a cgroup.
    pub(super) fn process_root(&self) -> &Path {
        self.root_of("memory")
            .or_else(|| self.roots().next())
            .unwrap_or_else(|| Path::new("/sys/fs/cgroup"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw";

    #[test]
    fn a_hybrid_machine_is_v1_with_a_unified_tree() {
        let layout = Layout::read(HYBRID);
        assert!(!layout.is_v2());
        assert_eq!(layout.root_of("cpuacct"), Some(Path::new("/sys/fs/cgroup/cpu,cpuacct")));
        assert_eq!(layout.root_of("pids"), None);
        assert_eq!(layout.unified(), Some(Path::new("/sys/fs/cgroup/unified")));
        assert_eq!(layout.roots().count(), 3);
        assert_eq!(layout.other_roots(), [Path::new("/sys/fs/cgroup/systemd")]);
    }

    #[test]
    fn a_machine_with_only_the_unified_tree_is_v2() {
        let layout = Layout::read("30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate");
        assert!(layout.is_v2());
        assert_eq!(layout.root_of("memory"), Some(Path::new("/sys/fs/cgroup")));
    }
}
