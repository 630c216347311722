//! The client with a real server, over both transports, which must behave the same.

use crate::cluster::{config_map, next_matching, pod};
use client::{Cache, Client, DeleteOptions, Error, ObjectKey, Queue, Selection};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde_json::json;
use std::sync::Arc;
use testbed::TestServer;

/// Runs a test over each transport, each with its own server.
macro_rules! over_both_transports {
    ($($name:ident)*) => {
        mod in_process {
            $(#[tokio::test]
            async fn $name() {
                let server = super::TestServer::with_service_account().await;
                super::$name(server.admin()).await;
                server.stop().await;
            })*
        }
        mod over_https {
            $(#[tokio::test]
            async fn $name() {
                let server = super::TestServer::with_service_account().await;
                super::$name(server.over_https().await).await;
                server.stop().await;
            })*
        }
    };
}

over_both_transports! {
    writes_name_their_field_manager
    an_object_is_created_changed_and_deleted
    errors_can_be_distinguished
    many_objects_are_created_and_deleted_at_once
    an_unchanged_status_is_not_written
    a_pod_is_bound_evicted_and_deleted
    a_budget_can_forbid_an_eviction
    a_cache_follows_changes
    a_cache_holds_only_selected_objects
    a_cache_feeds_keys_into_a_queue
    a_cache_catches_up_with_own_writes
}

/// the field manager comes from the parameter or the user agent.
async fn writes_name_their_field_manager(client: Client) {
    let manager = async |client: &Client, name: &str| {
        let created = client.create(&config_map(name, "a")).await.unwrap();
        created.metadata.managed_fields.unwrap_or_default().pop().and_then(|entry| entry.manager)
    };
    assert_eq!(manager(&client, "one").await.as_deref(), Some("landfall"));
    assert_eq!(manager(&client.named("kubelet"), "two").await.as_deref(), Some("kubelet"));
}

async fn an_object_is_created_changed_and_deleted(client: Client) {
    let client = client.named("tester");
    let key = ObjectKey::new("default", "one");
    assert!(client.find::<ConfigMap>(&key).await.unwrap().is_none());

    let created = client.create(&config_map("one", "a")).await.unwrap();
    let managers = created.metadata.managed_fields.clone().unwrap();
    assert_eq!(managers[0].manager.as_deref(), Some("tester"));

    let got: ConfigMap = client.get(&key).await.unwrap();
    assert_eq!(got, created);

    let patched: ConfigMap =
        client.patch_merge(&key, &json!({ "data": { "more": "b" } })).await.unwrap();
    assert_eq!(patched.data.as_ref().unwrap().len(), 2);

    let stale = client.update(&created).await.unwrap_err();
    assert!(stale.is_conflict(), "{stale}");

    let wanted = json!({
        "metadata": { "namespace": "default", "name": "one" }, "data": { "value": "applied" },
    });
    let applied: ConfigMap = client.apply(wanted).await.unwrap();
    assert_eq!(applied.data.unwrap()["value"], "applied");

    let listed: Vec<ConfigMap> = client.list(&Selection::namespace("default")).await.unwrap();
    assert!(listed.iter().any(|found| found.metadata.name.as_deref() == Some("one")));

    let other = DeleteOptions::of_uid("not-this-one");
    let refused = client.delete::<ConfigMap>(&key, &other).await.unwrap_err();
    assert!(refused.is_conflict(), "{refused}");
    let left = client.delete::<ConfigMap>(&key, &DeleteOptions::only(&created)).await.unwrap();
    assert!(left.is_none(), "it has no finalizers and no grace period");
    assert!(client.get::<ConfigMap>(&key).await.unwrap_err().is_not_found());
}

async fn errors_can_be_distinguished(client: Client) {
    client.create(&config_map("one", "a")).await.unwrap();
    let again = client.create(&config_map("one", "a")).await.unwrap_err();
    assert!(again.is_already_exists() && !again.is_conflict());
    assert_eq!(
        again.to_string(),
        "failed to create configmaps default/one: configmaps \"one\" already exists"
    );
    let bad = client.create(&config_map("NOT A NAME", "a")).await.unwrap_err();
    assert!(bad.is_invalid(), "{bad}");
    let mut without_namespace = config_map("x", "a");
    without_namespace.metadata.namespace = Some("nowhere".into());
    assert!(client.create(&without_namespace).await.unwrap_err().is_not_found());
}

