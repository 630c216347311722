//! Registration, heartbeats and lease against a real server.

use super::*;
use crate::node_object::{Addresses, Machine};
use client::Happening;
use k8s_openapi::api::coordination::v1::Lease;
use serde_json::{Value, json};
use server::authn::User;
use server::{Running, StoreChoice};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Nothing here takes that long; it is there so that a failing test ends.
const PATIENCE: Duration = Duration::from_secs(30);

struct World {
    server: Running,
    _data: TempDir,
    client: Client,
    health: watch::Sender<Health>,
    events: mpsc::Receiver<Happening>,
    recorder: Recorder,
}

impl World {
    async fn start() -> World {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let data = tempfile::tempdir().unwrap();
        let config = server::Config {
            data_dir: data.path().into(),
            listen: ([127, 0, 0, 1], 0).into(),
            store: StoreChoice::Embedded,
            audit_log: None,
            controllers: false,
        };
        let server = server::start(config).await.unwrap();
        let admin = User::authenticated("tester", &["system:masters"]);
        let client = Client::in_process(server.server.door(admin));
        let (recorder, events) = Recorder::collecting();
        let health = watch::Sender::new(well());
        World { server, _data: data, client, health, events, recorder }
    }

    fn register(&self) -> Registration {
        let settings = Settings::new("n1", "/", "v1.36.4");
        let facts: FactsProvider = Arc::new(|| Box::pin(async { facts() }));
        let (client, recorder) = (self.client.clone(), self.recorder.clone());
        Registration::start(client, recorder, settings, facts, self.health.subscribe())
    }

    /// The Node as the API has it, once it is as wanted.
    async fn node(&self, wanted: impl Fn(&Node) -> bool) -> Node {
        let seen = async {
            loop {
                let found = self.client.find::<Node>(&ObjectKey::cluster("n1")).await.unwrap();
                if let Some(node) = found.filter(|node| wanted(node)) {
                    return node;
                }
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, seen).await.expect("the Node becomes as wanted")
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

fn well() -> Health {
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
    let mut world = World::start().await;
    let registration = world.register();
    let node = world.node(|node| condition(node, "Ready") == "True").await;
    let status = node.status.clone().unwrap();
    assert_eq!(status.capacity.unwrap()["pods"].0, "110");
    assert_eq!(status.addresses.unwrap()[0].address, "10.0.0.5");
    let endpoints = status.daemon_endpoints.unwrap();
    assert_eq!(endpoints.kubelet_endpoint.unwrap().port, 10250);
    let key = ObjectKey::new("kube-node-lease", "n1");
    let leased = async {
        loop {
            if let Some(lease) = world.client.find::<Lease>(&key).await.unwrap() {
                return lease;
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    let lease = timeout(PATIENCE, leased).await.unwrap();
    let spec = lease.spec.unwrap();
    assert_eq!(spec.holder_identity.as_deref(), Some("n1"));
    assert_eq!(spec.lease_duration_seconds, Some(40));
    assert!(spec.renew_time.is_some());
    let owner = &lease.metadata.owner_references.unwrap()[0];
    assert_eq!((owner.kind.as_str(), Some(&owner.uid)), ("Node", node.metadata.uid.as_ref()));
    assert_eq!(owner.controller, None);
    assert!(registration.node().is_some());
    let told = world.reasons();
    assert_eq!(told[0], "Starting");
    assert!(!told.contains(&"NodeReady".to_owned()), "it never was anything else: {told:?}");
    world.server.stop().await;
}

#[tokio::test]
async fn n_14_n_16_a_change_of_health_is_written_and_told_at_once() {
    let mut world = World::start().await;
    world.health.send_modify(|health| health.runtime = None);
    let _registration = world.register();
    world.node(|node| condition(node, "Ready") == "False").await;
    world.reasons();
    world.health.send_modify(|health| health.runtime = Some(Ok(())));
    world.node(|node| condition(node, "Ready") == "True").await;
    world.health.send_modify(|health| health.disk_pressure = true);
    world.node(|node| condition(node, "DiskPressure") == "True").await;
    // Events are told right behind the write that they are about.
    let told = async {
        let mut told = Vec::new();
        while !told.contains(&"NodeHasDiskPressure".to_owned()) {
            told.extend(world.reasons());
            sleep(Duration::from_millis(5)).await;
        }
        told
    };
    let told = timeout(PATIENCE, told).await.unwrap();
    assert_eq!(told, ["NodeReady", "NodeHasDiskPressure"]);
    world.server.stop().await;
}

#[tokio::test]
async fn n_1_an_existing_node_is_adopted_and_its_spec_left_alone() {
    let world = World::start().await;
    let before: Node = typed::from_value(json!({
        "metadata": { "name": "n1", "labels": { "mine": "1", "kubernetes.io/os": "plan9" } },
        "spec": { "unschedulable": true },
    }))
    .unwrap();
    world.client.create(&before).await.unwrap();
    let _registration = world.register();
    let node = world.node(|node| condition(node, "Ready") == "True").await;
    assert_eq!(node.spec.unwrap().unschedulable, Some(true));
    let labels = node.metadata.labels.unwrap();
    assert_eq!((labels["mine"].as_str(), labels["kubernetes.io/os"].as_str()), ("1", "linux"));
    assert_eq!(labels["kubernetes.io/hostname"], "n1");
    world.server.stop().await;
}

#[tokio::test]
async fn n_202_what_others_put_into_the_status_survives_a_heartbeat() {
    let world = World::start().await;
    let _registration = world.register();
    world.node(|node| condition(node, "Ready") == "True").await;
    let key = ObjectKey::cluster("n1");
    let patch: Value = json!({ "status": { "capacity": { "example.com/fish": "5" },
        "conditions": [{ "type": "Haunted", "status": "True" }] } });
    world.client.patch_status::<Node>(&key, &patch).await.unwrap();
    world.health.send_modify(|health| health.pid_pressure = true);
    let node = world.node(|node| condition(node, "PIDPressure") == "True").await;
    assert_eq!(condition(&node, "Haunted"), "True");
    assert_eq!(node.status.unwrap().capacity.unwrap()["example.com/fish"].0, "5");
    // And what is there may be given out, as soon as the change was seen.
    world.health.send_modify(|health| health.pid_pressure = false);
    let has = |node: &Node| {
        let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
        allocatable.is_some_and(|all| all.contains_key("example.com/fish"))
    };
    world.node(has).await;
    world.server.stop().await;
}
