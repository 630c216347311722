//! After any sequence of changes, the tables allow what the objects say.

use super::kernel::Kernel;
use super::naive::{NaivePod, World};
use super::{NODE, Node, Packet, pod, policy, with_ports};
use k8s_openapi::api::core::v1::Pod;
use network::Protocol;
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const NAMESPACES: [&str; 2] = ["x", "y"];
const LOCAL: usize = 4;
const PODS: usize = 7;

#[derive(Debug, Clone)]
enum Step {
    Pod { index: usize, labels: usize, port: u16, terminal: bool },
    DeletePod(usize),
    Attach(usize),
    Detach(usize),
    Namespace { index: usize, team: Option<usize> },
    Policy { namespace: usize, name: usize, spec: Value },
    DeletePolicy { namespace: usize, name: usize },
}

fn any_labels(kind: usize) -> Value {
    [json!({}), json!({"pod": "a"}), json!({"pod": "b"}), json!({"pod": "a", "tier": "web"})][kind]
        .clone()
}

fn any_selector(key: &'static str) -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({})),
        Just(json!({"matchLabels": {key: "a"}})),
        Just(json!({"matchExpressions": [{"key": key, "operator": "In", "values": ["a", "b"]}]})),
        Just(json!({"matchExpressions": [{"key": key, "operator": "NotIn", "values": ["b"]}]})),
        Just(json!({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]})),
    ]
}

fn any_peer() -> impl Strategy<Value = Value> {
    prop_oneof![
        any_selector("pod").prop_map(|pods| json!({"podSelector": pods})),
        any_selector("team").prop_map(|teams| json!({"namespaceSelector": teams})),
        (any_selector("pod"), any_selector("team"))
            .prop_map(|(pods, teams)| json!({"podSelector": pods, "namespaceSelector": teams})),
        Just(
            json!({"ipBlock": {"cidr": "10.77.3.0/24", "except": ["10.77.3.2/31", "10.77.3.3/32"]}})
        ),
        Just(json!({"ipBlock": {"cidr": "10.77.9.6/31"}})),
        Just(json!({"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.77.0.0/16"]}})),
    ]
}

fn any_port() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!({"port": 80, "protocol": "TCP"})),
        Just(json!({"port": 80, "endPort": 81, "protocol": "UDP"})),
        Just(json!({"port": 81, "endPort": 9000, "protocol": "TCP"})),
        Just(json!({"port": "web", "protocol": "TCP"})),
        Just(json!({"protocol": "SCTP"})),
        Just(json!({"port": 90, "protocol": "TCP"})),
    ]
}

fn any_rules(peers: &'static str) -> impl Strategy<Value = Value> {
    let rule = (prop::collection::vec(any_peer(), 0..3), prop::collection::vec(any_port(), 0..4));
    let rule = rule.prop_map(move |(peer, ports)| json!({peers: peer, "ports": ports}));
    prop::collection::vec(rule, 0..3).prop_map(Value::Array)
}

fn any_spec() -> impl Strategy<Value = Value> {
    let types = prop::sample::select(vec![
        json!(["Ingress"]),
        json!(["Egress"]),
        json!(["Ingress", "Egress"]),
    ]);
    (any_selector("pod"), types, any_rules("from"), any_rules("to")).prop_map(
        |(pods, types, ingress, egress)| {
            json!({"podSelector": pods, "policyTypes": types, "ingress": ingress, "egress": egress})
        },
    )
}

fn any_step() -> impl Strategy<Value = Step> {
    let port = prop::sample::select(vec![80_u16, 81]);
    prop_oneof![
        4 => (0..PODS, 0..4_usize, port, prop::bool::weighted(0.1))
            .prop_map(|(index, labels, port, terminal)| Step::Pod { index, labels, port, terminal }),
        1 => (0..PODS).prop_map(Step::DeletePod),
        2 => (0..LOCAL).prop_map(Step::Attach),
        1 => (0..LOCAL).prop_map(Step::Detach),
        2 => (0..2_usize, prop::option::of(0..3_usize))
            .prop_map(|(index, team)| Step::Namespace { index, team }),
        4 => (0..2_usize, 0..3_usize, any_spec())
            .prop_map(|(namespace, name, spec)| Step::Policy { namespace, name, spec }),
        1 => (0..2_usize, 0..3_usize)
            .prop_map(|(namespace, name)| Step::DeletePolicy { namespace, name }),
    ]
}

fn key(index: usize) -> String {
    format!("{}/p{index}", NAMESPACES[index % 2])
}

fn address(index: usize) -> String {
    if index < LOCAL { format!("10.77.3.{}", index + 2) } else { format!("10.77.9.{}", index + 2) }
}

#[derive(Default, Clone)]
struct ModelPod {
    object: Option<Pod>,
    attached: Option<Pod>,
    released: bool,
}

#[derive(Default)]
struct Model {
    pods: BTreeMap<usize, ModelPod>,
    namespaces: BTreeMap<String, BTreeMap<String, String>>,
    policies: BTreeMap<(usize, usize), Value>,
}

impl Model {
    fn new() -> Model {
        let pods = (0..PODS).map(|index| (index, ModelPod::default())).collect();
        Model { pods, ..Model::default() }
    }

