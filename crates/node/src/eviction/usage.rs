//! Resource usage of each pod: memory and processes from the runtime, disk usage from the files.

use crate::dependencies::Dependencies;
use k8s_openapi::api::core::v1::Pod;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use volumes::VolumeUsage;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct PodUsage {
    pub(super) pod: Arc<Pod>,
    pub(super) containers: Vec<ContainerUsage>,
    pub(super) volumes: Vec<VolumeUsage>,
    /// Size of the files that all its containers share, such as /etc/hosts.
    pub(super) files: u64,
    pub(super) inodes: u64,
    pub(super) processes: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ContainerUsage {
    pub(super) name: String,
    /// The working set.
    pub(super) memory: u64,
    /// Size of the writable layer.
    pub(super) disk: u64,
    pub(super) logs: u64,
    /// Size of its termination messages.
    pub(super) messages: u64,
}

impl ContainerUsage {
    /// What it has written to disk outside of volumes.
    pub(super) fn storage(&self) -> u64 {
        self.disk + self.logs + self.messages
    }
}

impl PodUsage {
    pub(super) fn memory(&self) -> u64 {
        self.containers.iter().map(|container| container.memory).sum()
    }

    /// Ephemeral storage: writable layers, logs, termination messages, shared files such as
    /// /etc/hosts, and volumes on disk.
    pub(super) fn disk(&self) -> u64 {
        let containers = self.containers.iter().map(ContainerUsage::storage);
        let volumes = self.volumes.iter().filter(|v| v.on_disk).map(|volume| volume.bytes);
        containers.chain(volumes).chain([self.files]).sum()
    }
}

/// What cannot be read counts as zero: no pod is evicted on a guess.
pub(super) async fn read(pods: &[Arc<Pod>], deps: &Dependencies) -> Vec<PodUsage> {
    let used = deps.runtime.usage().await.unwrap_or_default();
    let mut all = Vec::with_capacity(pods.len());
    for pod in pods {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let meta = &pod.metadata;
        let uid = text(&meta.uid);
        let logs = deps.facts.log_dir(&text(&meta.namespace), &text(&meta.name), &uid);
        let mut containers: Vec<ContainerUsage> = Vec::new();
        let mut processes = 0;
        // A container that does not run may have files too.
        for container in podconfig::containers(pod) {
            let name = container.name.clone();
            let mut usage = ContainerUsage {
                logs: size(vec![logs.join(&name)]).await,
                messages: size(vec![podconfig::message_files(&deps.facts, &uid, &name)]).await,
                name,
                ..ContainerUsage::default()
            };
            for own in used.iter().filter(|own| own.pod == uid && own.container == usage.name) {
                processes += own.processes;
                usage.memory += own.working_set_bytes;
                usage.disk += own.disk_bytes;
            }
            containers.push(usage);
        }
        let files = size(podconfig::pod_files(&deps.facts, &uid).to_vec()).await;
        let volumes = deps.volumes.usage(&uid).await.unwrap_or_default();
        let inodes = volumes.iter().map(|volume| volume.inodes).sum();
        all.push(PodUsage { pod: pod.clone(), containers, volumes, files, inodes, processes });
    }
    all
}

/// Disk usage of these files, and of the files in these directories.
async fn size(paths: Vec<PathBuf>) -> u64 {
    let of_file = |path: &PathBuf| {
        std::fs::symlink_metadata(path).map_or(0, |found| found.blocks().saturating_mul(512))
    };
    let sum = move || {
        let of_path = |path: &PathBuf| match std::fs::read_dir(path) {
            Ok(files) => files.flatten().map(|file| of_file(&file.path())).sum(),
            Err(_) => of_file(path),
        };
        paths.iter().map(of_path).sum()
    };
    clock::run_blocking(sum).await.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::bed::Bed;
    use serde_json::json;

    /// T-NODE-78 ranks pods by the number of their processes.
    #[tokio::test(start_paused = true)]
    async fn the_processes_of_a_pod_are_counted() {
        let bed = Bed::new().await;
        let agent = bed.agent().await;
        bed.pod("web", json!({}), json!({})).await;
        bed.until_running("web").await;
        let usage = read(&agent.deps.pods.list(), &agent.deps).await;
        let counts: Vec<u64> = usage.iter().map(|usage| usage.processes).collect();
        assert_eq!(counts, [testbed::machine::PROCESSES]);
    }

    /// N-137: /etc/hosts, the termination message and the log are files of the node that a
    /// container can write to.
    #[tokio::test(start_paused = true)]
    async fn all_files_that_a_container_can_write_count_as_its_storage() {
        let bed = Bed::new().await;
        let agent = bed.agent().await;
        let limits = json!({ "resources": { "limits": { "ephemeral-storage": "1Mi" } } });
        let pod = bed.pod("web", json!({}), limits).await;
        bed.until_running("web").await;
        let uid = pod.metadata.uid.clone().unwrap();
        let facts = &agent.deps.facts;
        let messages = podconfig::message_files(facts, &uid, "c");
        let message = std::fs::read_dir(&messages).unwrap().next().unwrap().unwrap().path();
        let [hosts, hostname, resolv_conf] = podconfig::pod_files(facts, &uid);
        let log = facts.log_dir("default", "web", &uid).join("c/0.log");
        std::fs::create_dir_all(log.parent().unwrap()).unwrap();
        for file in [message, hosts, hostname, resolv_conf, log] {
            let before = std::fs::read(&file).unwrap_or_default();
            std::fs::write(&file, vec![b'x'; 2 << 20]).unwrap();
            let usage = read(&agent.deps.pods.list(), &agent.deps).await;
            assert!(usage[0].disk() >= 2 << 20, "{} is not counted", file.display());
            let exceeded = super::super::limits::exceeded(&usage[0]).unwrap_or_default();
            assert!(exceeded.contains("exceeds the total limit"), "{exceeded}");
            std::fs::write(&file, before).unwrap();
        }
        let usage = read(&agent.deps.pods.list(), &agent.deps).await;
        assert_eq!(super::super::limits::exceeded(&usage[0]), None);
    }
}
