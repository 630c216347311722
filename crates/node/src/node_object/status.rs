//! Builds the Node object from facts, health and the previous Node. Pure.

use super::resources::{allocatable, capacity};
use super::{Facts, Health, Settings, address, conditions::conditions};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerImage, DaemonEndpoint, Node, NodeDaemonEndpoints, NodeFeatures, NodeRuntimeHandler,
    NodeRuntimeHandlerFeatures, NodeSpec, NodeStatus, NodeSwapStatus, NodeSystemInfo,
};
use std::collections::BTreeMap;

/// Images in the status, the largest first (N-12), and names per image.
const IMAGES_MAX: usize = 50;
const IMAGE_NAMES_MAX: usize = 5;

const ATTACH_DETACH: &str = "volumes.kubernetes.io/controller-managed-attach-detach";

/// An event about a change of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NodeEvent {
    pub(super) warning: bool,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// A new Node (N-4, N-5). [`refreshed`] adds its status.
pub(super) fn initial(settings: &Settings, facts: &Facts) -> Node {
    let mut node = Node::default();
    node.metadata.name = Some(settings.name.clone());
    node.metadata.labels = Some(labels(settings, facts));
    let annotations = BTreeMap::from([(ATTACH_DETACH.to_owned(), "true".to_owned())]);
    node.metadata.annotations = Some(annotations);
    let taints = Some(settings.taints.clone()).filter(|taints| !taints.is_empty());
    node.spec = Some(NodeSpec { taints, ..NodeSpec::default() });
    node
}

/// An existing Node with our labels and annotation. Its spec belongs to others (N-1).
pub(super) fn adopted(settings: &Settings, facts: &Facts, before: &Node) -> Node {
    let mut node = before.clone();
    node.metadata.labels.get_or_insert_default().extend(labels(settings, facts));
    let annotations = node.metadata.annotations.get_or_insert_default();
    annotations.insert(ATTACH_DETACH.to_owned(), "true".to_owned());
    node
}

fn labels(settings: &Settings, facts: &Facts) -> BTreeMap<String, String> {
    let mut labels = system_labels(facts);
    labels.insert("kubernetes.io/hostname".to_owned(), settings.name.clone());
    labels.extend(settings.labels.clone());
    labels
}

fn system_labels(facts: &Facts) -> BTreeMap<String, String> {
    let architecture = facts.machine.architecture.as_str();
    [
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", architecture),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", architecture),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}

/// The Node with its current status, and events about changes.
pub(super) fn refreshed(
    settings: &Settings,
    facts: &Facts,
    health: &Health,
    before: &Node,
    now: Timestamp,
) -> (Node, Vec<NodeEvent>) {
    let mut node = before.clone();
    let old = before.status.clone().unwrap_or_default();
    let labels = node.metadata.labels.get_or_insert_default();
    for (key, value) in system_labels(facts) {
        // Configured labels take precedence, as at creation.
        labels.insert(key.clone(), settings.labels.get(&key).unwrap_or(&value).clone());
    }
    let name = &settings.name;
    let mut events = Vec::new();
    let boot_id = &facts.machine.boot_id;
    let old_boot_id = old.node_info.as_ref().map(|info| info.boot_id.as_str()).unwrap_or_default();
    if !old_boot_id.is_empty() && old_boot_id != boot_id {
        let message = format!("Node {name} has been rebooted, boot id: {boot_id}");
        events.push(NodeEvent { warning: true, reason: "Rebooted", message });
    }
    let capacity = capacity(settings, facts, &old.capacity.unwrap_or_default());
    let (conditions, changes) =
        conditions(health, &capacity, old.conditions.as_deref().unwrap_or_default(), now);
    events.extend(changes.into_iter().map(|reason| node_event(name, reason)));
    node.status = Some(NodeStatus {
        addresses: address::choose(name, &settings.addresses, &facts.addresses)
            .inspect_err(|why| tracing::warn!(why, "no address of the node was found"))
            .map_or(old.addresses, Some),
        allocatable: Some(allocatable(settings, facts, &capacity)),
        capacity: Some(capacity),
        conditions: Some(merged(old.conditions.unwrap_or_default(), conditions)),
        daemon_endpoints: Some(NodeDaemonEndpoints {
            kubelet_endpoint: Some(DaemonEndpoint { port: settings.port.into() }),
        }),
        features: Some(NodeFeatures {
            supplemental_groups_policy: Some(settings.features.strict_groups),
        }),
        images: Some(images(facts)).filter(|images| !images.is_empty()),
        node_info: Some(node_info(settings, facts)),
        runtime_handlers: Some(vec![runtime_handler(settings)]),
        config: old.config,
        declared_features: old.declared_features,
        phase: old.phase,
        volumes_attached: old.volumes_attached,
        volumes_in_use: old.volumes_in_use,
    });
    (node, events)
}