async fn many_objects_are_created_and_deleted_at_once(client: Client) {
    const MANY: usize = 150;
    let maps = (0..MANY).map(|i| config_map(&format!("many-{i}"), "a"));
    let created = client.create_all(maps).await.unwrap();
    assert_eq!(created.len(), MANY);

    // One is deleted already, one has been replaced by another object of the same name. `delete_all` skips both.
    let key = ObjectKey::of(&created[0]);
    client.delete::<ConfigMap>(&key, &DeleteOptions::default()).await.unwrap();
    let key = ObjectKey::of(&created[1]);
    client.delete::<ConfigMap>(&key, &DeleteOptions::default()).await.unwrap();
    client.create(&config_map("many-1", "another")).await.unwrap();

    client.delete_all(created.into_iter().map(Arc::new)).await.unwrap();
    let left: Vec<ConfigMap> = client.list(&Selection::namespace("default")).await.unwrap();
    let left: Vec<_> = left.iter().filter_map(|map| map.metadata.name.as_deref()).collect();
    let left: Vec<_> = left.into_iter().filter(|name| name.starts_with("many")).collect();
    assert_eq!(left, ["many-1"]);

    let twice = [config_map("many-1", "a"), config_map("never-tried", "a")];
    assert!(client.create_all(twice).await.unwrap_err().is_already_exists());
    let never = ObjectKey::new("default", "never-tried");
    assert!(client.find::<ConfigMap>(&never).await.unwrap().is_none());
}

async fn an_unchanged_status_is_not_written(client: Client) {
    let created = client.create(&pod("web", "a")).await.unwrap();
    let key = ObjectKey::of(&created);
    let status = json!({ "phase": "Running", "qosClass": "BestEffort" });
    client.update_status(&created, &status).await.unwrap();
    let running: Pod = client.get(&key).await.unwrap();
    assert_eq!(running.status.as_ref().unwrap().phase.as_deref(), Some("Running"));

    let late = client.update_status(&created, json!({ "phase": "Failed" })).await.unwrap_err();
    assert!(late.is_conflict(), "{late}");

    client.update_status(&running, running.status.clone()).await.unwrap();
    let same: Pod = client.get(&key).await.unwrap();
    assert_eq!(same.metadata.resource_version, running.metadata.resource_version);

    let ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
    client.patch_status::<Pod>(&key, &ready).await.unwrap();
    let fast = json!({ "status": { "conditions": [{ "type": "Fast", "status": "True" }] } });
    let patched = client.patch_status::<Pod>(&key, &fast).await.unwrap();
    let conditions = patched.status.clone().unwrap().conditions.unwrap();
    assert!(["Ready", "Fast"].iter().all(|t| conditions.iter().any(|c| c.type_ == *t)));
}

async fn a_pod_is_bound_evicted_and_deleted(client: Client) {
    let created = client.create(&pod("web", "a")).await.unwrap();
    let key = ObjectKey::of(&created);
    let uid = created.metadata.uid.as_deref();
    let wrong = client.bind(&key, Some("another"), "node-1").await.unwrap_err();
    assert!(wrong.is_conflict(), "{wrong}");
    client.bind(&key, uid, "node-1").await.unwrap();
    let bound: Pod = client.get(&key).await.unwrap();
    assert_eq!(bound.spec.unwrap().node_name.as_deref(), Some("node-1"));
    assert!(client.bind(&key, uid, "node-2").await.unwrap_err().is_conflict());

    client.evict(&key, &DeleteOptions::default().grace(9)).await.unwrap();
    let leaving: Pod = client.get(&key).await.unwrap();
    assert_eq!(leaving.metadata.deletion_grace_period_seconds, Some(9));

    let hurried: Option<Pod> =
        client.delete(&key, &DeleteOptions::of_uid(uid.unwrap()).grace(4)).await.unwrap();
    assert_eq!(hurried.unwrap().metadata.deletion_grace_period_seconds, Some(4));
    client.delete::<Pod>(&key, &DeleteOptions::default().grace(0)).await.unwrap();
    assert!(client.find::<Pod>(&key).await.unwrap().is_none());
}

async fn a_budget_can_forbid_an_eviction(client: Client) {
    let created = client.create(&pod("web", "guarded")).await.unwrap();
    let key = ObjectKey::of(&created);
    client.bind(&key, None, "node-1").await.unwrap();
    let ready = json!({ "status": {
        "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }],
    } });
    client.patch_status::<Pod>(&key, &ready).await.unwrap();
    let budget: PodDisruptionBudget = typed::from_value(json!({
        "metadata": { "namespace": "default", "name": "all" },
        "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": "guarded" } } },
    }))
    .unwrap();
    client.create(&budget).await.unwrap();
    let refused = client.evict(&key, &DeleteOptions::default()).await.unwrap_err();
    assert!(refused.is_too_many_requests(), "{refused}");
}

