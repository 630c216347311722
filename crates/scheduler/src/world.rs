//! Nodes, the pods on them, and the pods that will be: all that decisions are made from.
//!
//! Everything here is kept as pods and nodes come and go; nothing is counted anew per decision.

use crate::census::{Census, Counts, Question};
use crate::neighbourhood::{Group, Groups, NamespaceLabels};
use crate::node::{NodeState, Offer};
use crate::places::{self, Places, place};
use crate::pod::PodInfo;
use crate::volumes::Volumes;
use client::ObjectKey;
use k8s_openapi::api::core::v1::Node;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

#[derive(Debug, Default)]
pub(crate) struct World {
    nodes: BTreeMap<Arc<str>, NodeState>,
    /// How many of `nodes` are really there.
    there: usize,
    /// Pods on nodes, as observed or as assumed.
    placed: BTreeMap<ObjectKey, Placed>,
    /// Which of them have a label.
    labelled: Places<ObjectKey>,
    /// Pods that wait for room on a node that was made for them.
    nominated: BTreeMap<Arc<str>, BTreeMap<ObjectKey, Arc<PodInfo>>>,
    /// And on which.
    nominated_to: HashMap<ObjectKey, Arc<str>>,
    census: RefCell<Census>,
    groups: Groups,
    users: HashMap<ObjectKey, usize>,
    images: HashMap<String, usize>,
    pub(crate) namespaces: NamespaceLabels,
    pub(crate) volumes: Volumes,
    pub(crate) workloads: crate::workloads::Workloads,
    pub(crate) budgets: crate::preempt::Budgets,
}

#[derive(Debug)]
struct Placed {
    pod: Arc<PodInfo>,
    /// Decided here, and not yet seen to be so.
    assumed: bool,
}

/// What became of a Node.
#[derive(Debug, PartialEq)]
pub(crate) enum NodeChange {
    Nothing,
    /// It came, or offers something else than before.
    Other,
}

/// Nodes.
impl World {
    /// Those that there are, by name.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &NodeState> {
        self.nodes.values().filter(|node| node.offer.is_some())
    }

    pub(crate) fn node_count(&self) -> usize {
        self.there
    }

    pub(crate) fn node(&self, name: &str) -> Option<&NodeState> {
        self.nodes.get(name).filter(|node| node.offer.is_some())
    }

    pub(crate) fn put_node(&mut self, name: &str, node: &Node) -> NodeChange {
        let offer = Offer::read(node);
        let state = self.nodes.entry(name.into()).or_insert_with(|| NodeState::new(name));
        let before = state.offer.clone();
        if before.as_deref() == Some(&offer) {
            return NodeChange::Nothing;
        }
        state.offer = Some(Arc::new(offer.clone()));
        self.there += usize::from(before.is_none());
        let same_but_images = before.as_deref().is_some_and(|before| {
            Offer { images: HashMap::new(), ..before.clone() }
                == Offer { images: HashMap::new(), ..offer.clone() }
        });
        self.count_images(before.as_deref(), Some(&offer));
        if same_but_images { NodeChange::Nothing } else { NodeChange::Other }
    }

    pub(crate) fn remove_node(&mut self, name: &str) {
        let Some(state) = self.nodes.get_mut(name) else {
            return;
        };
        let before = state.offer.take();
        if state.pods.is_empty() {
            self.nodes.remove(name);
        }
        self.there -= usize::from(before.is_some());
        self.count_images(before.as_deref(), None);
    }

    fn count_images(&mut self, before: Option<&Offer>, after: Option<&Offer>) {
        for image in after.into_iter().flat_map(|offer| offer.images.keys()) {
            *self.images.entry(image.clone()).or_default() += 1;
        }
        for image in before.into_iter().flat_map(|offer| offer.images.keys()) {
            if let Some(count) = self.images.get_mut(image) {
                *count -= 1;
                if *count == 0 {
                    self.images.remove(image);
                }
            }
        }
    }

    /// How many nodes have an image.
    pub(crate) fn nodes_with_image(&self, image: &str) -> usize {
        self.images.get(image).copied().unwrap_or_default()
    }
}

/// Pods.
impl World {
    pub(crate) fn placed(&self, key: &ObjectKey) -> Option<&Arc<PodInfo>> {
        self.placed.get(key).map(|placed| &placed.pod)
    }

    pub(crate) fn is_assumed(&self, key: &ObjectKey) -> bool {
        self.placed.get(key).is_some_and(|placed| placed.assumed)
    }

    /// A pod that is on a node, as observed.
    pub(crate) fn put_pod(&mut self, pod: PodInfo) {
        let pod = Arc::new(pod);
        if !self.refresh(&pod) {
            self.place(pod, false);
        }
    }

