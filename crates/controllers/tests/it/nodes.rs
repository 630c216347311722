//! Node controllers, with a real server and a paused clock.

use crate::accounts::{manager, with_accounts};
use client::{Client, ObjectKey};
use controllers::{Handle, Options, Ranges};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use testbed::{Observed, TestServer};
use tokio::time::Instant;

struct Cluster {
    server: TestServer,
    controllers: Handle,
    client: Client,
    nodes: Observed<Node>,
    events: Observed<Event>,
}

impl Cluster {
    async fn start(options: Options) -> Cluster {
        let server = TestServer::start().await;
        let client = server.admin();
        let controllers = controllers::start(&manager(&server), with_accounts(&server, options));
        let (nodes, events) = (Observed::start(&client), Observed::start(&client));
        Cluster { server, controllers, client, nodes, events }
    }

    async fn stop(self) {
        self.controllers.stop().await;
        self.server.stop().await;
    }

    async fn node(&self, name: &str) {
        let node = json!({ "metadata": { "name": name } });
        self.client.create::<Node>(&read(node)).await.unwrap();
    }

    async fn ready(&self, name: &str, status: &str) {
        let condition = json!({ "type": "Ready", "status": status, "reason": "r", "message": "m" });
        let patch = json!({ "status": { "conditions": [condition] } });
        self.client.patch_status::<Node>(&ObjectKey::cluster(name), &patch).await.unwrap();
    }

    async fn when(&self, name: &str, matches: impl Fn(&Node) -> bool) -> Arc<Node> {
        self.nodes.when_found(&ObjectKey::cluster(name), matches).await
    }

    async fn event(&self, reason: &str) -> Arc<Event> {
        self.events.find(|event| event.reason.as_deref() == Some(reason)).await
    }
}

fn read<T: client::Object>(value: Value) -> T {
    typed::from_value(value).unwrap()
}

fn taints(node: &Node) -> Vec<String> {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.map(|taint| format!("{}:{}", taint.key, taint.effect)).collect()
}

fn cidr(node: &Node) -> Option<&str> {
    node.spec.as_ref()?.pod_cidr.as_deref()
}

fn status_of<'a>(node: &'a Node, type_: &str) -> Option<&'a str> {
    let mut conditions = node.status.as_ref()?.conditions.iter().flatten();
    conditions.find(|c| c.type_ == type_).map(|condition| condition.status.as_str())
}

/// C-185, C-187: taints change at once, and an event reports the new node.
#[tokio::test(start_paused = true)]
async fn n_6_taints_are_removed_as_soon_as_a_node_is_ready() {
    let cluster = Cluster::start(Options::default()).await;
    cluster.node("n1").await;
    let node = cluster.when("n1", |node| cidr(node).is_some()).await;
    assert_eq!(taints(&node), ["node.kubernetes.io/not-ready:NoSchedule"]);
    let before = Instant::now();
    cluster.ready("n1", "True").await;
    cluster.when("n1", |node| taints(node).is_empty()).await;
    assert!(before.elapsed() < Duration::from_secs(1), "no step waits");
    cluster.ready("n1", "False").await;
    cluster.when("n1", |node| taints(node) == ["node.kubernetes.io/not-ready:NoSchedule"]).await;
    let event = cluster.event("RegisteredNode").await;
    assert_eq!(event.message.as_deref(), Some("Node n1 event: Registered Node n1 in Controller"));
    assert_eq!(event.metadata.namespace.as_deref(), Some("default"));
    cluster.stop().await;
}

/// NET-14: with two ranges, a Node gets a block of each, in their order.
#[tokio::test(start_paused = true)]
async fn net_14_nodes_get_a_block_of_each_family() {
    let pod_cidrs = Ranges::new("10.9.0.0/22,fd00:9::/62").unwrap();
    let cluster = Cluster::start(Options { pod_cidrs, ..Options::default() }).await;
    cluster.node("n1").await;
    let node = cluster.when("n1", |node| cidr(node).is_some()).await;
    let spec = node.spec.as_ref().unwrap();
    assert_eq!(spec.pod_cidr.as_deref(), Some("10.9.0.0/24"));
    assert_eq!(spec.pod_cidrs.as_deref().unwrap(), ["10.9.0.0/24", "fd00:9::/64"]);
    cluster.stop().await;
}