async fn a_cache_follows_changes(client: Client) {
    client.create(&config_map("before", "a")).await.unwrap();
    let cache = Cache::<ConfigMap>::start(&client);
    let mut changes = cache.subscribe();
    cache.synced().await;
    let before = ObjectKey::new("default", "before");
    assert!(cache.get(&before).is_some());
    next_matching(&mut changes, &before).await;

    let key = ObjectKey::new("default", "one");
    client.create(&config_map("one", "a")).await.unwrap();
    next_matching(&mut changes, &key).await;
    let cached = cache.get(&key).unwrap();
    let mut stored = client.get::<ConfigMap>(&key).await.unwrap();
    assert!(stored.metadata.managed_fields.take().is_some(), "caches drop managed fields");
    assert_eq!(*cached, stored);

    client.patch_merge::<ConfigMap>(&key, &json!({ "data": { "value": "b" } })).await.unwrap();
    next_matching(&mut changes, &key).await;
    assert_eq!(cache.get(&key).unwrap().data.as_ref().unwrap()["value"], "b");

    client.delete::<ConfigMap>(&key, &DeleteOptions::default()).await.unwrap();
    next_matching(&mut changes, &key).await;
    assert!(cache.get(&key).is_none());
    assert!(cache.in_namespace("default").iter().any(|map| ObjectKey::of(&**map) == before));
}

async fn a_cache_holds_only_selected_objects(client: Client) {
    let cache = Cache::<Pod>::builder(&client)
        .namespace("default")
        .labels("app=a")
        .index("node", |pod| pod.spec.iter().filter_map(|spec| spec.node_name.clone()).collect())
        .start();
    let mut changes = cache.subscribe();
    client.create(&pod("other", "b")).await.unwrap();
    let web = client.create(&pod("web", "a")).await.unwrap();
    let key = ObjectKey::of(&web);
    client.bind(&key, None, "node-1").await.unwrap();
    while cache.by_index("node", "node-1").is_empty() {
        next_matching(&mut changes, &key).await;
    }
    assert_eq!(cache.len(), 1);

    // An object that does not match any more is removed from the cache.
    let relabelled = json!({ "metadata": { "labels": { "app": "c" } } });
    client.patch_merge::<Pod>(&key, &relabelled).await.unwrap();
    next_matching(&mut changes, &key).await;
    assert!(cache.is_empty() && cache.by_index("node", "node-1").is_empty());
}

async fn a_cache_feeds_keys_into_a_queue(client: Client) {
    let owner = client.create(&config_map("owner", "a")).await.unwrap();
    let mut owned = pod("web", "a");
    owned.metadata.owner_references = Some(vec![
        serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "ConfigMap", "name": "owner",
            "uid": owner.metadata.uid, "controller": true,
        }))
        .unwrap(),
    ]);
    let cache = Cache::<Pod>::start(&client);
    let queue = Queue::new();
    cache.feed(&queue, |pod| {
        let owners = pod.metadata.owner_references.iter().flatten();
        owners.map(|owner| owner.name.clone()).collect()
    });
    let created = client.create(&owned).await.unwrap();
    assert_eq!(queue.get().await.as_deref(), Some("owner"));
    queue.done(&"owner".to_owned());
    assert_eq!(cache.controlled_by(&owner).len(), 1);

    // When it is deleted, its owner is queued, though the cache does not have the object any more.
    client.delete_all([Arc::new(created)]).await.unwrap();
    assert_eq!(queue.get().await.as_deref(), Some("owner"));
    assert!(cache.controlled_by(&owner).is_empty());
}

async fn a_cache_catches_up_with_own_writes(client: Client) {
    let cache = Cache::<ConfigMap>::start(&client);
    cache.synced().await;
    for round in 0..20 {
        let name = format!("mine-{round}");
        let created = client.create(&config_map(&name, "a")).await.unwrap();
        assert!(cache.caught_up_with_all([&created]).await);
        assert!(cache.get(&ObjectKey::of(&created)).is_some(), "{name}");
    }
}

#[tokio::test]
async fn a_token_and_a_ca_are_enough_to_connect() {
    let server = TestServer::with_service_account().await;
    let (url, token, ca) = server.credentials();
    let client = Client::connect(&url, &token, Some(&ca)).await.unwrap();
    client.create(&config_map("one", "a")).await.unwrap();
    let wrong = Client::connect(&url, "wrong", Some(&ca)).await.unwrap();
    let refused = wrong.create(&config_map("two", "a")).await.unwrap_err();
    assert_eq!(refused.status().unwrap().code, 401);
    let unreachable = Client::connect("https://127.0.0.1:1", &token, Some(&ca)).await.unwrap();
    let unanswered = unreachable.create(&config_map("two", "a")).await.unwrap_err();
    assert!(matches!(unanswered, Error::Unanswered { .. }), "{unanswered:?}");
    let bad = Client::connect(&url, &token, Some("no certificate")).await.unwrap_err();
    assert!(matches!(bad, Error::Config { .. }), "{bad:?}");
    server.stop().await;
}