    /// If nothing has changed that anything is counted by, there is nothing to count: a node reports often.
    fn refresh(&mut self, pod: &Arc<PodInfo>) -> bool {
        let Some(placed) = self.placed.get_mut(&pod.key).filter(|it| it.pod.counts_as(pod)) else {
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

    /// A pod that will be on a node, as decided.
    pub(crate) fn assume(&mut self, pod: &PodInfo, node: &Arc<str>) {
        self.place(Arc::new(pod.on(node)), true);
    }

    fn place(&mut self, pod: Arc<PodInfo>, assumed: bool) {
        self.remove_pod(&pod.key);
        self.withdraw(&pod.key);
        let Some(name) = pod.node.clone() else {
            return;
        };
        let state = self.nodes.entry(name.clone()).or_insert_with(|| NodeState::new(&name));
        state.add(pod.clone());
        self.census.get_mut().came(&pod);
        self.groups.came(&pod);
        for claim in &pod.claims {
            *self.users.entry(ObjectKey::new(pod.namespace(), claim)).or_default() += 1;
        }
        places::labelled(&pod).for_each(|place| self.labelled.put(place, pod.key.clone()));
        self.placed.insert(pod.key.clone(), Placed { pod, assumed });
    }

    /// What was there, if it was there.
    pub(crate) fn remove_pod(&mut self, key: &ObjectKey) -> Option<Arc<PodInfo>> {
        let Placed { pod, .. } = self.placed.remove(key)?;
        places::labelled(&pod).for_each(|place| self.labelled.take(&place, key));
        let name = pod.node.clone()?;
        if let Some(state) = self.nodes.get_mut(&name) {
            state.remove(key);
            if state.pods.is_empty() && state.offer.is_none() {
                self.nodes.remove(&name);
            }
        }
        self.census.get_mut().went(&pod);
        self.groups.went(&pod);
        for claim in &pod.claims {
            let claim = ObjectKey::new(pod.namespace(), claim);
            if let Some(count) = self.users.get_mut(&claim) {
                *count -= 1;
                if *count == 0 {
                    self.users.remove(&claim);
                }
            }
        }
        Some(pod)
    }

    pub(crate) fn counts(&self, question: &Question) -> Arc<Counts> {
        let pods = || -> Box<dyn Iterator<Item = &Arc<PodInfo>>> {
            match question.within() {
                None => Box::new(self.placed.values().map(|placed| &placed.pod)),
                Some(some) => Box::new(
                    some.into_iter().flat_map(|name| self.placed_in(name, question.label())),
                ),
            }
        };
        self.census.borrow_mut().ask(question, pods)
    }

    fn placed_in<'a>(
        &'a self,
        namespace: String,
        label: Option<(&str, &str)>,
    ) -> Box<dyn Iterator<Item = &'a Arc<PodInfo>> + 'a> {
        if label.is_some() {
            let there = self.labelled.at(&place(Some(&namespace), label));
            return Box::new(there.filter_map(|key| self.placed(key)));
        }
        // No name is shorter than the empty one, so this is where the namespace begins.
        let run = self.placed.range(ObjectKey::new(&namespace, "")..);
        let run = run.take_while(move |(key, _)| key.namespace() == namespace);
        Box::new(run.map(|(_, placed)| &placed.pod))
    }

    pub(crate) fn groups(&self) -> impl Iterator<Item = &Group> {
        self.groups.all()
    }

    pub(crate) fn has_groups(&self) -> bool {
        !self.groups.is_empty()
    }

    pub(crate) fn users(&self, claim: &ObjectKey) -> usize {
        self.users.get(claim).copied().unwrap_or_default()
    }
}

/// Nominations (N-200).
impl World {
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

    /// Those that were promised room on a node, and are not `besides`.
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

    /// These nodes, with these pods on them.
    pub(crate) fn world(
        nodes: impl IntoIterator<Item = NodeState>,
        pods: impl IntoIterator<Item = PodInfo>,
    ) -> World {
        let mut world = World::default();
        for node in nodes {
            world.there += 1;
            world.count_images(None, node.offer.as_deref());
            world.nodes.insert(node.name.clone(), node);
        }
        pods.into_iter().for_each(|pod| world.put_pod(pod));
        world
    }

