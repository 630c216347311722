//! The volumes of a pod that are set up on this node, as its containers need to know them.
//!
//! Not here: how they come to be on disk (the crate `volumes`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The volumes of a pod that are set up, by name.
#[derive(Debug, Clone, Default)]
pub struct MountedVolumes {
    pub volumes: BTreeMap<String, MountedVolume>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountedVolume {
    /// The volume's root on this node; for a block volume, the device.
    pub path: PathBuf,
    /// Read-only for the container, whatever the mount says.
    pub read_only: bool,
    pub no_exec: bool,
    /// A device for `volumeDevices`, not a filesystem.
    pub block: bool,
    /// Supplemental group from the annotation of the PersistentVolume (N-127).
    pub group: Option<u32>,
}

impl MountedVolume {
    pub fn writable(path: &Path) -> MountedVolume {
        MountedVolume {
            path: path.to_owned(),
            read_only: false,
            no_exec: false,
            block: false,
            group: None,
        }
    }

    pub fn read_only(path: &Path) -> MountedVolume {
        MountedVolume { read_only: true, ..MountedVolume::writable(path) }
    }
}
