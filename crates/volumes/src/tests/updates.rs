//! Updates of volumes when their objects change, and cached tokens.

use super::test_node::{TIMEOUT, TestNode, mode_and_owner};
use crate::volumes::VolumeError;
use client::{DeleteOptions, ObjectKey};
use k8s_openapi::api::core::v1::ConfigMap;
use podconfig::uid;
use serde_json::{Value, json};
use std::fs;

/// Volumes are updated (N-134) when a watched object changes (N-135), atomically (N-138).
#[tokio::test]
async fn a_changed_object_updates_the_volume_at_the_next_pass() {
    let node = TestNode::new().await;
    node.config_map("cm", json!({ "key": "one" })).await;
    let volumes = json!([{ "name": "config", "configMap": { "name": "cm" } }]);
    let pod = node.pod_with("p", json!({}), volumes.clone()).await;
    let file = node.path(&pod, "config").await.join("key");
    assert_eq!(fs::read_to_string(&file).unwrap(), "one");

    node.set_data("cm", json!({ "key": "two", "more": "3" })).await;
    node.wait_for_change(&pod).await;
    node.set_up(&pod).await.unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "two");
    assert!(file.with_file_name("more").exists());

    // A later pod starts with the newest version, whatever the cache has.
    node.set_data("cm", json!({ "key": "three" })).await;
    let later = node.pod_with("later", json!({}), volumes).await;
    let file = node.path(&later, "config").await.join("key");
    assert_eq!(fs::read_to_string(&file).unwrap(), "three");

    node.wait_for_change(&pod).await;
    node.objects.unregister(uid(&pod));
    node.objects.unregister(uid(&later));
    node.set_data("cm", json!({ "key": "four" })).await;
    assert_eq!(fs::read_to_string(&file).unwrap(), "three", "no pod is registered any more");
}

#[tokio::test]
async fn n_140_an_optional_object_may_be_created_and_deleted_later() {
    let node = TestNode::new().await;
    let volumes = json!([{ "name": "config", "configMap": { "name": "cm", "optional": true } }]);
    let pod = node.pod_with("p", json!({}), volumes).await;
    let file = node.path(&pod, "config").await.join("key");
    assert!(!file.exists());

    node.config_map("cm", json!({ "key": "value" })).await;
    node.wait_for_change(&pod).await;
    node.set_up(&pod).await.unwrap();
    assert!(file.exists());

    let key = ObjectKey::new("default", "cm");
    node.client.delete::<ConfigMap>(&key, &DeleteOptions::default()).await.unwrap();
    node.wait_for_change(&pod).await;
    node.set_up(&pod).await.unwrap();
    assert!(!file.exists());
}

#[tokio::test]
async fn n_140_the_last_content_of_a_deleted_object_stays() {
    let node = TestNode::new().await;
    node.config_map("cm", json!({ "key": "value" })).await;
    let volumes = json!([{ "name": "config", "configMap": { "name": "cm" } }]);
    let pod = node.pod_with("p", json!({}), volumes).await;
    let file = node.path(&pod, "config").await.join("key");
    let key = ObjectKey::new("default", "cm");
    node.client.delete::<ConfigMap>(&key, &DeleteOptions::default()).await.unwrap();
    node.wait_for_change(&pod).await;
    let errors = node.set_up(&pod).await.unwrap_err();
    let messages: Vec<_> = errors.iter().map(VolumeError::event_message).collect();
    assert_eq!(
        messages,
        ["MountVolume.SetUp failed for volume \"config\" : configmap \"cm\" not found"]
    );
    assert!(file.exists());
}

#[tokio::test]
async fn n_135_an_immutable_object_is_read_once() {
    let node = TestNode::new().await;
    let map = json!({ "metadata": { "namespace": "default", "name": "cm" },
        "immutable": true, "data": { "key": "value" } });
    node.create::<ConfigMap>(map).await;
    let volumes = json!([{ "name": "config", "configMap": { "name": "cm" } }]);
    let pod = node.pod_with("p", json!({}), volumes).await;
    node.set_up(&pod).await.unwrap();
    let key = ObjectKey::new("default", "cm");
    node.client.delete::<ConfigMap>(&key, &DeleteOptions::default()).await.unwrap();
    node.set_up(&pod).await.unwrap();
}

/// Owner and mode of tokens (N-142, N-209), and renewal (N-143).
#[tokio::test]
async fn the_mode_of_a_token_depends_on_user_and_group_of_the_pod() {
    let node = TestNode::new().await;
    let token = json!([{ "name": "token", "projected": { "sources": [
        { "serviceAccountToken": { "path": "token", "expirationSeconds": 3607 } },
    ] } }]);
    for (name, context, expected) in [
        ("nobody", json!({}), (0o644, 0, 0)),
        ("user", json!({ "runAsUser": 1000 }), (0o600, 1000, 0)),
        ("group", json!({ "fsGroup": 10000 }), (0o640, 0, 10000)),
        ("both", json!({ "runAsUser": 1000, "fsGroup": 10000 }), (0o640, 1000, 10000)),
    ] {
        let pod = node.pod_with(name, context, token.clone()).await;
        let file = node.path(&pod, "token").await.join("token");
        assert_eq!(mode_and_owner(&file), expected, "{name}");
        let text = fs::read_to_string(&file).unwrap();
        let claims = claims(&text);
        assert_eq!(claims["kubernetes.io"]["pod"]["uid"], uid(&pod), "bound to the pod");
        node.set_up(&pod).await.unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), text, "cached until renewal");
    }
}

fn claims(token: &str) -> Value {
    use base64::Engine;
    let part = token.split('.').nth(1).unwrap();
    let bytes = base64::prelude::BASE64_URL_SAFE_NO_PAD.decode(part).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

#[tokio::test]
async fn n_58_services_are_known_once_the_cache_is_synced() {
    let node = TestNode::new().await;
    let listed = async {
        while node.objects.services("default").is_none() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TIMEOUT, listed).await.unwrap();
}
