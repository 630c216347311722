//! A server and the controllers in one process, for tests that want to see what becomes of objects.

use client::{Cache, Client, DeleteOptions, Object, ObjectKey, Selection};
use controllers::{Handle, Options};
use k8s_openapi::api::core::v1::{Event, Pod};
use serde_json::{Value, json};
use server::authn::User;
use server::{Config, Door, Running, StoreChoice};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// Nothing here takes that long; it is there so that a failing test ends.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);

pub(crate) struct Cluster {
    running: Running,
    controllers: Handle,
    pub(crate) client: Client,
    _data_dir: TempDir,
}

impl Cluster {
    pub(crate) async fn start() -> Cluster {
        Cluster::with(Options::default()).await
    }

    pub(crate) async fn with(options: Options) -> Cluster {
        Cluster::through(options, Client::in_process).await
    }

    /// As [`Cluster::with`], for controllers whose way to the server is another.
    pub(crate) async fn through(options: Options, way: impl FnOnce(Door) -> Client) -> Cluster {
        // Each test is a process of its own, so that the clock on the wall is paused, too.
        clock::simulate("2026-11-01T00:00:00Z".parse().unwrap(), 1);
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
        let client = way(running.server.door(admin));
        let controllers = controllers::start(&client, options);
        Cluster { running, controllers, client, _data_dir: data_dir }
    }

    /// Other controllers, as after a crash.
    pub(crate) async fn restart_controllers(&mut self) {
        let next = controllers::start(&self.client, Options::default());
        std::mem::replace(&mut self.controllers, next).stop().await;
    }

    pub(crate) async fn stop(self) {
        self.controllers.stop().await;
        self.running.stop().await;
    }

    /// The value of one line of what the controllers count.
    pub(crate) fn counted(&self, line: &str) -> Option<String> {
        let mut page = metrics::Page::default();
        self.controllers.metrics().write(&mut page, |_| true);
        let text = page.into_text();
        let found = text.lines().find_map(|shown| shown.strip_prefix(line));
        found.map(|value| value.trim().to_owned())
    }

    pub(crate) async fn create<K: Object<DynamicType = ()>>(&self, object: Value) -> K {
        self.client.create::<K>(&read(object)).await.unwrap()
    }

    pub(crate) async fn delete<K: Object<DynamicType = ()>>(&self, key: &ObjectKey) {
        self.client.delete::<K>(key, &DeleteOptions::default()).await.unwrap();
    }

    pub(crate) async fn namespace(&self, name: &str) {
        self.create::<k8s_openapi::api::core::v1::Namespace>(
            json!({ "metadata": { "name": name } }),
        )
        .await;
    }

    /// Everything of a kind, in order.
    pub(crate) async fn names<K: Object<DynamicType = ()>>(&self, namespace: &str) -> Vec<String> {
        let all = self.client.list::<K>(&Selection::namespace(namespace)).await.unwrap();
        all.iter().map(|object| object.meta().name.clone().unwrap()).collect()
    }

    pub(crate) fn follow<K: Object<DynamicType = ()>>(&self) -> Followed<K> {
        Followed { cache: Cache::start(&self.client) }
    }

    /// A pod that a node has, and that runs.
    pub(crate) async fn running_pod(
        &self,
        namespace: &str,
        name: &str,
        node: &str,
        more: Value,
    ) -> Pod {
        let mut pod = json!({
            "metadata": { "namespace": namespace, "name": name },
            "spec": { "nodeName": node, "containers": [{ "name": "c", "image": "i" }] },
        });
        merge(&mut pod, more);
        let pod: Pod = self.create(pod).await;
        self.status::<Pod>(
            &ObjectKey::of(&pod),
            json!({ "phase": "Running", "podIP": "10.0.0.9", "podIPs": [{ "ip": "10.0.0.9" }],
                    "conditions": [{ "type": "Ready", "status": "True" }] }),
        )
        .await
    }

    pub(crate) async fn status<K: Object<DynamicType = ()>>(
        &self,
        key: &ObjectKey,
        status: Value,
    ) -> K {
        let patched = self.client.patch_status::<K>(key, &json!({ "status": status })).await;
        std::sync::Arc::unwrap_or_clone(patched.unwrap())
    }

    pub(crate) async fn event(&self, reason: &str) -> Arc<Event> {
        let events = self.follow::<Event>();
        events.find(|event| event.reason.as_deref() == Some(reason)).await
    }
}

/// What is seen of one kind.
pub(crate) struct Followed<K: Object> {
    pub(crate) cache: Cache<K>,
}

impl<K: Object> Followed<K> {
    /// Waits until the object is as wanted; `None` is: it is not there.
    pub(crate) async fn when(&self, key: &ObjectKey, wanted: impl Fn(Option<&K>) -> bool) {
        let mut changes = self.cache.subscribe();
        self.cache.synced().await;
        let found = async {
            while !wanted(self.cache.get(key).as_deref()) {
                changes.next().await;
            }
        };
        let found = tokio::time::timeout(PATIENCE, found).await;
        found.unwrap_or_else(|_| panic!("not as wanted: {:#?}", self.cache.get(key)));
    }

    pub(crate) async fn gone(&self, key: &ObjectKey) {
        self.when(key, |object| object.is_none()).await;
    }

    pub(crate) async fn find(&self, wanted: impl Fn(&K) -> bool) -> Arc<K> {
        let mut changes = self.cache.subscribe();
        let found = async {
            loop {
                if let Some(object) = self.cache.list().into_iter().find(|object| wanted(object)) {
                    return object;
                }
                changes.next().await;
            }
        };
        let found = tokio::time::timeout(PATIENCE, found).await;
        found.unwrap_or_else(|_| panic!("not found among {:#?}", self.cache.list()))
    }

    /// Waits until all objects together are as wanted.
    pub(crate) async fn all(&self, wanted: impl Fn(&[Arc<K>]) -> bool) {
        let mut changes = self.cache.subscribe();
        self.cache.synced().await;
        let found = async {
            while !wanted(&self.cache.list()) {
                changes.next().await;
            }
        };
        let found = tokio::time::timeout(PATIENCE, found).await;
        found.unwrap_or_else(|_| panic!("not as wanted: {:#?}", self.cache.list()));
    }
}

pub(crate) fn read<T: Object>(value: Value) -> T {
    typed::from_value(value).unwrap()
}

pub(crate) fn key(namespace: &str, name: &str) -> ObjectKey {
    ObjectKey::new(namespace, name)
}

fn merge(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (field, value) in more {
                merge(into.entry(field).or_insert(Value::Null), value);
            }
        }
        (into, more) if !more.is_null() => *into = more,
        _ => (),
    }
}
