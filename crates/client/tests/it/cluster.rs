//! Objects for tests with a [`testbed::TestServer`], and a wait for their changes.

use client::{Changes, ObjectKey};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use serde_json::json;
use std::time::Duration;

/// No test takes this long; the limit lets a failing test end.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

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
