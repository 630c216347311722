//! What all pods of a node share in the kernel, written down so that it can be taken away after a crash.

use std::path::{Path, PathBuf};

#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Traces {
    /// The device that pods' links are called after.
    pub(crate) link: String,
    /// This node's ranges of addresses.
    pub(crate) cidrs: Vec<String>,
    /// The cgroup that all pods are below.
    pub(crate) cgroup: String,
}

impl Traces {
    pub(crate) fn write(&self, data_dir: &Path) -> std::io::Result<()> {
        let path = path(data_dir);
        let new = path.with_extension("new");
        std::fs::create_dir_all(data_dir)?;
        std::fs::write(&new, serde_json::to_vec(self)?)?;
        std::fs::rename(&new, &path)
    }

    /// None: no node has run here, or nobody can tell.
    pub(crate) fn read(data_dir: &Path) -> Option<Traces> {
        serde_json::from_slice(&std::fs::read(path(data_dir)).ok()?).ok()
    }

    /// The same network that the node had.
    pub(crate) fn network(&self, data_dir: &Path) -> network::PodsConfig {
        network::PodsConfig {
            state_dir: data_dir.join("network"),
            netns_dir: data_dir.join("netns"),
            link: self.link.clone(),
            cidrs: self.cidrs.iter().filter_map(|cidr| cidr.parse().ok()).collect(),
            cluster_cidrs: Vec::new(),
            service_cidrs: Vec::new(),
            table: format!("landfall-{}", self.link),
            mtu: 1500,
        }
    }
}

fn path(data_dir: &Path) -> PathBuf {
    data_dir.join("traces.json")
}
