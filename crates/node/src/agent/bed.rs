//! A node without a kernel, for tests that follow a pod from creation to removal: a real server in this process, a
//! paused clock, and containers that the test controls.
//!
//!     test ──▶ server ◀──▶ agent ──▶ Machine (containers, and a list of calls)
//!
//! Not here: many pods and many crashes; see `crates/sim`.

mod gate;

use super::{Config, Running};
use crate::deadlines::GraceAfterRestart;
use crate::node_object::Hardware;
use crate::shutdown::Periods;
use client::{Client, DeleteOptions, ObjectKey};
use gate::Gate;
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};
use server::authn::User;
use server::{ServerInstance, ServerTemplate, SimulatedServer};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use testbed::Machine;

pub(crate) const NODE: &str = "n1";
/// In simulated time. No test takes this long; the limit lets a failing test end.
const PATIENCE: Duration = Duration::from_secs(120);
/// Polling interval in milliseconds.
const POLL_EVERY: u64 = 50;

pub(crate) struct Bed {
    /// The client of the cluster's user.
    pub(crate) client: Client,
    pub(crate) machine: Arc<Machine>,
    pub(crate) directory: TempDir,
    /// The number of the agent's next deletes that fail.
    refused: Arc<AtomicUsize>,
    server: SimulatedServer,
    _instance: ServerInstance,
}

impl Drop for Bed {
    fn drop(&mut self) {
        clock::stop_simulating();
    }
}

impl Bed {
    /// Needs a single-threaded runtime with a paused clock.
    pub(crate) async fn new() -> Bed {
        clock::simulate("2026-01-01T00:00:00Z".parse().unwrap(), 1);
        let _ = rustls::crypto::ring::default_provider().install_default();
        let directory = tempfile::tempdir().unwrap();
        let template = ServerTemplate::create(&directory.path().join("pki")).await.unwrap();
        let mut instance = template.instance();
        let server = instance.start().await.unwrap();
        let admin = User::authenticated("tester", &["system:masters"]);
        let client = Client::in_process(server.server.in_process(admin));
        std::fs::create_dir_all(directory.path().join("manifests")).unwrap();
        let (machine, refused) = (Machine::new(), Arc::default());
        Bed { client, machine, directory, refused, server, _instance: instance }
    }

    /// Dropping it is a crash; the next agent finds what it left.
    pub(crate) async fn agent(&self) -> Running {
        self.agent_with(|_| ()).await
    }

    pub(crate) async fn agent_with(&self, change: impl FnOnce(&mut Config)) -> Running {
        let user = User::authenticated(format!("system:node:{NODE}"), &["system:nodes"]);
        let service = self.server.server.in_process(user);
        let client = Client::in_process(Gate { service, refused: self.refused.clone() });
        let directory = self.directory.path();
        let mut config = Config {
            name: NODE.into(),
            data_dir: directory.join("data"),
            log_dir: directory.join("log"),
            node_ips: vec!["192.0.2.1".parse().unwrap()],
            endpoint: None,
            hardware: Some(Hardware { cores: 8, memory_bytes: 8 << 30, storage_bytes: 8 << 30 }),
            runtime: self.machine.clone(),
            link: "bed".into(),
            manifests: Some(self.manifests()),
            cluster_dns: Vec::new(),
            traffic: None,
            cgroup: "/bed".into(),
            eviction_hard: Some(String::new()),
            pod_pids_limit: None,
            seccomp_default: false,
            lease: crate::node_object::LEASE_DURATION,
            grace_after_restart: GraceAfterRestart::Full,
            shutdown: Periods::default(),
            version: "v1.36.0".into(),
        };
        change(&mut config);
        super::start(client, config).await.unwrap()
    }

    /// Lets the agent's next deletes fail.
    pub(crate) fn refuse_deletes(&self, count: usize) {
        self.refused.store(count, Ordering::Relaxed);
    }

    pub(crate) fn manifests(&self) -> PathBuf {
        self.directory.path().join("manifests")
    }

    /// Creates a pod on this node with one container `c` and these fields.
    pub(crate) async fn pod(&self, name: &str, spec: Value, container: Value) -> Pod {
        let pod = json!({
            "metadata": { "namespace": "default", "name": name },
            "spec": self.spec(spec, container),
        });
        self.client.create(&typed::from_value::<Pod>(pod).unwrap()).await.unwrap()
    }

    pub(crate) fn spec(&self, mut spec: Value, mut container: Value) -> Value {
        container["name"] = "c".into();
        container["image"] = "i:1".into();
        spec["containers"] = json!([container]);
        spec["nodeName"] = NODE.into();
        spec["automountServiceAccountToken"] = false.into();
        spec
    }

    pub(crate) async fn find(&self, name: &str) -> Option<Pod> {
        self.client.find::<Pod>(&key(name)).await.unwrap()
    }

    pub(crate) async fn delete(&self, name: &str, grace: Option<u32>) {
        let mut options = DeleteOptions::default();
        if let Some(grace) = grace {
            options = options.grace(grace);
        }
        self.client.delete::<Pod>(&key(name), &options).await.unwrap();
    }

    pub(crate) async fn patch(&self, name: &str, patch: Value) {
        self.client.patch_merge::<Pod>(&key(name), &patch).await.unwrap();
    }

    pub(crate) async fn patch_node(&self, patch: Value) {
        self.client.patch_merge::<Node>(&ObjectKey::cluster(NODE), &patch).await.unwrap();
    }

    /// Waits until the condition holds for the pod in the API, and returns the pod.
    pub(crate) async fn until(&self, name: &str, so: impl Fn(&Pod) -> bool) -> Pod {
        let waits = async {
            loop {
                if let Some(pod) = self.find(name).await.filter(|pod| so(pod)) {
                    return pod;
                }
                pass(POLL_EVERY).await;
            }
        };
        match tokio::time::timeout(PATIENCE, waits).await {
            Ok(pod) => pod,
            Err(_) => panic!("{name} is {:#?}", self.find(name).await),
        }
    }

    pub(crate) async fn until_running(&self, name: &str) -> Pod {
        self.until(name, |pod| phase(pod) == "Running").await
    }

    pub(crate) async fn until_gone(&self, name: &str) {
        let waits = async {
            while self.find(name).await.is_some() {
                pass(POLL_EVERY).await;
            }
        };
        assert!(tokio::time::timeout(PATIENCE, waits).await.is_ok(), "{name} is still there");
    }

    /// Waits until the calls of the runtime match.
    pub(crate) async fn until_calls(&self, matches: impl Fn(&[String]) -> bool) {
        let waits = async {
            while !matches(&self.machine.calls()) {
                pass(POLL_EVERY).await;
            }
        };
        let matched = tokio::time::timeout(PATIENCE, waits).await;
        assert!(matched.is_ok(), "{:?}", self.machine.calls());
    }
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("default", name)
}

pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Lets this many milliseconds pass, and all tasks do what is due then.
pub(crate) async fn pass(millis: u64) {
    tokio::time::sleep(Duration::from_millis(millis)).await;
}
