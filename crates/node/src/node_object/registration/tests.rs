//! Registration, heartbeats and lease with a real server.

use super::*;
use crate::node_object::{Addresses, Machine};
use client::RecordedEvent;
use k8s_openapi::api::coordination::v1::Lease;
use serde_json::{Value, json};
use testbed::TestServer;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Longer than anything takes here; makes a failing test end.
const TIMEOUT: Duration = Duration::from_secs(30);

struct Fixture {
    server: TestServer,
    client: Client,
    health: watch::Sender<Health>,
    events: mpsc::Receiver<RecordedEvent>,
    recorder: Recorder,
}

impl Fixture {
    async fn start() -> Fixture {
        let server = TestServer::start().await;
        let client = server.admin();
        let (recorder, events) = Recorder::collecting();
        let health = watch::Sender::new(healthy());
        Fixture { server, client, health, events, recorder }
    }

    fn register(&self) -> Registration {
        let settings = Settings::new("n1", "/", "v1.36.4");
        let facts: FactsProvider = Arc::new(|| Box::pin(async { facts() }));
        let (client, recorder) = (self.client.clone(), self.recorder.clone());
        Registration::start(client, recorder, settings, facts, self.health.subscribe())
    }

    /// Waits until the Node in the API fulfills the condition.
    async fn node(&self, condition: impl Fn(&Node) -> bool) -> Node {
        let found = async {
            loop {
                let found = self.client.find::<Node>(&ObjectKey::cluster("n1")).await.unwrap();
                if let Some(node) = found.filter(|node| condition(node)) {
                    return node;
                }
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(TIMEOUT, found).await.expect("the Node fulfills the condition")
    }

    fn reasons(&mut self) -> Vec<String> {
        let mut reasons = Vec::new();
        while let Ok(event) = self.events.try_recv() {
            assert_eq!(event.on.name.as_deref(), Some("n1"));
            reasons.push(event.reason);
        }
        reasons
    }
}

fn healthy() -> Health {
    Health { runtime: Some(Ok(())), network: Some(Ok(())), ..Health::default() }
}

fn facts() -> Facts {
    let machine = Machine {
        cores: 2,
        memory: 4 << 30,
        boot_id: "boot".to_owned(),
        architecture: "amd64".to_owned(),
        ..Machine::default()
    };
    let outward = vec!["10.0.0.5".parse().unwrap()];
    let addresses = Addresses { local: outward.clone(), outward, ..Addresses::default() };
    Facts { machine, addresses, storage: Some(1 << 40), ..Facts::default() }
}

fn condition(node: &Node, type_: &str) -> String {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let found = conditions.into_iter().find(|condition| condition.type_ == type_);
    found.map(|condition| condition.status.clone()).unwrap_or_default()
}

#[tokio::test]
async fn n_1_n_16_n_18_a_new_node_is_ready_at_once_and_holds_its_lease() {
    let mut fixture = Fixture::start().await;
    let registration = fixture.register();
    let node = fixture.node(|node| condition(node, "Ready") == "True").await;
    let status = node.status.clone().unwrap();
    assert_eq!(status.capacity.unwrap()["pods"].0, "110");
    assert_eq!(status.addresses.unwrap()[0].address, "10.0.0.5");
    let endpoints = status.daemon_endpoints.unwrap();
    assert_eq!(endpoints.kubelet_endpoint.unwrap().port, 10250);
    let key = ObjectKey::new("kube-node-lease", "n1");
    let leased = async {
        loop {
            if let Some(lease) = fixture.client.find::<Lease>(&key).await.unwrap() {
                return lease;
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    let lease = timeout(TIMEOUT, leased).await.unwrap();
    let spec = lease.spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some("n1"));
    assert_eq!(spec.lease_duration_seconds, Some(40));
    assert!(spec.renew_time.is_some());
    let owner = &lease.metadata.owner_references.unwrap()[0];
    assert_eq!((owner.kind.as_str(), Some(&owner.uid)), ("Node", node.metadata.uid.as_ref()));
    assert_eq!(owner.controller, None);
    assert!(registration.node().is_some());
    let reasons = fixture.reasons();
    assert_eq!(reasons[0], "Starting");
    assert!(!reasons.contains(&"NodeReady".to_owned()), "the status did not change: {reasons:?}");
    fixture.server.stop().await;
}

#[tokio::test]
async fn n_14_n_16_a_change_of_health_is_written_at_once_with_an_event() {
    let mut fixture = Fixture::start().await;
    fixture.health.send_modify(|health| health.runtime = None);
    let _registration = fixture.register();
    fixture.node(|node| condition(node, "Ready") == "False").await;
    fixture.reasons();
    fixture.health.send_modify(|health| health.runtime = Some(Ok(())));
    fixture.node(|node| condition(node, "Ready") == "True").await;
    fixture.health.send_modify(|health| health.disk_pressure = true);
    fixture.node(|node| condition(node, "DiskPressure") == "True").await;
    // Events follow the write that they are about.
    let reasons = async {
        let mut reasons = Vec::new();
        while !reasons.contains(&"NodeHasDiskPressure".to_owned()) {
            reasons.extend(fixture.reasons());
            sleep(Duration::from_millis(5)).await;
        }
        reasons
    };
    let reasons = timeout(TIMEOUT, reasons).await.unwrap();
    assert_eq!(reasons, ["NodeReady", "NodeHasDiskPressure"]);
    fixture.server.stop().await;
}

#[tokio::test]
async fn n_1_an_existing_node_is_updated_without_changing_its_spec() {
    let fixture = Fixture::start().await;
    let before: Node = typed::from_value(json!({
        "metadata": { "name": "n1", "labels": { "mine": "1", "kubernetes.io/os": "plan9" } },
        "spec": { "unschedulable": true },
    }))
    .unwrap();
    fixture.client.create(&before).await.unwrap();
    let _registration = fixture.register();
    let node = fixture.node(|node| condition(node, "Ready") == "True").await;
    assert_eq!(node.spec.unwrap().unschedulable, Some(true));
    let labels = node.metadata.labels.unwrap();
    assert_eq!((labels["mine"].as_str(), labels["kubernetes.io/os"].as_str()), ("1", "linux"));
    assert_eq!(labels["kubernetes.io/hostname"], "n1");
    fixture.server.stop().await;
}

#[tokio::test]
async fn n_202_a_heartbeat_keeps_what_other_clients_wrote_to_the_status() {
    let fixture = Fixture::start().await;
    let _registration = fixture.register();
    fixture.node(|node| condition(node, "Ready") == "True").await;
    let key = ObjectKey::cluster("n1");
    let patch: Value = json!({ "status": { "capacity": { "example.com/fish": "5" },
        "conditions": [{ "type": "Custom", "status": "True" }] } });
    fixture.client.patch_status::<Node>(&key, &patch).await.unwrap();
    fixture.health.send_modify(|health| health.pid_pressure = true);
    let node = fixture.node(|node| condition(node, "PIDPressure") == "True").await;
    assert_eq!(condition(&node, "Custom"), "True");
    assert_eq!(node.status.unwrap().capacity.unwrap()["example.com/fish"].0, "5");
    // The extended resource also becomes allocatable.
    fixture.health.send_modify(|health| health.pid_pressure = false);
    let has = |node: &Node| {
        let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
        allocatable.is_some_and(|all| all.contains_key("example.com/fish"))
    };
    fixture.node(has).await;
    fixture.server.stop().await;
}
