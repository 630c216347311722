//! A server in this process with a paused clock, for tests of sequences of writes.

use client::{Client, DeleteOptions, Object, ObjectKey};
use serde_json::{Value, json};
use testbed::TestServer;

pub(crate) struct TestCluster {
    pub(crate) client: Client,
    server: TestServer,
}

impl TestCluster {
    pub(crate) async fn start() -> TestCluster {
        clock::simulate("2026-01-01T00:00:00Z".parse().unwrap(), 1);
        let server = TestServer::with_controllers().await;
        TestCluster { client: server.admin(), server }
    }

    pub(crate) async fn stop(self) {
        self.server.stop().await;
    }

    pub(crate) async fn create<K: Object<DynamicType = ()>>(&self, object: Value) -> K {
        self.client.create::<K>(&typed::from_value(object).unwrap()).await.unwrap()
    }

    pub(crate) async fn delete<K: Object<DynamicType = ()>>(&self, object: &K) {
        let key = ObjectKey::of(object);
        self.client.delete::<K>(&key, &DeleteOptions::default()).await.unwrap();
    }
}

/// A template for pods with this `app` label.
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
