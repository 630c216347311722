//! The state of a node: its labels, taints and capacity, and the sum of its pods' requests, which is updated and never
//! recounted.

use crate::amounts::{Amounts, PODS, amount};
use crate::pod::{HostPort, PodInfo};
use client::ObjectKey;
use k8s_openapi::api::core::v1::{Node, NodeSpec, NodeStatus, Taint};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The properties of a Node that matter for scheduling. Heartbeats do not change them.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct NodeInfo {
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) taints: Vec<Taint>,
    pub(crate) unschedulable: bool,
    pub(crate) allocatable: Amounts,
    pub(crate) pods_max: i64,
    /// Image name to size.
    pub(crate) images: HashMap<String, i64>,
}

#[derive(Debug, Clone)]
pub(crate) struct NodeState {
    pub(crate) name: Arc<str>,
    /// `None` if the Node does not exist, although there are pods on it.
    pub(crate) info: Option<Arc<NodeInfo>>,
    pub(crate) pods: BTreeMap<ObjectKey, Arc<PodInfo>>,
    pub(crate) used: Amounts,
    pub(crate) estimated: [i64; 2],
    ports: HashMap<(String, i32), Vec<HostPort>>,
}

impl NodeInfo {
    pub(crate) fn read(node: &Node) -> NodeInfo {
        let (no_spec, no_status) = (NodeSpec::default(), NodeStatus::default());
        let spec = node.spec.as_ref().unwrap_or(&no_spec);
        let status = node.status.as_ref().unwrap_or(&no_status);
        let allocatable = status.allocatable.as_ref();
        let pods_max = allocatable.and_then(|list| list.get(PODS));
        let images = status.images.iter().flatten().flat_map(|image| {
            let size = image.size_bytes.unwrap_or_default();
            image.names.iter().flatten().map(move |name| (name.clone(), size))
        });
        NodeInfo {
            labels: node.metadata.labels.clone().unwrap_or_default(),
            taints: spec.taints.clone().unwrap_or_default(),
            unschedulable: spec.unschedulable.unwrap_or_default(),
            allocatable: Amounts::of(allocatable),
            pods_max: pods_max.map_or(0, |quantity| amount(PODS, quantity)),
            images: images.collect(),
        }
    }

    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key).map(String::as_str)
    }
}

impl NodeState {
    pub(crate) fn new(name: &str) -> NodeState {
        NodeState {
            name: name.into(),
            info: None,
            pods: BTreeMap::new(),
            used: Amounts::default(),
            estimated: [0; 2],
            ports: HashMap::new(),
        }
    }

    pub(crate) fn add(&mut self, pod: Arc<PodInfo>) {
        self.remove(&pod.key);
        self.used.add(&pod.requests);
        for (sum, more) in self.estimated.iter_mut().zip(pod.estimated) {
            *sum += more;
        }
        for port in &pod.ports {
            let key = (port.protocol.clone(), port.port);
            self.ports.entry(key).or_default().push(port.clone());
        }
        self.pods.insert(pod.key.clone(), pod);
    }

    pub(crate) fn remove(&mut self, key: &ObjectKey) -> Option<Arc<PodInfo>> {
        let pod = self.pods.remove(key)?;
        self.used.subtract(&pod.requests);
        for (sum, less) in self.estimated.iter_mut().zip(pod.estimated) {
            *sum -= less;
        }
        for port in &pod.ports {
            let key = (port.protocol.clone(), port.port);
            if let Some(taken) = self.ports.get_mut(&key) {
                if let Some(at) = taken.iter().position(|other| other == port) {
                    taken.swap_remove(at);
                }
                if taken.is_empty() {
                    self.ports.remove(&key);
                }
            }
        }
        Some(pod)
    }

    pub(crate) fn is_port_taken(&self, port: &HostPort) -> bool {
        let taken = self.ports.get(&(port.protocol.clone(), port.port));
        taken.is_some_and(|taken| taken.iter().any(|other| other.conflicts_with(port)))
    }

    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        self.info.as_ref()?.label(key)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::pod::tests::{asking, pod};
    use proptest::prelude::*;
    use serde_json::{Value, json};

    /// A node with room for 4 CPUs, 8 GiB and 110 pods; `more` is merged into it.
    pub(crate) fn node(name: &str, more: Value) -> NodeState {
        let mut node = json!({
            "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name } },
            "spec": {},
            "status": { "allocatable": {
                "cpu": "4", "memory": "8Gi", "ephemeral-storage": "10Gi", "pods": "110",
            } },
        });
        merge(&mut node, more);
        let mut state = NodeState::new(name);
        state.info = Some(Arc::new(NodeInfo::read(&typed::from_value(node).unwrap())));
        state
    }

    pub(crate) fn merge(into: &mut Value, more: Value) {
        match (into, more) {
            (Value::Object(into), Value::Object(more)) => {
                for (key, value) in more {
                    merge(into.entry(key).or_insert(Value::Null), value);
                }
            }
            (into, more) => *into = more,
        }
    }

    proptest! {
        /// After any sequence of changes, the sums equal those of the present pods (N-188).
        #[test]
        fn n_188_sums_equal_a_recount(steps in prop::collection::vec((0u8..6, 1u8..5, any::<bool>()), 0..40)) {
            let mut state = node("n", json!({}));
            for (name, cpu, add) in steps {
                let port = json!([{ "name": "c", "ports": [{ "containerPort": 1, "hostPort": cpu }],
                    "resources": { "requests": { "cpu": cpu, "example.com/x": cpu } } }]);
                let info = pod(&format!("p{name}"), json!({ "containers": port }));
                match add {
                    true => state.add(Arc::new(info)),
                    false => drop(state.remove(&info.key)),
                }
            }
            let mut fresh = node("n", json!({}));
            for pod in state.pods.values() {
                fresh.add(pod.clone());
            }
            prop_assert_eq!(&state.used, &fresh.used);
            prop_assert_eq!(state.estimated, fresh.estimated);
            prop_assert_eq!(state.ports.len(), fresh.ports.len());
        }
    }

    #[test]
    fn a_pod_that_is_added_twice_counts_once() {
        let mut state = node("n", json!({}));
        state.add(Arc::new(asking("p", "1", "1Gi")));
        state.add(Arc::new(asking("p", "2", "1Gi")));
        assert_eq!((state.used.cpu, state.pods.len()), (2000, 1));
    }
}
