//! The state of the cluster that decisions are based on: nodes, the pods on them, and assumed and nominated pods.
//!
//! Everything is updated with each change of a pod or node; nothing is recounted per decision.

use crate::affinity_terms::{NamespaceLabels, TermGroup, TermGroups};
use crate::node::{NodeInfo, NodeState};
use crate::pod::PodInfo;
use crate::pod_counts::{CountsByNode, PodCounts, PodQuery};
use crate::selector_index::{self, SelectorIndex, index_key};
use crate::volumes::Volumes;
use client::ObjectKey;
use k8s_openapi::api::core::v1::Node;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

#[derive(Debug, Default)]
pub(crate) struct ClusterState {
    nodes: BTreeMap<Arc<str>, NodeState>,
    /// How many of `nodes` exist as Node objects.
    existing: usize,
    /// Pods on nodes, observed or assumed.
    placed: BTreeMap<ObjectKey, Placed>,
    /// The same pods by label.
    labelled: SelectorIndex<ObjectKey>,
    /// Nominated pods by node: they wait until preempted pods have left it.
    nominated: BTreeMap<Arc<str>, BTreeMap<ObjectKey, Arc<PodInfo>>>,
    /// The node of each nominated pod.
    nominated_to: HashMap<ObjectKey, Arc<str>>,
    pod_counts: RefCell<PodCounts>,
    groups: TermGroups,
    claim_users: HashMap<ObjectKey, usize>,
    images: HashMap<String, usize>,
    pub(crate) namespaces: NamespaceLabels,
    pub(crate) volumes: Volumes,
    pub(crate) workloads: crate::workloads::Workloads,
    pub(crate) budgets: crate::preempt::Budgets,
}

#[derive(Debug)]
struct Placed {
    pod: Arc<PodInfo>,
    /// Decided by this scheduler, but not observed yet.
    assumed: bool,
}

/// Whether an update of a Node matters.
#[derive(Debug, PartialEq)]
pub(crate) enum NodeChange {
    Irrelevant,
    /// The node is new, or its labels, taints or capacity changed.
    Relevant,
}

/// Nodes.
impl ClusterState {
    /// All existing nodes, sorted by name.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &NodeState> {
        self.nodes.values().filter(|node| node.info.is_some())
    }

    pub(crate) fn node_count(&self) -> usize {
        self.existing
    }

    pub(crate) fn node(&self, name: &str) -> Option<&NodeState> {
        self.nodes.get(name).filter(|node| node.info.is_some())
    }

    pub(crate) fn put_node(&mut self, name: &str, node: &Node) -> NodeChange {
        let info = NodeInfo::read(node);
        let state = self.nodes.entry(name.into()).or_insert_with(|| NodeState::new(name));
        let before = state.info.clone();
        if before.as_deref() == Some(&info) {
            return NodeChange::Irrelevant;
        }
        state.info = Some(Arc::new(info.clone()));
        self.existing += usize::from(before.is_none());
        let same_but_images = before.as_deref().is_some_and(|before| {
            NodeInfo { images: HashMap::new(), ..before.clone() }
                == NodeInfo { images: HashMap::new(), ..info.clone() }
        });
        self.count_images(before.as_deref(), Some(&info));
        if same_but_images { NodeChange::Irrelevant } else { NodeChange::Relevant }
    }

    pub(crate) fn remove_node(&mut self, name: &str) {
        let Some(state) = self.nodes.get_mut(name) else {
            return;
        };
        let before = state.info.take();
        if state.pods.is_empty() {
            self.nodes.remove(name);
        }
        self.existing -= usize::from(before.is_some());
        self.count_images(before.as_deref(), None);
    }

    fn count_images(&mut self, before: Option<&NodeInfo>, after: Option<&NodeInfo>) {
        for image in after.into_iter().flat_map(|info| info.images.keys()) {
            *self.images.entry(image.clone()).or_default() += 1;
        }
        for image in before.into_iter().flat_map(|info| info.images.keys()) {
            if let Some(count) = self.images.get_mut(image) {
                *count -= 1;
                if *count == 0 {
                    self.images.remove(image);
                }
            }
        }
    }

    /// The number of nodes that have an image.
    pub(crate) fn nodes_with_image(&self, image: &str) -> usize {
        self.images.get(image).copied().unwrap_or_default()
    }
}

