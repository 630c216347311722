//! A server to test against, clients of it over both transports, and objects to try.

use client::{Changes, Client, ObjectKey};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, ServiceAccount};
use serde_json::json;
use server::authn::User;
use server::{Config, Running, StoreChoice};
use std::net::SocketAddr;
use std::time::Duration;
use tempfile::TempDir;

/// Nothing here takes that long; it is there so that a failing test ends.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Cluster {
    running: Running,
    data_dir: TempDir,
}

impl Cluster {
    pub(crate) async fn start() -> Cluster {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let data_dir = tempfile::tempdir().unwrap();
        let running = start_at(&data_dir, ([127, 0, 0, 1], 0).into()).await;
        let cluster = Cluster { running, data_dir };
        // Pods need it, and no controller is here to make it.
        let account: ServiceAccount = typed::from_value(json!({
            "metadata": { "namespace": "default", "name": "default" },
        }))
        .unwrap();
        cluster.in_process().create(&account).await.unwrap();
        cluster
    }

    pub(crate) fn in_process(&self) -> Client {
        let admin = User::authenticated("tester", &["system:masters"]);
        Client::in_process(self.running.server.door(admin))
    }

    pub(crate) async fn over_https(&self) -> Client {
        Client::from_kubeconfig(&self.running.kubeconfig).await.unwrap()
    }

    /// What the kubeconfig says: URL, token, certificate of the authority.
    pub(crate) fn credentials(&self) -> (String, String, String) {
        let config = kube::config::Kubeconfig::read_from(&self.running.kubeconfig).unwrap();
        let url = config.clusters[0].cluster.as_ref().unwrap().server.clone().unwrap();
        let read = |name| std::fs::read_to_string(self.data_dir.path().join(name)).unwrap();
        (url, read("admin.token").trim().to_owned(), read("pki/ca.crt"))
    }

    /// Stops the server, lets something happen, and starts it again with the same data, keys and
    /// address.
    pub(crate) async fn restart(self, meanwhile: impl AsyncFnOnce()) -> Cluster {
        let Cluster { running, data_dir } = self;
        let address = running.address;
        running.stop().await;
        meanwhile().await;
        Cluster { running: start_at(&data_dir, address).await, data_dir }
    }

    pub(crate) async fn stop(self) {
        self.running.stop().await;
    }
}

async fn start_at(data_dir: &TempDir, listen: SocketAddr) -> Running {
    let config = Config {
        data_dir: data_dir.path().into(),
        listen,
        store: StoreChoice::Embedded,
        audit_log: None,
        controllers: false,
    };
    server::start(config).await.unwrap()
}

pub(crate) async fn next_matching(changes: &mut Changes, key: &ObjectKey) {
    let next = async { while changes.next().await != *key {} };
    tokio::time::timeout(PATIENCE, next).await.unwrap_or_else(|_| panic!("{key} did not change"));
}

pub(crate) fn config_map(name: &str, value: &str) -> ConfigMap {
    typed::from_value(json!({
        "metadata": { "namespace": "default", "name": name }, "data": { "value": value },
    }))
    .unwrap()
}

pub(crate) fn pod(name: &str, app: &str) -> Pod {
    typed::from_value(json!({
        "metadata": { "namespace": "default", "name": name, "labels": { "app": app } },
        "spec": { "containers": [{ "name": "c", "image": "i" }] },
    }))
    .unwrap()
}
