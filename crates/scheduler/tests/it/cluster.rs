//! A real server with a scheduler, Node objects without machines, and pods.

use client::{Client, ObjectKey, Selection};
use k8s_openapi::api::core::v1::{Event, Node, Pod, PodCondition};
use serde_json::{Value, json};
use std::sync::Arc;
use testbed::{Observed, TestServer};

pub(crate) struct Cluster {
    server: TestServer,
    scheduler: scheduler::Handle,
    pub(crate) client: Client,
    pods: Observed<Pod>,
    events: Observed<Event>,
}

impl Cluster {
    pub(crate) async fn start() -> Cluster {
        let server = TestServer::with_service_account().await;
        let client = server.admin();
        let scheduler = scheduler::start(&client, None);
        let (pods, events) = (Observed::start(&client), Observed::start(&client));
        Cluster { server, scheduler, client, pods, events }
    }

    pub(crate) async fn stop(self) {
        self.scheduler.stop().await;
        self.server.stop().await;
    }

    /// Creates a ready node with 4 CPUs and 8 GiB; `more` is merged into it.
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

    /// The pod, as soon as it matches.
    pub(crate) async fn when(&self, name: &str, matches: impl Fn(&Pod) -> bool) -> Arc<Pod> {
        self.pods.when_found(&ObjectKey::new("default", name), matches).await
    }

    pub(crate) async fn bound(&self, name: &str) -> String {
        let pod = self.when(name, |pod| node_of(pod).is_some()).await;
        node_of(&pod).unwrap().to_owned()
    }

    /// The message of the PodScheduled condition.
    pub(crate) async fn unscheduled(&self, name: &str) -> String {
        let pod = self.when(name, |pod| scheduled(pod).is_some_and(|c| c.status == "False")).await;
        scheduled(&pod).unwrap().message.clone().unwrap()
    }

    /// The first event about a pod with this reason.
    pub(crate) async fn event(&self, pod: &str, reason: &str) -> Arc<Event> {
        let matches = |event: &Event| {
            event.involved_object.name.as_deref() == Some(pod)
                && event.reason.as_deref() == Some(reason)
        };
        self.events.find(matches).await
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