    fn step(&mut self, node: &mut Node, step: &Step) {
        match step {
            Step::Pod { index, labels, port, terminal } => {
                let on = if *index < LOCAL { NODE } else { "n2" };
                let uid = format!("uid-{index}");
                let made = pod(&key(*index), &uid, any_labels(*labels), on, &[&address(*index)]);
                let ports = json!([{"name": "web", "containerPort": port}]);
                let mut made = with_ports(made, ports);
                if *terminal {
                    made.status.as_mut().unwrap().phase = Some("Succeeded".into());
                }
                node.pod(&made);
                let model = self.pods.get_mut(index).unwrap();
                if model.attached.is_some() {
                    model.attached = Some(made.clone());
                }
                model.object = Some(made);
            }
            Step::DeletePod(index) => {
                let model = self.pods.get_mut(index).unwrap();
                if let Some(object) = model.object.take() {
                    node.delete_pod(&object);
                    model.released = false;
                }
            }
            Step::Attach(index) => {
                let model = self.pods.get_mut(index).unwrap();
                if let Some(object) = model.object.clone() {
                    node.attach(&object, &[&address(*index)]);
                    (model.attached, model.released) = (Some(object), false);
                }
            }
            Step::Detach(index) => {
                node.engine.detached(&format!("uid-{index}"));
                node.commit();
                let model = self.pods.get_mut(index).unwrap();
                (model.attached, model.released) = (None, true);
            }
            Step::Namespace { index, team } => {
                let labels = team.map(|team| match team {
                    0 => BTreeMap::new(),
                    team => BTreeMap::from([("team".into(), ["", "a", "b"][team].into())]),
                });
                node.namespace(NAMESPACES[*index], json!(labels));
                let name = NAMESPACES[*index].to_string();
                match labels {
                    Some(labels) => drop(self.namespaces.insert(name, labels)),
                    None => drop(self.namespaces.remove(&name)),
                }
            }
            Step::Policy { namespace, name, spec } => {
                let made = format!("{}/{name}", NAMESPACES[*namespace]);
                node.policy(&policy(&made, spec.clone()));
                self.policies.insert((*namespace, *name), spec.clone());
            }
            Step::DeletePolicy { namespace, name } => {
                let made = format!("{}/{name}", NAMESPACES[*namespace]);
                node.delete_policy(&policy(&made, json!({})));
                self.policies.remove(&(*namespace, *name));
            }
        }
    }

    fn world(&self) -> World {
        let mut pods = Vec::new();
        for (index, model) in &self.pods {
            let is_local = *index < LOCAL;
            let terminal =
                |pod: &Pod| pod.status.as_ref().unwrap().phase.as_deref() == Some("Succeeded");
            let current = match (&model.attached, &model.object) {
                (Some(attached), _) => attached,
                (None, Some(pod)) if !(terminal(pod) || is_local && model.released) => pod,
                _ => continue,
            };
            let port = &current.spec.as_ref().unwrap().containers[0].ports.as_ref().unwrap()[0];
            pods.push(NaivePod {
                namespace: current.metadata.namespace.clone().unwrap(),
                labels: current.metadata.labels.clone().unwrap_or_default(),
                address: address(*index).parse().unwrap(),
                ports: vec![("web".into(), Protocol::Tcp, port.container_port as u16)],
                is_local,
                is_peer: !terminal(current),
            });
        }
        let policies = self.policies.iter().map(|((namespace, name), spec)| {
            policy(&format!("{}/{name}", NAMESPACES[*namespace]), spec.clone())
        });
        World { namespaces: self.namespaces.clone(), pods, policies: policies.collect() }
    }
}

/// Connections between all pods and a host outside.
fn packets() -> Vec<Packet> {
    let mut ends: Vec<String> = (0..PODS).map(address).collect();
    ends.push("192.0.2.2".into());
    let probes = [
        (Protocol::Tcp, 80),
        (Protocol::Tcp, 81),
        (Protocol::Tcp, 90),
        (Protocol::Udp, 80),
        (Protocol::Sctp, 9),
    ];
    let mut packets = Vec::new();
    for (from, to) in ends.iter().flat_map(|from| ends.iter().map(move |to| (from, to))) {
        let (source, destination) = (from.parse().unwrap(), to.parse().unwrap());
        let of = |(protocol, port)| Packet { source, destination, protocol, port };
        packets.extend(probes.map(of));
    }
    packets
}

proptest! {
    #[test]
    fn net_125_to_129_tables_agree_with_a_naive_evaluation(
        steps in prop::collection::vec(any_step(), 1..40),
    ) {
        let (mut node, mut model) = (Node::new(), Model::new());
        for step in &steps {
            model.step(&mut node, step);
        }
        let world = model.world();
        for packet in packets() {
            prop_assert_eq!(node.kernel.allows(&packet), world.allows(&packet), "{:?} {:?}", packet, world);
        }
        // Written as a whole, the tables are the same as after all the changes.
        let mut again = Kernel::default();
        again.apply(node.engine.all());
        again.changes = node.kernel.changes;
        prop_assert_eq!(&again, &node.kernel);
        for (namespace, name) in model.policies.keys().copied().collect::<Vec<_>>() {
            model.step(&mut node, &Step::DeletePolicy { namespace, name });
        }
        let empty = Kernel { changes: node.kernel.changes, ..Kernel::default() };
        prop_assert_eq!(&node.kernel, &empty, "nothing is left");
    }
}
