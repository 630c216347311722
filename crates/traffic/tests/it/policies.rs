//! NetworkPolicies of a real API server, enforced for real connections between pods.
//!
//! The pods x/a, x/b, y/a and y/b run on the node under test and serve the ports 80 and 81.

mod lifecycle;

use crate::isolated::{
    SHORT, call_tcp_within, call_udp, config, isolated, run, serve_tcp, serve_udp,
};
use client::{DeleteOptions, ObjectKey};
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use network::{Attachment, Pods};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;
use testbed::TestServer;
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use traffic::Watched;
use traffic::policies::{self, Config, LocalServer, Policies, Running};

const NODE: &str = "n1";
const NAMES: [&str; 4] = ["x/a", "x/b", "y/a", "y/b"];
/// As in upstream's tests: the tables must agree with the policies after this time (NET-137).
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Probe {
    Tcp(u16),
    Udp(u16),
}

struct Cluster {
    server: TestServer,
    network: Pods,
    running: Option<Running>,
    pods: BTreeMap<&'static str, (Pod, Attachment)>,
}

impl Cluster {
    async fn start(directory: &Path) -> Cluster {
        let server = TestServer::start().await;
        let network = Pods::open(config(directory)).await.unwrap();
        let mut cluster = Cluster { server, network, running: None, pods: BTreeMap::new() };
        cluster.enforce(Vec::new()).await;
        for name in ["x", "y"] {
            let namespace = json!({ "metadata": { "name": name, "labels": { "ns": name } } });
            cluster.create::<Namespace>(namespace).await;
            let account = json!({ "metadata": { "namespace": name, "name": "default" } });
            cluster.create::<ServiceAccount>(account).await;
        }
        for name in NAMES {
            cluster.start_pod(name).await;
        }
        cluster
    }

    /// Starts the part under test, as a new process would.
    async fn enforce(&mut self, servers: Vec<LocalServer>) {
        self.running = None;
        let client = self.server.node(NODE); // With the rights of an agent.
        let config = Config { servers, ..Config::new(self.network.config(), NODE) };
        let running = policies::start(&client, &Watched::start(&client), config).await;
        self.running = Some(running.unwrap());
    }

    fn policies(&self) -> Policies {
        self.running.as_ref().unwrap().policies()
    }

    async fn create<K: client::Object<DynamicType = ()>>(&self, object: Value) -> K {
        self.server.admin().create(&typed::from_value::<K>(object).unwrap()).await.unwrap()
    }

    async fn start_pod(&mut self, key: &'static str) {
        let (namespace, name) = key.split_once('/').unwrap();
        let ports = json!([
            { "name": "serve-80-tcp", "containerPort": 80 },
            { "name": "serve-81-tcp", "containerPort": 81 },
        ]);
        let pod = json!({
            "metadata": { "namespace": namespace, "name": name, "labels": { "pod": name } },
            "spec": { "nodeName": NODE, "containers": [{ "name": "c", "image": "i", "ports": ports }] },
        });
        let pod: Pod = self.create(pod).await;
        let uid = pod.metadata.uid.clone().unwrap();
        let attachment = self.network.attach(&uid, &[]).await.unwrap();
        for port in [80, 81] {
            serve_tcp(Some(&attachment.netns), port, key);
            serve_udp(&attachment.netns, port, key);
        }
        self.policies().pod_attached(&pod, &attachment.addresses).await.unwrap();
        let addresses: Vec<Value> =
            attachment.addresses.iter().map(|ip| json!({ "ip": ip.to_string() })).collect();
        let ip = addresses[0]["ip"].clone();
        let status = json!({ "status": { "phase": "Running", "podIP": ip, "podIPs": addresses } });
        let client = self.server.admin();
        client.patch_status::<Pod>(&ObjectKey::of(&pod), &status).await.unwrap();
        self.pods.insert(key, (pod, attachment));
    }