    #[test]
    fn n_188_an_assumed_pod_counts_until_it_is_seen_or_gone() {
        let mut world = world([node("n", json!({}))], []);
        let pod = asking("p", "1", "1Gi");
        world.assume(&pod, &"n".into());
        assert_eq!(world.node("n").unwrap().used.cpu, 1000);
        assert!(world.is_assumed(&pod.key));
        world.put_pod(pod.on(&"n".into()));
        assert_eq!(world.node("n").unwrap().used.cpu, 1000);
        assert!(!world.is_assumed(&pod.key));
        world.remove_pod(&pod.key);
        assert_eq!(world.node("n").unwrap().used.cpu, 0);
    }

    #[test]
    fn what_a_node_reports_of_a_pod_is_known_and_counted_once() {
        let mut world = world([node("n", json!({}))], []);
        let pod = asking("p", "1", "1Gi").on(&"n".into());
        world.put_pod(pod.clone());
        let mut told = pod.clone();
        Arc::make_mut(&mut told.pod).status =
            serde_json::from_value(json!({ "startTime": "2026-01-01T00:00:00Z" })).unwrap();
        assert!(pod.counts_as(&told));
        world.put_pod(told);
        let there = &world.node("n").unwrap().pods[&pod.key];
        assert!(there.started().is_some() && world.placed(&pod.key).unwrap().started().is_some());
        assert_eq!(world.node("n").unwrap().used.cpu, 1000);
        let mut relabelled = pod.clone();
        Arc::make_mut(&mut relabelled.pod).metadata.labels =
            Some([("a".into(), "b".into())].into());
        let others = [asking("p", "2", "1Gi").on(&"n".into()), pod.on(&"m".into()), relabelled];
        assert!(others.iter().all(|other| !pod.counts_as(other)));
        world.put_pod(others[0].clone());
        assert_eq!(world.node("n").unwrap().used.cpu, 2000);
    }

    /// A question is answered from the pods that have the label it asks for, wherever they came from.
    #[test]
    fn pods_are_found_by_the_labels_they_have_now() {
        let labelled = |name: &str, app: &str| {
            crate::pod::tests::pod_with(name, json!({ "app": app }), json!({ "nodeName": "n" }))
        };
        let mut world = world([node("n", json!({}))], [labelled("p", "a"), labelled("q", "b")]);
        // Each time another question, so that each is counted.
        let count = |world: &World, app: &str, staying: bool| {
            let selector = json!({ "matchLabels": { "app": app } });
            let selector = api::selector::LabelSelector::from_object(&selector).unwrap();
            let all = vec![(Some(["default".to_owned()].into()), selector)];
            let counts = world.counts(&Question { all, staying });
            counts.get("n").copied().unwrap_or_default()
        };
        assert_eq!((count(&world, "a", false), count(&world, "b", false)), (1, 1));
        world.put_pod(labelled("p", "b"));
        assert_eq!((count(&world, "a", true), count(&world, "b", true)), (0, 2));
        world.remove_pod(&ObjectKey::new("default", "p"));
        world.remove_pod(&ObjectKey::new("default", "q"));
        assert_eq!(world.labelled.count(), 0);
    }

    #[test]
    fn n_200_a_nomination_is_for_one_node_and_can_be_withdrawn() {
        let mut world = world([node("n", json!({})), node("m", json!({}))], []);
        let (pod, other) = (Arc::new(asking("p", "1", "1Gi")), asking("q", "1", "1Gi"));
        world.nominate(&pod, "n");
        world.nominate(&pod, "m");
        assert_eq!(world.nominated_to(&pod.key).map(|node| &**node), Some("m"));
        assert_eq!(["n", "m"].map(|node| world.nominated(node, &other).count()), [0, 1]);
        world.withdraw(&pod.key);
        assert_eq!(world.nominated_to(&pod.key), None);
        assert_eq!(world.nominated("m", &other).count(), 0);
    }

    #[test]
    fn a_node_that_is_not_there_takes_no_pods_and_is_not_counted() {
        let mut world = world([], [pod("p", json!({ "nodeName": "ghost" }))]);
        assert_eq!((world.node_count(), world.nodes().count()), (0, 0));
        world.remove_pod(&ObjectKey::new("default", "p"));
        assert!(world.nodes.is_empty());
    }

    #[test]
    fn a_heartbeat_is_no_change() {
        let mut world = World::default();
        let mut node: Node = typed::from_value(json!({
            "metadata": { "name": "n" }, "status": { "allocatable": { "cpu": "1" } },
        }))
        .unwrap();
        assert_eq!(world.put_node("n", &node), NodeChange::Other);
        node.metadata.resource_version = Some("2".into());
        assert_eq!(world.put_node("n", &node), NodeChange::Nothing);
        node.spec.get_or_insert_default().unschedulable = Some(true);
        assert_eq!(world.put_node("n", &node), NodeChange::Other);
        world.remove_node("n");
        assert_eq!(world.node_count(), 0);
    }
}