/// Pods.
impl ClusterState {
    pub(crate) fn placed(&self, key: &ObjectKey) -> Option<&Arc<PodInfo>> {
        self.placed.get(key).map(|placed| &placed.pod)
    }

    pub(crate) fn is_assumed(&self, key: &ObjectKey) -> bool {
        self.placed.get(key).is_some_and(|placed| placed.assumed)
    }

    /// Adds or updates an observed pod on a node.
    pub(crate) fn put_pod(&mut self, pod: PodInfo) {
        let pod = Arc::new(pod);
        if !self.refresh(&pod) {
            self.index_key(pod, false);
        }
    }

    /// Replaces a pod without recounting if nothing relevant has changed. Nodes update the status of pods often.
    fn refresh(&mut self, pod: &Arc<PodInfo>) -> bool {
        let Some(placed) = self.placed.get_mut(&pod.key).filter(|it| it.pod.is_equivalent_to(pod))
        else {
            return false;
        };
        *placed = Placed { pod: pod.clone(), assumed: false };
        let state = pod.node.as_ref().and_then(|node| self.nodes.get_mut(node));
        let there = state.and_then(|state| state.pods.get_mut(&pod.key));
        if let Some(there) = there {
            *there = pod.clone();
        }
        true
    }

    /// Adds a pod that will be on a node, as decided.
    pub(crate) fn assume(&mut self, pod: &PodInfo, node: &Arc<str>) {
        self.index_key(Arc::new(pod.on(node)), true);
    }

    fn index_key(&mut self, pod: Arc<PodInfo>, assumed: bool) {
        self.remove_pod(&pod.key);
        self.withdraw(&pod.key);
        let Some(name) = pod.node.clone() else {
            return;
        };
        let state = self.nodes.entry(name.clone()).or_insert_with(|| NodeState::new(&name));
        state.add(pod.clone());
        self.pod_counts.get_mut().add(&pod);
        self.groups.add(&pod);
        for claim in &pod.claims {
            *self.claim_users.entry(ObjectKey::new(pod.namespace(), claim)).or_default() += 1;
        }
        selector_index::label_keys(&pod)
            .for_each(|label| self.labelled.insert(label, pod.key.clone()));
        self.placed.insert(pod.key.clone(), Placed { pod, assumed });
    }

    /// Returns the removed pod.
    pub(crate) fn remove_pod(&mut self, key: &ObjectKey) -> Option<Arc<PodInfo>> {
        let Placed { pod, .. } = self.placed.remove(key)?;
        selector_index::label_keys(&pod).for_each(|label| self.labelled.remove(&label, key));
        let name = pod.node.clone()?;
        if let Some(state) = self.nodes.get_mut(&name) {
            state.remove(key);
            if state.pods.is_empty() && state.info.is_none() {
                self.nodes.remove(&name);
            }
        }
        self.pod_counts.get_mut().remove(&pod);
        self.groups.remove(&pod);
        for claim in &pod.claims {
            let claim = ObjectKey::new(pod.namespace(), claim);
            if let Some(count) = self.claim_users.get_mut(&claim) {
                *count -= 1;
                if *count == 0 {
                    self.claim_users.remove(&claim);
                }
            }
        }
        Some(pod)
    }

    pub(crate) fn counts(&self, query: &PodQuery) -> Arc<CountsByNode> {
        let pods = || -> Box<dyn Iterator<Item = &Arc<PodInfo>>> {
            match query.namespace_limit() {
                None => Box::new(self.placed.values().map(|placed| &placed.pod)),
                Some(some) => {
                    Box::new(some.into_iter().flat_map(|name| self.placed_in(name, query.label())))
                }
            }
        };
        self.pod_counts.borrow_mut().counts(query, pods)
    }

