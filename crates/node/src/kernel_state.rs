//! Names what all pods of a node share in the kernel, in a file, so that it can be removed after a crash.

use std::path::{Path, PathBuf};

#[derive(Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct KernelState {
    /// Prefix of the names of pods' links.
    pub(crate) link: String,
    /// The node's pod address ranges. Empty if the runtime provides the network.
    pub(crate) cidrs: Vec<String>,
    /// The parent cgroup of all pods.
    pub(crate) cgroup: String,
}

impl KernelState {
    /// Does nothing if the file is up to date: on a full disk the write would fail.
    pub(crate) fn write(&self, data_dir: &Path) -> std::io::Result<()> {
        if KernelState::read(data_dir).as_ref() == Some(self) {
            return Ok(());
        }
        let path = path(data_dir);
        let new = path.with_extension("new");
        std::fs::create_dir_all(data_dir)?;
        std::fs::write(&new, serde_json::to_vec(self)?)?;
        std::fs::rename(&new, &path)
    }

    /// None if no node has run here, or the file cannot be read.
    pub(crate) fn read(data_dir: &Path) -> Option<KernelState> {
        serde_json::from_slice(&std::fs::read(path(data_dir)).ok()?).ok()
    }

    /// The network configuration that the node had.
    pub(crate) fn network(&self, data_dir: &Path) -> network::PodsConfig {
        network::PodsConfig {
            state_dir: network_records(data_dir),
            netns_dir: data_dir.join("netns"),
            link: self.link.clone(),
            cidrs: self.cidrs.iter().filter_map(|cidr| cidr.parse().ok()).collect(),
            cluster_cidrs: Vec::new(),
            table: pod_table(&self.link),
            mtu: 1500, // The agent computes that of new pods.
        }
    }
}

/// The nftables table of the pod network with this link. Several nodes on one machine have different links.
fn pod_table(link: &str) -> String {
    format!("landfall-{link}")
}

/// The nftables table with the rules of Services.
pub fn service_table(link: &str) -> String {
    format!("{}-services", pod_table(link))
}

/// Removes the packet rules of Services and policies of the node with this link, if there are any.
pub fn remove_traffic_rules(link: &str) -> network::Result<()> {
    network::remove_service_rules(&service_table(link))?;
    network::policies::remove_tables(&format!("{}-policies", pod_table(link)))
}

/// The directory with the records of pod networks, below the data directory.
pub fn network_records(data_dir: &Path) -> PathBuf {
    data_dir.join("network")
}

fn path(data_dir: &Path) -> PathBuf {
    data_dir.join("kernel_state.json")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn an_unchanged_state_is_not_written_again() {
        let directory = tempfile::tempdir().unwrap();
        let state = |link: &str| KernelState {
            link: link.to_owned(),
            cidrs: vec!["10.244.0.0/24".to_owned()],
            cgroup: "/kubepods".to_owned(),
        };
        let written = |link: &str| {
            state(link).write(directory.path()).unwrap();
            std::fs::metadata(path(directory.path())).unwrap().ino()
        };
        let first = written("lf0");
        assert_eq!(written("lf0"), first);
        assert_ne!(written("lf1"), first);
        assert_eq!(KernelState::read(directory.path()), Some(state("lf1")));
    }
}
