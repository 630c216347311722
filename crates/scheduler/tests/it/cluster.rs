//! A server with a scheduler, nodes that exist on paper, and pods to try.

use client::{Cache, Client, ObjectKey, Selection};
use k8s_openapi::api::core::v1::{Event, Node, Pod, PodCondition, ServiceAccount};
use serde_json::{Value, json};
use server::authn::User;
use server::{Config, Running, StoreChoice};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// Nothing here takes that long; it is there so that a failing test ends.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Cluster {
    running: Running,
    scheduler: scheduler::Handle,
    pub(crate) client: Client,
    pods: Cache<Pod>,
    events: Cache<Event>,
    _data_dir: TempDir,
}

impl Cluster {
    pub(crate) async fn start() -> Cluster {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let data_dir = tempfile::tempdir().unwrap();
        let config = Config {
            data_dir: data_dir.path().into(),
            listen: ([127, 0, 0, 1], 0).into(),
            store: StoreChoice::Embedded,
            audit_log: None,
            controllers: false,
        };
        let running = server::start(config).await.unwrap();
        let admin = User::authenticated("tester", &["system:masters"]);
        let client = Client::in_process(running.server.door(admin));
        // Pods need it, and no controller is here to make it.
        let account = json!({ "metadata": { "namespace": "default", "name": "default" } });
        client.create::<ServiceAccount>(&read(account)).await.unwrap();
        let scheduler = scheduler::start(&client, None);
        let (pods, events) = (Cache::start(&client), Cache::start(&client));
        Cluster { running, scheduler, client, pods, events, _data_dir: data_dir }
    }

    pub(crate) async fn stop(self) {
        self.scheduler.stop().await;
        self.running.stop().await;
    }

    /// A node that is ready, with 4 CPUs and 8 GiB; `more` is merged into it.
    pub(crate) async fn node(&self, name: &str, more: Value) {
        let node =
            json!({ "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name } } });
        self.client.create::<Node>(&read(node)).await.unwrap();
        let key = ObjectKey::cluster(name);
        let mut all = json!({
            "spec": { "taints": null },
            "status": { "allocatable": { "cpu": "4", "memory": "8Gi", "pods": "110" } },
        });
        merge(&mut all, more);
        let status = json!({ "status": all["status"].take() });
        self.client.patch_status::<Node>(&key, &status).await.unwrap();
        self.client.patch_merge::<Node>(&key, &all).await.unwrap();
    }

    pub(crate) async fn pod(&self, name: &str, spec: Value) -> Pod {
        self.create(json!({ "metadata": { "name": name }, "spec": spec })).await
    }

    pub(crate) async fn create(&self, mut pod: Value) -> Pod {
        pod["metadata"]["namespace"] = "default".into();
        if pod["spec"].get("containers").is_none() {
            pod["spec"]["containers"] = json!([{ "name": "c", "image": "i" }]);
        }
        self.client.create(&read(pod)).await.unwrap()
    }

    /// The pod as soon as it is as wanted.
    pub(crate) async fn when(&self, name: &str, wanted: impl Fn(&Pod) -> bool) -> Arc<Pod> {
        let key = ObjectKey::new("default", name);
        let mut changes = self.pods.subscribe();
        let found = async {
            loop {
                match self.pods.get(&key) {
                    Some(pod) if wanted(&pod) => return pod,
                    _ => drop(changes.next().await),
                }
            }
        };
        let found = tokio::time::timeout(PATIENCE, found).await;
        found.unwrap_or_else(|_| panic!("not as wanted: {:#?}", self.pods.get(&key)))
    }

    pub(crate) async fn bound(&self, name: &str) -> String {
        let pod = self.when(name, |pod| node_of(pod).is_some()).await;
        node_of(&pod).unwrap().to_owned()
    }

    /// Why the pod has no node.
    pub(crate) async fn unscheduled(&self, name: &str) -> String {
        let pod = self.when(name, |pod| scheduled(pod).is_some_and(|c| c.status == "False")).await;
        scheduled(&pod).unwrap().message.clone().unwrap()
    }

    /// The first event about a pod with this reason.
    pub(crate) async fn event(&self, pod: &str, reason: &str) -> Arc<Event> {
        let mut changes = self.events.subscribe();
        let wanted = |event: &Arc<Event>| {
            event.involved_object.name.as_deref() == Some(pod)
                && event.reason.as_deref() == Some(reason)
        };
        let found = async {
            loop {
                if let Some(event) = self.events.list().into_iter().find(wanted) {
                    return event;
                }
                changes.next().await;
            }
        };
        tokio::time::timeout(PATIENCE, found).await.unwrap_or_else(|_| panic!("no {reason}"))
    }

    pub(crate) async fn pods(&self) -> Vec<Pod> {
        self.client.list(&Selection::namespace("default")).await.unwrap()
    }

    pub(crate) fn forget(&self, name: &str) -> impl Future<Output = ()> {
        let (client, key) = (self.client.clone(), ObjectKey::new("default", name));
        async move {
            let now = client::DeleteOptions::default().grace(0);
            client.delete::<Pod>(&key, &now).await.unwrap();
        }
    }
}

pub(crate) fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|name| !name.is_empty())
}

pub(crate) fn condition<'a>(pod: &'a Pod, type_: &str) -> Option<&'a PodCondition> {
    let mut conditions = pod.status.as_ref()?.conditions.iter().flatten();
    conditions.find(|condition| condition.type_ == type_)
}

pub(crate) fn scheduled(pod: &Pod) -> Option<&PodCondition> {
    condition(pod, "PodScheduled")
}

pub(crate) fn asking(cpu: &str) -> Value {
    json!({ "containers": [{ "name": "c", "image": "i",
        "resources": { "requests": { "cpu": cpu } } }] })
}

pub(crate) fn read<T: client::Object>(value: Value) -> T {
    typed::from_value(value).unwrap()
}

fn merge(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more,
    }
}
