//! What every pod holds: memory as the runtime counts it, disk as it is found on disk.

use crate::parts::Parts;
use crate::volumes::VolumeUsage;
use k8s_openapi::api::core::v1::Pod;
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct PodUsage {
    pub(super) pod: Arc<Pod>,
    pub(super) containers: Vec<ContainerUse>,
    pub(super) volumes: Vec<VolumeUsage>,
    pub(super) inodes: u64,
    pub(super) processes: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ContainerUse {
    pub(super) name: String,
    /// Working set.
    pub(super) memory: u64,
    /// Of the writable layer.
    pub(super) disk: u64,
    pub(super) logs: u64,
}

impl PodUsage {
    pub(super) fn memory(&self) -> u64 {
        self.containers.iter().map(|container| container.memory).sum()
    }

    /// Ephemeral storage: layers, logs, and volumes that lie on disk.
    pub(super) fn disk(&self) -> u64 {
        let containers = self.containers.iter().map(|container| container.disk + container.logs);
        let volumes = self.volumes.iter().filter(|v| v.on_disk).map(|volume| volume.bytes);
        containers.chain(volumes).sum()
    }
}

/// What cannot be read counts as nothing: nobody is evicted on a guess.
pub(super) async fn read(pods: &[Arc<Pod>], parts: &Parts) -> Vec<PodUsage> {
    let used = parts.runtime.usage().await.unwrap_or_default();
    let mut all = Vec::with_capacity(pods.len());
    for pod in pods {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let meta = &pod.metadata;
        let uid = text(&meta.uid);
        let logs = parts.facts.log_dir(&text(&meta.namespace), &text(&meta.name), &uid);
        let mut containers: Vec<ContainerUse> = Vec::new();
        let mut processes = 0;
        for own in used.iter().filter(|used| used.pod == uid) {
            processes += own.processes;
            containers.push(ContainerUse {
                name: own.container.clone(),
                memory: own.working_set_bytes,
                disk: own.disk_bytes,
                logs: size(logs.join(&own.container)).await,
            });
        }
        let volumes = parts.volumes.usage(&uid).await.unwrap_or_default();
        let inodes = volumes.iter().map(|volume| volume.inodes).sum();
        all.push(PodUsage { pod: pod.clone(), containers, volumes, inodes, processes });
    }
    all
}

/// Of the files of one directory of logs.
async fn size(directory: PathBuf) -> u64 {
    let sum = move || {
        let files = std::fs::read_dir(directory).into_iter().flatten().flatten();
        files.filter_map(|file| Some(file.metadata().ok()?.len())).sum()
    };
    clock::apart(sum).await.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::bed::Bed;
    use serde_json::json;

    /// T-NODE-78: without their number nobody can be ranked by it.
    #[tokio::test(start_paused = true)]
    async fn the_processes_of_a_pod_are_counted() {
        let bed = Bed::new().await;
        let agent = bed.agent().await;
        bed.pod("web", json!({}), json!({})).await;
        bed.until_running("web").await;
        let usage = read(&agent.parts.pods.list(), &agent.parts).await;
        let counts: Vec<u64> = usage.iter().map(|usage| usage.processes).collect();
        assert_eq!(counts, [crate::agent::bed::PROCESSES]);
    }
}