    async fn apply(&self, key: &str, spec: Value) {
        let (namespace, name) = key.split_once('/').unwrap();
        let policy = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": { "namespace": namespace, "name": name }, "spec": spec,
        });
        let client = self.server.admin();
        let key = ObjectKey::new(namespace, name);
        if client.find::<NetworkPolicy>(&key).await.unwrap().is_some() {
            client.delete::<NetworkPolicy>(&key, &DeleteOptions::default()).await.unwrap();
        }
        self.create::<NetworkPolicy>(policy).await;
    }

    async fn delete(&self, key: &str) {
        let key: ObjectKey = key.parse().unwrap();
        let options = DeleteOptions::default();
        self.server.admin().delete::<NetworkPolicy>(&key, &options).await.unwrap();
    }

    async fn label<K: client::Object<DynamicType = ()>>(&self, key: &ObjectKey, labels: Value) {
        let patch = json!({ "metadata": { "labels": labels } });
        self.server.admin().patch_merge::<K>(key, &patch).await.unwrap();
    }

    /// All connections that are possible now, as "from>to".
    async fn matrix(&self, probe: Probe) -> BTreeSet<String> {
        let mut probes = Vec::new();
        for from in NAMES {
            for to in NAMES {
                let netns = self.pods[from].1.netns.clone();
                let address = self.pods[to].1.addresses[0];
                let connect = move || match probe {
                    Probe::Tcp(port) => {
                        let to = format!("{address}:{port}");
                        call_tcp_within(Some(&netns), &to, SHORT).is_ok()
                    }
                    Probe::Udp(port) => {
                        call_udp(Some(&netns), &format!("{address}:{port}"), 9).is_some()
                    }
                };
                probes.push((format!("{from}>{to}"), spawn_blocking(connect)));
            }
        }
        let mut found = BTreeSet::new();
        for (name, probe) in probes {
            if probe.await.unwrap() {
                found.insert(name);
            }
        }
        found
    }

    /// Waits until exactly these connections are possible. A pod always reaches itself.
    async fn expect(&self, what: &str, probe: Probe, allowed: impl Fn(&str, &str) -> bool) {
        let all = NAMES.iter().flat_map(|from| NAMES.iter().map(move |to| (from, to)));
        let expected = all.filter(|(from, to)| from == to || allowed(from, to));
        let expected: BTreeSet<String> =
            expected.map(|(from, to)| format!("{from}>{to}")).collect();
        let start = Instant::now();
        loop {
            let found = self.matrix(probe).await;
            if found == expected {
                return;
            }
            assert!(
                start.elapsed() < PATIENCE,
                "{what}: {found:?} is possible, expected {expected:?}"
            );
        }
    }
}

fn pods(name: &str) -> Value {
    json!({ "matchLabels": { "pod": name } })
}

fn namespaces(name: &str) -> Value {
    json!({ "matchLabels": { "ns": name } })
}

/// A policy for ingress to x/a from these peers.
fn ingress(from: Value) -> Value {
    json!({ "podSelector": pods("a"), "policyTypes": ["Ingress"], "ingress": [{ "from": from }] })
}

#[test]
fn net_138_ingress_by_selectors() {
    isolated(|directory| async move {
        let cluster = Cluster::start(&directory).await;
        let http = Probe::Tcp(80);
        cluster.expect("no policy", http, |_, _| true).await;
        let deny = json!({ "podSelector": {}, "policyTypes": ["Ingress"] });
        cluster.apply("x/deny", deny).await;
        cluster.expect("default deny", http, |_, to| to.starts_with('y')).await;
        cluster.apply("x/allow", json!({ "podSelector": {}, "ingress": [{}] })).await;
        cluster.expect("allow all over deny", http, |_, _| true).await;
        cluster.delete("x/allow").await;
        cluster.expect("deny again", http, |_, to| to.starts_with('y')).await;
        cluster.delete("x/deny").await;
        let expression =
            json!({ "matchExpressions": [{ "key": "pod", "operator": "In", "values": ["b"] }] });
        let by_name = json!({ "matchLabels": { "kubernetes.io/metadata.name": "y" } });
        let b_of_y = json!({ "podSelector": pods("b"), "namespaceSelector": namespaces("y") });
        for (what, from, allowed) in [
            ("pods", json!([{ "podSelector": pods("b") }]), &["x/b"][..]),
            ("namespaces", json!([{ "namespaceSelector": namespaces("y") }]), &["y/a", "y/b"]),
            ("default label", json!([{ "namespaceSelector": by_name }]), &["y/a", "y/b"]),
            ("both", json!([b_of_y]), &["y/b"]),
            (
                "either",
                json!([{ "podSelector": pods("b") }, { "namespaceSelector": namespaces("y") }]),
                &["x/b", "y/a", "y/b"],
            ),
            (
                "expressions",
                json!([{ "podSelector": expression, "namespaceSelector": {} }]),
                &["x/b", "y/b"],
            ),
        ] {
            cluster.apply("x/p", ingress(from)).await;
            cluster.expect(what, http, |from, to| to != "x/a" || allowed.contains(&from)).await;
        }
        // Stacked policies: their union.
        let ports = json!([{ "from": [{ "namespaceSelector": namespaces("y") }], "ports": [{ "port": 81 }] }]);
        cluster.apply("x/p", ingress(json!([{ "podSelector": pods("b") }]))).await;
        cluster
            .apply(
                "x/q",
                json!({ "podSelector": {}, "policyTypes": ["Ingress"], "ingress": ports }),
            )
            .await;
        let stacked = |from: &str, to: &str| to.starts_with('y') || (to, from) == ("x/a", "x/b");
        cluster.expect("stacked", http, stacked).await;
        let other = |from: &str, to: &str| stacked(from, to) || from.starts_with('y');
        cluster.expect("stacked, other port", Probe::Tcp(81), other).await;
    });
}