    fn placed_in<'a>(
        &'a self,
        namespace: String,
        label: Option<(&str, &str)>,
    ) -> Box<dyn Iterator<Item = &'a Arc<PodInfo>> + 'a> {
        if label.is_some() {
            let there = self.labelled.get(&index_key(Some(&namespace), label));
            return Box::new(there.filter_map(|key| self.placed(key)));
        }
        // The empty name sorts before all others, so the namespace begins here.
        let run = self.placed.range(ObjectKey::new(&namespace, "")..);
        let run = run.take_while(move |(key, _)| key.namespace() == namespace);
        Box::new(run.map(|(_, placed)| &placed.pod))
    }

    pub(crate) fn groups(&self) -> impl Iterator<Item = &TermGroup> {
        self.groups.all()
    }

    pub(crate) fn has_groups(&self) -> bool {
        !self.groups.is_empty()
    }

    pub(crate) fn claim_users(&self, claim: &ObjectKey) -> usize {
        self.claim_users.get(claim).copied().unwrap_or_default()
    }
}

/// Nominations (N-200).
impl ClusterState {
    pub(crate) fn nominate(&mut self, pod: &Arc<PodInfo>, node: &str) {
        self.withdraw(&pod.key);
        let there = self.nominated.entry(node.into()).or_default();
        there.insert(pod.key.clone(), Arc::new(pod.on(&node.into())));
        self.nominated_to.insert(pod.key.clone(), node.into());
    }

    pub(crate) fn withdraw(&mut self, key: &ObjectKey) {
        let Some(node) = self.nominated_to.remove(key) else { return };
        if let Some(pods) = self.nominated.get_mut(&node) {
            pods.remove(key);
            if pods.is_empty() {
                self.nominated.remove(&node);
            }
        }
    }

    pub(crate) fn nominated_to(&self, key: &ObjectKey) -> Option<&Arc<str>> {
        self.nominated_to.get(key)
    }