/// C-187: an event reports the deleted node. NET-14: each Node gets a range of its own, which is free when the Node goes.
#[tokio::test(start_paused = true)]
async fn c_184_nodes_get_address_blocks_and_release_them() {
    let pod_cidrs = Ranges::new("10.9.0.0/22").unwrap();
    let cluster = Cluster::start(Options { pod_cidrs, ..Options::default() }).await;
    let names = ["n1", "n2", "n3", "n4"];
    futures::future::join_all(names.iter().map(|name| cluster.node(name))).await;
    let mut all = Vec::new();
    for name in names {
        let node = cluster.when(name, |node| cidr(node).is_some()).await;
        let spec = node.spec.as_ref().unwrap();
        assert_eq!(spec.pod_cidrs.as_ref().unwrap()[0], spec.pod_cidr.clone().unwrap());
        all.push(spec.pod_cidr.clone().unwrap());
    }
    all.sort();
    assert_eq!(all, ["10.9.0.0/24", "10.9.1.0/24", "10.9.2.0/24", "10.9.3.0/24"]);

    cluster.node("n5").await;
    let event = cluster.event("CIDRNotAvailable").await;
    assert_eq!(event.message.as_deref(), Some("Node n5 status is now: CIDRNotAvailable"));
    let key = ObjectKey::cluster("n2");
    let freed = cidr(&cluster.nodes.cache.get(&key).unwrap()).unwrap().to_owned();
    tokio::time::sleep(Duration::from_secs(60)).await;
    cluster.client.delete::<Node>(&key, &Default::default()).await.unwrap();
    let gone = Instant::now();
    let node = cluster.when("n5", |node| cidr(node).is_some()).await;
    assert_eq!(cidr(&node), Some(freed.as_str()));
    assert!(gone.elapsed() < Duration::from_secs(1), "at once: {:?}", gone.elapsed());
    let event = cluster.event("RemovingNode").await;
    assert_eq!(event.message.as_deref(), Some("Node n2 event: Removing Node n2 from Controller"));
    assert_eq!(event.metadata.namespace.as_deref(), Some("default"));
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn t_ctrl_38_a_node_without_heartbeats_is_unknown_after_50_seconds() {
    let cluster = Cluster::start(Options::default()).await;
    cluster.node("n1").await;
    cluster.ready("n1", "True").await;
    let lease = |second: u32| {
        json!({
            "metadata": { "namespace": "kube-node-lease", "name": "n1" },
            "spec": { "holderIdentity": "n1", "leaseDurationSeconds": 40,
                      "renewTime": format!("2026-01-01T00:00:{second:02}.000000Z") },
        })
    };
    cluster.client.create::<Lease>(&read(lease(0))).await.unwrap();
    let key = ObjectKey::new("kube-node-lease", "n1");
    for second in 1..5 {
        tokio::time::sleep(Duration::from_secs(40)).await;
        cluster.client.patch_merge::<Lease>(&key, &lease(second)).await.unwrap();
    }
    let silent = Instant::now();
    let node = cluster.nodes.cache.get(&ObjectKey::cluster("n1")).unwrap();
    assert_eq!(status_of(&node, "Ready"), Some("True"), "a renewed lease is enough");

    let node = cluster.when("n1", |node| status_of(node, "Ready") == Some("Unknown")).await;
    let after = silent.elapsed();
    assert!((50..=55).contains(&after.as_secs()), "{after:?}");
    let conditions = node.status.as_ref().unwrap().conditions.as_ref().unwrap();
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready").unwrap();
    assert_eq!(ready.reason.as_deref(), Some("NodeStatusUnknown"));
    assert_eq!(ready.message.as_deref(), Some("Kubelet stopped posting node status."));
    assert_eq!(status_of(&node, "DiskPressure"), Some("Unknown"));
    cluster.when("n1", |n| taints(n) == ["node.kubernetes.io/unreachable:NoSchedule"]).await;

    cluster.ready("n1", "True").await;
    cluster.when("n1", |node| taints(node).is_empty()).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_186_c_153_deprecated_labels_and_ttl_annotations_are_kept() {
    let cluster = Cluster::start(Options::default()).await;
    let labels = json!({ "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
                         "beta.kubernetes.io/arch": "wrong" });
    let node = json!({ "metadata": { "name": "n1", "labels": labels } });
    cluster.client.create::<Node>(&read(node)).await.unwrap();
    let has = |node: &Node, key: &str, value: &str| {
        let labels = node.metadata.labels.as_ref();
        labels.and_then(|all| all.get(key)).map(String::as_str) == Some(value)
    };
    cluster
        .when("n1", |node| {
            has(node, "beta.kubernetes.io/os", "linux")
                && has(node, "beta.kubernetes.io/arch", "amd64")
        })
        .await;
    let arm = json!({ "metadata": { "labels": { "kubernetes.io/arch": "arm64" } } });
    cluster.client.patch_merge::<Node>(&ObjectKey::cluster("n1"), &arm).await.unwrap();
    cluster.when("n1", |node| has(node, "beta.kubernetes.io/arch", "arm64")).await;
    cluster
        .when("n1", |node| {
            let annotations = node.metadata.annotations.as_ref();
            annotations
                .and_then(|all| all.get("node.alpha.kubernetes.io/ttl"))
                .is_some_and(|t| t == "0")
        })
        .await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_189_after_a_restart_a_node_gets_its_full_grace_period() {
    clock::simulate("2026-01-01T00:00:00Z".parse().unwrap(), 1);
    let mut cluster = Cluster::start(Options::default()).await;
    cluster.node("heard").await;
    cluster.ready("heard", "True").await;
    cluster.node("never").await;
    tokio::time::sleep(Duration::from_secs(45)).await;
    let options = with_accounts(&cluster.server, Options::default());
    let fresh = controllers::start(&manager(&cluster.server), options);
    std::mem::replace(&mut cluster.controllers, fresh).stop().await;
    let restarted = Instant::now();
    let unknown = |node: &Node| status_of(node, "Ready") == Some("Unknown");
    // A node that has never posted a status has a minute from its creation.
    cluster.when("never", unknown).await;
    let after = restarted.elapsed();
    assert!((14..=20).contains(&after.as_secs()), "{after:?}");
    let heard = cluster.nodes.cache.get(&ObjectKey::cluster("heard")).unwrap();
    assert_eq!(status_of(&heard, "Ready"), Some("True"));
    cluster.when("heard", unknown).await;
    let after = restarted.elapsed();
    assert!((50..=55).contains(&after.as_secs()), "{after:?}");
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn c_194_the_leader_is_recorded_in_a_lease_and_in_events() {
    let identity = "host_7b1f".to_owned();
    let cluster =
        Cluster::start(Options { identity: Some(identity.clone()), ..Options::default() }).await;
    let event = cluster.event("LeaderElection").await;
    assert_eq!(event.message.as_deref(), Some("host_7b1f became leader"));
    let on = &event.involved_object;
    assert_eq!((on.kind.as_deref(), on.namespace.as_deref()), (Some("Lease"), Some("kube-system")));
    let key = ObjectKey::new("kube-system", "kube-controller-manager");
    let spec = cluster.client.get::<Lease>(&key).await.unwrap().spec.unwrap();
    assert_eq!(spec.holder_identity, Some(identity));
    assert_eq!((spec.lease_duration_seconds, spec.lease_transitions), (Some(15), Some(0)));
    assert!(spec.acquire_time.is_some() && spec.renew_time.is_some());
    let Cluster { server, controllers, client, .. } = cluster;
    controllers.stop().await;
    let events = client.list::<Event>(&client::Selection::namespace("kube-system")).await.unwrap();
    let messages: Vec<&str> = events.iter().filter_map(|event| event.message.as_deref()).collect();
    assert!(messages.contains(&"host_7b1f stopped leading"), "{messages:?}");
    server.stop().await;
}