#[test]
fn net_138_egress_blocks_ports_and_protocols() {
    isolated(|directory| async move {
        let cluster = Cluster::start(&directory).await;
        let http = Probe::Tcp(80);
        let egress = |rules: Value| json!({ "podSelector": pods("a"), "policyTypes": ["Egress"], "egress": rules });
        cluster.apply("x/p", egress(json!([]))).await;
        cluster.expect("deny", http, |from, _| from != "x/a").await;
        let y = json!([{ "to": [{ "namespaceSelector": namespaces("y") }] }]);
        cluster.apply("x/p", egress(y.clone())).await;
        cluster.expect("namespaces", http, |from, to| from != "x/a" || to.starts_with('y')).await;
        // Ingress and egress together: both ends must allow it.
        cluster.apply("y/p", json!({ "podSelector": pods("b"), "policyTypes": ["Ingress"] })).await;
        let both = |from: &str, to: &str| to != "y/b" && (from != "x/a" || to == "y/a");
        cluster.expect("ingress and egress", http, both).await;
        cluster.delete("y/p").await;
        let address = |pod: &str| cluster.pods[pod].1.addresses[0].to_string();
        let block = json!([{ "to": [{ "ipBlock": { "cidr": "10.77.0.0/16", "except": [format!("{}/32", address("y/b"))] } }] }]);
        cluster.apply("x/p", egress(block.clone())).await;
        cluster.expect("except", http, |from, to| (from, to) != ("x/a", "y/b")).await;
        let again = json!([block[0], { "to": [{ "ipBlock": { "cidr": format!("{}/32", address("y/b")) } }] }]);
        cluster.apply("x/p", egress(again)).await;
        cluster.expect("overlapping blocks", http, |_, _| true).await;
        cluster.apply("x/p", egress(json!([{ "ports": [{ "port": "serve-81-tcp" }] }]))).await;
        cluster.expect("named port", Probe::Tcp(81), |_, _| true).await;
        cluster.expect("other port", http, |from, _| from != "x/a").await;
        cluster
            .apply("x/p", egress(json!([{ "ports": [{ "port": 80, "protocol": "UDP" }] }])))
            .await;
        cluster.expect("UDP rule and TCP", http, |from, _| from != "x/a").await;
        cluster.expect("UDP", Probe::Udp(80), |_, _| true).await;
        cluster.expect("other UDP port", Probe::Udp(81), |from, _| from != "x/a").await;
        cluster
            .apply(
                "x/p",
                egress(
                    json!([{ "ports": [{ "port": 80, "endPort": 81 }, { "protocol": "SCTP" }] }]),
                ),
            )
            .await;
        cluster.expect("range", Probe::Tcp(81), |_, _| true).await;
        // NET-124: a rule for SCTP does not load the module.
        let modules = std::fs::read_to_string("/proc/modules").unwrap_or_default();
        assert!(!modules.lines().any(|line| line.starts_with("sctp ")));
    });
}

#[test]
fn net_138_updates_of_policies_and_labels() {
    isolated(|directory| async move {
        let cluster = Cluster::start(&directory).await;
        let http = Probe::Tcp(80);
        let red = json!([{ "podSelector": { "matchLabels": { "color": "red" } }, "namespaceSelector": { "matchLabels": { "team": "one" } } }]);
        cluster.apply("x/p", ingress(red)).await;
        cluster.expect("nobody", http, |_, to| to != "x/a").await;
        let (y, yb) = (ObjectKey::cluster("y"), ObjectKey::new("y", "b"));
        cluster.label::<Namespace>(&y, json!({ "team": "one" })).await;
        cluster.label::<Pod>(&yb, json!({ "color": "red" })).await;
        cluster.expect("labelled", http, |from, to| to != "x/a" || from == "y/b").await;
        cluster.label::<Namespace>(&y, json!({ "team": null })).await;
        cluster.expect("namespace", http, |_, to| to != "x/a").await;
        cluster.label::<Namespace>(&y, json!({ "team": "one" })).await;
        cluster.label::<Pod>(&yb, json!({ "color": "blue" })).await;
        cluster.expect("pod", http, |_, to| to != "x/a").await;
        // The labels of the selected pod.
        cluster.label::<Pod>(&ObjectKey::new("x", "a"), json!({ "pod": "other" })).await;
        cluster.expect("not selected", http, |_, _| true).await;
        let spec = json!({ "spec": { "podSelector": null, "ingress": [] } });
        let key = ObjectKey::new("x", "p");
        cluster.server.admin().patch_merge::<NetworkPolicy>(&key, &spec).await.unwrap();
        cluster.expect("updated policy", http, |_, to| to.starts_with('y')).await;
    });
}