    /// The pods nominated for a node, without `besides`.
    pub(crate) fn nominated<'a>(
        &'a self,
        node: &str,
        besides: &'a PodInfo,
    ) -> impl Iterator<Item = &'a Arc<PodInfo>> {
        let there = self.nominated.get(node).into_iter().flat_map(BTreeMap::values);
        there.filter(|pod| pod.key != besides.key)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::node::tests::node;
    use crate::pod::tests::{asking, pod};
    use serde_json::json;

    /// A cluster with these nodes and pods.
    pub(crate) fn cluster(
        nodes: impl IntoIterator<Item = NodeState>,
        pods: impl IntoIterator<Item = PodInfo>,
    ) -> ClusterState {
        let mut cluster = ClusterState::default();
        for node in nodes {
            cluster.existing += 1;
            cluster.count_images(None, node.info.as_deref());
            cluster.nodes.insert(node.name.clone(), node);
        }
        pods.into_iter().for_each(|pod| cluster.put_pod(pod));
        cluster
    }

    #[test]
    fn n_188_an_assumed_pod_counts_until_it_is_observed_or_removed() {
        let mut cluster = cluster([node("n", json!({}))], []);
        let pod = asking("p", "1", "1Gi");
        cluster.assume(&pod, &"n".into());
        assert_eq!(cluster.node("n").unwrap().used.cpu, 1000);
        assert!(cluster.is_assumed(&pod.key));
        cluster.put_pod(pod.on(&"n".into()));
        assert_eq!(cluster.node("n").unwrap().used.cpu, 1000);
        assert!(!cluster.is_assumed(&pod.key));
        cluster.remove_pod(&pod.key);
        assert_eq!(cluster.node("n").unwrap().used.cpu, 0);
    }

    #[test]
    fn status_updates_of_a_pod_are_stored_but_not_recounted() {
        let mut cluster = cluster([node("n", json!({}))], []);
        let pod = asking("p", "1", "1Gi").on(&"n".into());
        cluster.put_pod(pod.clone());
        let mut updated = pod.clone();
        Arc::make_mut(&mut updated.pod).status =
            serde_json::from_value(json!({ "startTime": "2026-01-01T00:00:00Z" })).unwrap();
        assert!(pod.is_equivalent_to(&updated));
        cluster.put_pod(updated);
        let there = &cluster.node("n").unwrap().pods[&pod.key];
        assert!(there.started().is_some() && cluster.placed(&pod.key).unwrap().started().is_some());
        assert_eq!(cluster.node("n").unwrap().used.cpu, 1000);
        let mut relabelled = pod.clone();
        Arc::make_mut(&mut relabelled.pod).metadata.labels =
            Some([("a".into(), "b".into())].into());
        let others = [asking("p", "2", "1Gi").on(&"n".into()), pod.on(&"m".into()), relabelled];
        assert!(others.iter().all(|other| !pod.is_equivalent_to(other)));
        cluster.put_pod(others[0].clone());
        assert_eq!(cluster.node("n").unwrap().used.cpu, 2000);
    }

    /// Queries search only the pods that have the required label.
    #[test]
    fn pods_are_found_by_their_current_labels() {
        let labelled = |name: &str, app: &str| {
            crate::pod::tests::pod_with(name, json!({ "app": app }), json!({ "nodeName": "n" }))
        };
        let mut cluster = cluster([node("n", json!({}))], [labelled("p", "a"), labelled("q", "b")]);
        // Use different queries, so that none is answered from the cache.
        let count = |cluster: &ClusterState, app: &str, exclude_terminating: bool| {
            let selector = json!({ "matchLabels": { "app": app } });
            let selector = api::selector::LabelSelector::from_object(&selector).unwrap();
            let all = vec![(Some(["default".to_owned()].into()), selector)];
            let counts = cluster.counts(&PodQuery { all, exclude_terminating });
            counts.get("n").copied().unwrap_or_default()
        };
        assert_eq!((count(&cluster, "a", false), count(&cluster, "b", false)), (1, 1));
        cluster.put_pod(labelled("p", "b"));
        assert_eq!((count(&cluster, "a", true), count(&cluster, "b", true)), (0, 2));
        cluster.remove_pod(&ObjectKey::new("default", "p"));
        cluster.remove_pod(&ObjectKey::new("default", "q"));
        assert_eq!(cluster.labelled.count(), 0);
    }

    #[test]
    fn n_200_a_pod_is_nominated_for_one_node_until_withdrawn() {
        let mut cluster = cluster([node("n", json!({})), node("m", json!({}))], []);
        let (pod, other) = (Arc::new(asking("p", "1", "1Gi")), asking("q", "1", "1Gi"));
        cluster.nominate(&pod, "n");
        cluster.nominate(&pod, "m");
        assert_eq!(cluster.nominated_to(&pod.key).map(|node| &**node), Some("m"));
        assert_eq!(["n", "m"].map(|node| cluster.nominated(node, &other).count()), [0, 1]);
        cluster.withdraw(&pod.key);
        assert_eq!(cluster.nominated_to(&pod.key), None);
        assert_eq!(cluster.nominated("m", &other).count(), 0);
    }

    #[test]
    fn a_missing_node_is_not_counted_although_it_has_pods() {
        let mut cluster = cluster([], [pod("p", json!({ "nodeName": "ghost" }))]);
        assert_eq!((cluster.node_count(), cluster.nodes().count()), (0, 0));
        cluster.remove_pod(&ObjectKey::new("default", "p"));
        assert!(cluster.nodes.is_empty());
    }

    #[test]
    fn heartbeats_are_irrelevant() {
        let mut cluster = ClusterState::default();
        let mut node: Node = typed::from_value(json!({
            "metadata": { "name": "n" }, "status": { "allocatable": { "cpu": "1" } },
        }))
        .unwrap();
        assert_eq!(cluster.put_node("n", &node), NodeChange::Relevant);
        node.metadata.resource_version = Some("2".into());
        assert_eq!(cluster.put_node("n", &node), NodeChange::Irrelevant);
        node.spec.get_or_insert_default().unschedulable = Some(true);
        assert_eq!(cluster.put_node("n", &node), NodeChange::Relevant);
        cluster.remove_node("n");
        assert_eq!(cluster.node_count(), 0);
    }
}
