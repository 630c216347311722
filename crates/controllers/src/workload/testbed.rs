//! A server in this process, for tests of what one write after another leads to. Its clock is paused.

use client::{Client, DeleteOptions, Object, ObjectKey};
use serde_json::{Value, json};
use server::authn::User;
use server::{Config, Running, StoreChoice};
use tempfile::TempDir;

pub(crate) struct Bed {
    pub(crate) client: Client,
    running: Running,
    _data_dir: TempDir,
}

impl Bed {
    pub(crate) async fn start() -> Bed {
        clock::simulate("2026-01-01T00:00:00Z".parse().unwrap(), 1);
        let _ = rustls::crypto::ring::default_provider().install_default();
        let data_dir = tempfile::tempdir().unwrap();
        let config = Config {
            data_dir: data_dir.path().into(),
            listen: ([127, 0, 0, 1], 0).into(),
            store: StoreChoice::Embedded,
            audit_log: None,
            controllers: true,
        };
        let running = server::start(config).await.unwrap();
        let admin = User::authenticated("tester", &["system:masters"]);
        let client = Client::in_process(running.server.door(admin));
        Bed { client, running, _data_dir: data_dir }
    }

    pub(crate) async fn stop(self) {
        self.running.stop().await;
    }

    pub(crate) async fn create<K: Object<DynamicType = ()>>(&self, object: Value) -> K {
        self.client.create::<K>(&typed::from_value(object).unwrap()).await.unwrap()
    }

    pub(crate) async fn delete<K: Object<DynamicType = ()>>(&self, object: &K) {
        let key = ObjectKey::of(object);
        self.client.delete::<K>(&key, &DeleteOptions::default()).await.unwrap();
    }
}

/// What a template for pods of this app is.
pub(crate) fn template(app: &str) -> Value {
    json!({ "metadata": { "labels": { "app": app } },
            "spec": { "containers": [{ "name": "c", "image": "i" }] } })
}

pub(crate) fn replica_set(name: &str, finalizers: Value) -> Value {
    json!({
        "metadata": { "namespace": "default", "name": name, "finalizers": finalizers },
        "spec": { "replicas": 0, "selector": { "matchLabels": { "app": "web" } },
                  "template": template("web") },
    })
}

pub(crate) fn pod(namespace: &str, name: &str, app: &str) -> Value {
    let mut pod = template(app);
    (pod["metadata"]["namespace"], pod["metadata"]["name"]) = (json!(namespace), json!(name));
    pod
}