pub(super) fn node_event(node: &str, reason: &'static str) -> NodeEvent {
    let message = format!("Node {node} status is now: {reason}");
    NodeEvent { warning: false, reason, message }
}

type Conditions = Vec<k8s_openapi::api::core::v1::NodeCondition>;

/// Keeps the conditions of other clients, before ours.
fn merged(old: Conditions, ours: Conditions) -> Conditions {
    let others = old.into_iter().filter(|old| ours.iter().all(|own| own.type_ != old.type_));
    let mut all: Conditions = others.collect();
    all.extend(ours);
    all
}

fn node_info(settings: &Settings, facts: &Facts) -> NodeSystemInfo {
    let machine = &facts.machine;
    let runtime = facts.runtime.as_ref();
    let swap = i64::try_from(machine.swap).ok().filter(|swap| *swap > 0);
    NodeSystemInfo {
        architecture: machine.architecture.clone(),
        boot_id: machine.boot_id.clone(),
        container_runtime_version: runtime
            .map_or_else(|| "unknown".to_owned(), |v| format!("{}://{}", v.name, v.version)),
        kernel_version: machine.kernel.clone(),
        kube_proxy_version: String::new(),
        kubelet_version: settings.version.clone(),
        machine_id: machine.machine_id.clone(),
        operating_system: "linux".to_owned(),
        os_image: machine.os_image.clone(),
        swap: swap.map(|capacity| NodeSwapStatus { capacity: Some(capacity) }),
        system_uuid: machine.system_uuid.clone(),
    }
}

/// The largest first; digests before tags.
fn images(facts: &Facts) -> Vec<ContainerImage> {
    let mut largest: Vec<_> = facts.images.iter().collect();
    largest.sort_by(|a, b| b.size.cmp(&a.size).then_with(|| a.id.cmp(&b.id)));
    let listed = largest.into_iter().take(IMAGES_MAX);
    listed
        .map(|image| {
            let names = image.digests.iter().chain(&image.tags).take(IMAGE_NAMES_MAX);
            ContainerImage {
                names: Some(names.cloned().collect()),
                size_bytes: Some(i64::try_from(image.size).unwrap_or(i64::MAX)),
            }
        })
        .collect()
}

