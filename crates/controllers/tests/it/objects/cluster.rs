//! A real server and the controllers in one process.

use crate::accounts::{assert_rights_suffice, manager, with_accounts};
use client::{Client, DeleteOptions, Object, ObjectKey, Selection};
use controllers::{Handle, Options};
use k8s_openapi::api::core::v1::{Event, Pod};
use serde_json::{Value, json};
use server::InProcessService;
use server::authn::User;
use std::sync::Arc;
use testbed::{Observed, TestServer};

pub(crate) struct Cluster {
    server: TestServer,
    controllers: Handle,
    pub(crate) client: Client,
}

impl Cluster {
    pub(crate) async fn start() -> Cluster {
        Cluster::with(Options::default()).await
    }

    pub(crate) async fn with(options: Options) -> Cluster {
        let server = Cluster::server().await;
        let client = server.admin();
        let controllers = controllers::start(&manager(&server), with_accounts(&server, options));
        Cluster { server, controllers, client }
    }

    /// As [`Cluster::with`], for controllers that reach the server through another transport. All act as the tester.
    pub(crate) async fn through(
        options: Options,
        connect: impl FnOnce(InProcessService) -> Client,
    ) -> Cluster {
        let server = Cluster::server().await;
        let admin = User::authenticated("tester", &["system:masters"]);
        let client = connect(server.running.server.in_process(admin));
        let controllers = controllers::start(&client, options);
        Cluster { server, controllers, client }
    }

    async fn server() -> TestServer {
        // Each test is a process, so this pauses the wall clock of this test only.
        clock::simulate("2026-11-01T00:00:00Z".parse().unwrap(), 1);
        TestServer::with(testbed::server::Options {
            controllers: true,
            audit: true,
            ..Default::default()
        })
        .await
    }

    /// Restarts the controllers, as after a crash.
    pub(crate) async fn restart_controllers(&mut self) {
        let options = with_accounts(&self.server, Options::default());
        let next = controllers::start(&manager(&self.server), options);
        std::mem::replace(&mut self.controllers, next).stop().await;
    }

    pub(crate) async fn stop(self) {
        self.controllers.stop().await;
        let data_dir = self.server.stop().await;
        assert_rights_suffice(&testbed::server::audit_log(data_dir.path()));
    }

    /// The value of one metric of the controllers.
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

    /// The names of all objects of a kind, sorted.
    pub(crate) async fn names<K: Object<DynamicType = ()>>(&self, namespace: &str) -> Vec<String> {
        let all = self.client.list::<K>(&Selection::namespace(namespace)).await.unwrap();
        all.iter().map(|object| object.meta().name.clone().unwrap()).collect()
    }

    pub(crate) fn watch<K: Object<DynamicType = ()>>(&self) -> Observed<K> {
        Observed::start(&self.client)
    }

    /// Creates a pod that is bound to a node and running.
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
        let events = self.watch::<Event>();
        events.find(|event| event.reason.as_deref() == Some(reason)).await
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
