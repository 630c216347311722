//! Volumes that follow their objects, and tokens that are kept and renewed.

use super::world::{PATIENCE, World, about};
use crate::config::uid;
use crate::volumes::VolumeError;
use client::{DeleteOptions, ObjectKey};
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};
use std::fs;

/// N-134, N-135, N-138
#[tokio::test]
async fn a_changed_object_is_told_and_shows_at_the_next_pass() {
    let world = World::new().await;
    world.config_map("cm", json!({ "key": "one" })).await;
    let volumes = json!([{ "name": "config", "configMap": { "name": "cm" } }]);
    let pod = world.pod_with("p", json!({}), volumes.clone()).await;
    let file = world.path(&pod, "config").await.join("key");
    assert_eq!(fs::read_to_string(&file).unwrap(), "one");

    world.set_data("cm", json!({ "key": "two", "more": "3" })).await;
    world.told(&pod).await;
    world.pass(&pod).await.unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "two");
    assert!(file.with_file_name("more").exists());

    // A pod that comes later starts with what is there when it comes, cache or no cache.
    world.set_data("cm", json!({ "key": "three" })).await;
    let later = world.pod_with("later", json!({}), volumes).await;
    let file = world.path(&later, "config").await.join("key");
    assert_eq!(fs::read_to_string(&file).unwrap(), "three");

    world.told(&pod).await;
    world.objects.unregister(uid(&pod));
    world.objects.unregister(uid(&later));
    world.set_data("cm", json!({ "key": "four" })).await;
    assert_eq!(fs::read_to_string(&file).unwrap(), "three", "nobody looks any more");
}

/// N-140
#[tokio::test]
async fn an_optional_object_may_come_and_go() {
    let world = World::new().await;
    let volumes = json!([{ "name": "config", "configMap": { "name": "cm", "optional": true } }]);
    let pod = world.pod_with("p", json!({}), volumes).await;
    let file = world.path(&pod, "config").await.join("key");
    assert!(!file.exists());

    world.config_map("cm", json!({ "key": "value" })).await;
    world.told(&pod).await;
    world.pass(&pod).await.unwrap();
    assert!(file.exists());

    let key = ObjectKey::new("default", "cm");
    world.client.delete::<ConfigMap>(&key, &DeleteOptions::default()).await.unwrap();
    world.told(&pod).await;
    world.pass(&pod).await.unwrap();
    assert!(!file.exists());
}

/// N-140
#[tokio::test]
async fn the_last_content_of_a_deleted_object_stays() {
    let world = World::new().await;
    world.config_map("cm", json!({ "key": "value" })).await;
    let volumes = json!([{ "name": "config", "configMap": { "name": "cm" } }]);
    let pod = world.pod_with("p", json!({}), volumes).await;
    let file = world.path(&pod, "config").await.join("key");
    let key = ObjectKey::new("default", "cm");
    world.client.delete::<ConfigMap>(&key, &DeleteOptions::default()).await.unwrap();
    world.told(&pod).await;
    let errors = world.pass(&pod).await.unwrap_err();
    let told: Vec<_> = errors.iter().map(VolumeError::event_message).collect();
    assert_eq!(
        told,
        ["MountVolume.SetUp failed for volume \"config\" : configmap \"cm\" not found"]
    );
    assert!(file.exists());
}

/// N-135
#[tokio::test]
async fn an_immutable_object_is_read_once() {
    let world = World::new().await;
    let map = json!({ "metadata": { "namespace": "default", "name": "cm" },
        "immutable": true, "data": { "key": "value" } });
    world.create::<ConfigMap>(map).await;
    let volumes = json!([{ "name": "config", "configMap": { "name": "cm" } }]);
    let pod = world.pod_with("p", json!({}), volumes).await;
    world.pass(&pod).await.unwrap();
    let key = ObjectKey::new("default", "cm");
    world.client.delete::<ConfigMap>(&key, &DeleteOptions::default()).await.unwrap();
    world.pass(&pod).await.unwrap();
}

/// N-142, N-143, N-209
#[tokio::test]
async fn a_tokens_mode_depends_on_who_must_read_it() {
    let world = World::new().await;
    let token = json!([{ "name": "token", "projected": { "sources": [
        { "serviceAccountToken": { "path": "token", "expirationSeconds": 3607 } },
    ] } }]);
    for (name, context, wanted) in [
        ("nobody", json!({}), (0o644, 0, 0)),
        ("user", json!({ "runAsUser": 1000 }), (0o600, 1000, 0)),
        ("group", json!({ "fsGroup": 10000 }), (0o640, 0, 10000)),
        ("both", json!({ "runAsUser": 1000, "fsGroup": 10000 }), (0o640, 1000, 10000)),
    ] {
        let pod = world.pod_with(name, context, token.clone()).await;
        let file = world.path(&pod, "token").await.join("token");
        assert_eq!(about(&file), wanted, "{name}");
        let text = fs::read_to_string(&file).unwrap();
        let claims = claims(&text);
        assert_eq!(claims["kubernetes.io"]["pod"]["uid"], uid(&pod), "bound to the pod");
        world.pass(&pod).await.unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), text, "kept until it is due");
    }
}

fn claims(token: &str) -> Value {
    use base64::Engine;
    let part = token.split('.').nth(1).unwrap();
    let bytes = base64::prelude::BASE64_URL_SAFE_NO_PAD.decode(part).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

/// N-58
#[tokio::test]
async fn services_are_known_once_they_were_listed() {
    let world = World::new().await;
    let listed = async {
        while world.objects.services("default").is_none() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, listed).await.unwrap();
}