/// The only handler, the default one. Its name is None, because the server does not store an empty
/// name: the status would always differ and be written every ten seconds (N-17).
fn runtime_handler(settings: &Settings) -> NodeRuntimeHandler {
    let features = NodeRuntimeHandlerFeatures {
        recursive_read_only_mounts: Some(settings.features.recursive_read_only),
        user_namespaces: Some(settings.features.user_namespaces),
    };
    NodeRuntimeHandler { name: None, features: Some(features) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_object::Machine;
    use runtime::{Image, Version};
    use serde_json::json;

    fn settings() -> Settings {
        Settings {
            labels: [("zone".to_owned(), "a".to_owned())].into(),
            taints: vec![
                serde_json::from_value(json!({ "key": "k", "effect": "NoSchedule" })).unwrap(),
            ],
            ..Settings::new("N1 ", "/", "v1.36.4")
        }
    }

    fn facts() -> Facts {
        let machine = Machine {
            cores: 2,
            memory: 1 << 30,
            boot_id: "boot-1".to_owned(),
            architecture: "amd64".to_owned(),
            ..Machine::default()
        };
        let runtime = Some(Version { name: "landfall".into(), version: "0.1.0".into() });
        Facts { machine, runtime, storage: Some(1 << 30), ..Facts::default() }
    }

    fn healthy() -> Health {
        Health { runtime: Some(Ok(())), network: Some(Ok(())), ..Health::default() }
    }

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    #[test]
    fn n_3_n_4_n_5_a_new_node_has_its_labels_taints_and_annotation() {
        let node = initial(&settings(), &facts());
        assert_eq!(node.metadata.name.as_deref(), Some("n1"));
        let labels = node.metadata.labels.unwrap();
        for (key, value) in [
            ("kubernetes.io/hostname", "n1"),
            ("kubernetes.io/os", "linux"),
            ("kubernetes.io/arch", "amd64"),
            ("beta.kubernetes.io/os", "linux"),
            ("beta.kubernetes.io/arch", "amd64"),
            ("zone", "a"),
        ] {
            assert_eq!(labels[key], value, "{key}");
        }
        assert_eq!(node.metadata.annotations.unwrap()[ATTACH_DETACH], "true");
        assert_eq!(node.spec.unwrap().taints.unwrap()[0].key, "k");
        let configured = Settings {
            labels: [("kubernetes.io/arch".to_owned(), "x".to_owned())].into(),
            ..settings()
        };
        assert_eq!(
            initial(&configured, &facts()).metadata.labels.unwrap()["kubernetes.io/arch"],
            "x"
        );
    }

    #[test]
    fn n_1_the_spec_of_an_existing_node_is_not_changed() {
        let before: Node = typed::from_value(json!({
            "metadata": { "name": "n1", "labels": { "mine": "1", "kubernetes.io/os": "plan9" } },
            "spec": { "unschedulable": true, "podCIDR": "10.0.0.0/24" },
        }))
        .unwrap();
        let node = adopted(&settings(), &facts(), &before);
        assert_eq!(node.spec, before.spec);
        let labels = node.metadata.labels.unwrap();
        assert_eq!((labels["mine"].as_str(), labels["kubernetes.io/os"].as_str()), ("1", "linux"));
    }

    #[test]
    fn n_4_a_heartbeat_restores_only_the_labels_of_os_and_architecture() {
        let before: Node = typed::from_value(json!({
            "metadata": { "labels": { "kubernetes.io/os": "x", "kubernetes.io/hostname": "other" } } }))
        .unwrap();
        let (node, _) = refreshed(&settings(), &facts(), &healthy(), &before, now());
        let labels = node.metadata.labels.unwrap();
        assert_eq!(labels["kubernetes.io/os"], "linux");
        assert_eq!(labels["kubernetes.io/hostname"], "other");
        assert!(!labels.contains_key("zone"));
    }

    #[test]
    fn n_11_a_changed_boot_id_creates_one_event() {
        let (node, events) = refreshed(&settings(), &facts(), &healthy(), &Node::default(), now());
        assert!(events.iter().all(|event| event.reason != "Rebooted"));
        let info = node.status.as_ref().unwrap().node_info.clone().unwrap();
        assert_eq!(info.container_runtime_version, "landfall://0.1.0");
        assert_eq!((info.kube_proxy_version.as_str(), info.swap), ("", None));
        let machine = Machine { boot_id: "boot-2".to_owned(), ..facts().machine };
        let rebooted = Facts { machine, ..facts() };
        let (node, events) = refreshed(&settings(), &rebooted, &healthy(), &node, now());
        let message = "Node n1 has been rebooted, boot id: boot-2".to_owned();
        assert_eq!(events, [NodeEvent { warning: true, reason: "Rebooted", message }]);
        let (_, events) = refreshed(&settings(), &rebooted, &healthy(), &node, now());
        assert_eq!(events, []);
    }

    #[test]
    fn n_12_the_status_lists_the_fifty_largest_images_with_at_most_five_names() {
        let image = |i: u64| Image {
            id: format!("sha256:{i:03}"),
            tags: (0..4).map(|tag| format!("r/i{i}:{tag}")).collect(),
            digests: vec![format!("r/i{i}@sha256:a"), format!("r/i{i}@sha256:b")],
            size: i,
            uid: None,
            username: String::new(),
            pinned: false,
        };
        let facts = Facts { images: (0..60).map(image).collect(), ..facts() };
        let listed = images(&facts);
        assert_eq!(listed.len(), 50);
        assert_eq!(listed[0].size_bytes, Some(59));
        let names = listed[0].names.clone().unwrap();
        assert_eq!(names, ["r/i59@sha256:a", "r/i59@sha256:b", "r/i59:0", "r/i59:1", "r/i59:2"]);
    }

    #[test]
    fn conditions_and_volumes_of_other_clients_are_kept() {
        let before: Node = typed::from_value(json!({ "status": {
            "conditions": [{ "type": "Custom", "status": "True" }], "volumesInUse": ["v"] } }))
        .unwrap();
        let (node, _) = refreshed(&settings(), &facts(), &healthy(), &before, now());
        let status = node.status.unwrap();
        let types: Vec<_> =
            status.conditions.as_ref().unwrap().iter().map(|c| c.type_.as_str()).collect();
        assert_eq!(types, ["Custom", "MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]);
        assert_eq!(status.volumes_in_use.unwrap(), ["v"]);
    }
}
