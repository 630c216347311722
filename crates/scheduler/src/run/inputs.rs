//! Watches objects, and applies their changes to the cluster state and the queue.

use super::queueing_hints::{Event, HintEvaluator};
use super::{NAME, Scheduler};
use crate::affinity_terms::selector;
use crate::cluster_state::NodeChange;
use crate::pod::{PodInfo, is_gated};
use crate::preempt::Budget;
use api::selector::LabelSelector;
use client::{Cache, Client, Object, ObjectKey, Queue};
use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{
    Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, ReplicationController, Service,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::{CSINode, StorageClass};
use lifecycle::status::is_terminal_pod;
use std::sync::Arc;
use tokio::time::Instant;

/// The key of an object that was added, changed or deleted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Input {
    Pod(ObjectKey),
    Node(ObjectKey),
    Namespace(ObjectKey),
    Claim(ObjectKey),
    Volume(ObjectKey),
    Class(ObjectKey),
    Attachments(ObjectKey),
    Budget(ObjectKey),
    Service(ObjectKey),
    ReplicaSet(ObjectKey),
    StatefulSet(ObjectKey),
    Controller(ObjectKey),
}

/// All watched objects, and one queue of changes.
pub(super) struct Caches {
    pub(super) inputs: Queue<Input>,
    pods: Cache<Pod>,
    nodes: Cache<Node>,
    namespaces: Cache<Namespace>,
    pub(super) claims: Cache<PersistentVolumeClaim>,
    volumes: Cache<PersistentVolume>,
    classes: Cache<StorageClass>,
    attachments: Cache<CSINode>,
    budgets: Cache<PodDisruptionBudget>,
    services: Cache<Service>,
    replica_sets: Cache<ReplicaSet>,
    stateful_sets: Cache<StatefulSet>,
    controllers: Cache<ReplicationController>,
}

impl Caches {
    pub(super) fn start(client: &Client) -> Caches {
        let inputs = Queue::new();
        Caches {
            pods: watch(client, &inputs, Input::Pod),
            nodes: watch(client, &inputs, Input::Node),
            namespaces: watch(client, &inputs, Input::Namespace),
            claims: watch(client, &inputs, Input::Claim),
            volumes: watch(client, &inputs, Input::Volume),
            classes: watch(client, &inputs, Input::Class),
            attachments: watch(client, &inputs, Input::Attachments),
            budgets: watch(client, &inputs, Input::Budget),
            services: watch(client, &inputs, Input::Service),
            replica_sets: watch(client, &inputs, Input::ReplicaSet),
            stateful_sets: watch(client, &inputs, Input::StatefulSet),
            controllers: watch(client, &inputs, Input::Controller),
            inputs,
        }
    }

    /// Waits for all caches. No decision is made before that.
    pub(super) async fn synced(&self) {
        self.pods.synced().await;
        self.nodes.synced().await;
        self.namespaces.synced().await;
        self.claims.synced().await;
        self.volumes.synced().await;
        self.classes.synced().await;
        self.attachments.synced().await;
        self.budgets.synced().await;
        self.services.synced().await;
        self.replica_sets.synced().await;
        self.stateful_sets.synced().await;
        self.controllers.synced().await;
    }
}

fn watch<K: Object<DynamicType = ()>>(
    client: &Client,
    inputs: &Queue<Input>,
    input: fn(ObjectKey) -> Input,
) -> Cache<K> {
    let cache = Cache::start(client);
    cache.feed(inputs, move |object| vec![input(ObjectKey::of(object))]);
    cache
}

impl Scheduler {
    pub(super) fn apply_change(&mut self, input: &Input) {
        let cluster = &mut self.cluster;
        match input {
            Input::Pod(key) => self.apply_pod(key),
            Input::Node(key) => self.apply_node(key.name()),
            Input::Namespace(key) => {
                match self.caches.namespaces.get(key) {
                    Some(namespace) => {
                        let labels = namespace.metadata.labels.clone().unwrap_or_default();
                        cluster.namespaces.insert(key.name().into(), labels);
                    }
                    None => drop(cluster.namespaces.remove(key.name())),
                }
                self.requeue_waiting(Event::PodPlaced);
            }
            Input::Claim(key) => {
                put(&mut cluster.volumes.claims, key.clone(), self.caches.claims.get(key));
                self.requeue_waiting(Event::VolumesChanged);
            }
            Input::Volume(key) => {
                match self.caches.volumes.get(key) {
                    Some(volume) => drop(cluster.volumes.volumes.insert(key.name().into(), volume)),
                    None => drop(cluster.volumes.volumes.remove(key.name())),
                }
                self.requeue_waiting(Event::VolumesChanged);
            }
            Input::Class(key) => {
                put(&mut cluster.volumes.classes, key.name().into(), self.caches.classes.get(key));
                self.requeue_waiting(Event::VolumesChanged);
            }
            Input::Attachments(key) => {
                let attachments = &mut cluster.volumes.attachments;
                put(attachments, key.name().into(), self.caches.attachments.get(key));
                self.requeue_waiting(Event::VolumesChanged);
            }
            Input::Budget(key) => {
                let budget = self.caches.budgets.get(key);
                cluster.budgets.put(key, budget.as_deref().map(Budget::read));
            }
            Input::Service(_)
            | Input::ReplicaSet(_)
            | Input::StatefulSet(_)
            | Input::Controller(_) => self.apply_workload(input),
        }
    }

    fn apply_workload(&mut self, input: &Input) {
        let workloads = &mut self.cluster.workloads;
        match input {
            Input::Service(key) => {
                let service = self.caches.services.get(key);
                let labels = service.and_then(|service| service.spec.clone()?.selector);
                let selector =
                    labels.map(|labels| LabelSelector::from_labels(&serde_json::json!(labels)));
                workloads.put_service(key, selector);
            }
            Input::ReplicaSet(key) => {
                let set = self.caches.replica_sets.get(key);
                let wanted = set.and_then(|set| Some(set.spec.clone()?.selector));
                workloads.put_owner("ReplicaSet", key, wanted.map(|w| selector(Some(&w))));
            }
            Input::StatefulSet(key) => {
                let set = self.caches.stateful_sets.get(key);
                let wanted = set.and_then(|set| Some(set.spec.clone()?.selector));
                workloads.put_owner("StatefulSet", key, wanted.map(|w| selector(Some(&w))));
            }
            Input::Controller(key) => {
                let controller = self.caches.controllers.get(key);
                let labels = controller.and_then(|controller| controller.spec.clone()?.selector);
                let selector =
                    labels.map(|labels| LabelSelector::from_labels(&serde_json::json!(labels)));
                workloads.put_owner("ReplicationController", key, selector);
            }
            _ => (),
        }
    }

    fn apply_node(&mut self, name: &str) {
        match self.caches.nodes.get(&ObjectKey::cluster(name)) {
            Some(node) => {
                if self.cluster.put_node(name, &node) == NodeChange::Relevant {
                    self.requeue_waiting(Event::NodeChanged(name));
                }
            }
            None => self.cluster.remove_node(name),
        }
    }

    fn apply_pod(&mut self, key: &ObjectKey) {
        let pod = self.caches.pods.get(key);
        let known = self.cluster.placed(key).cloned();
        let uid = pod.as_ref().and_then(|pod| pod.metadata.uid.clone()).unwrap_or_default();
        if known.as_ref().is_some_and(|known| known.uid != uid) {
            self.remove_placed(key);
        }
        if self.queue.get(key).is_some_and(|queued| queued.uid != uid) {
            self.queue.remove(key);
            self.cluster.withdraw(key);
        }
        if self.skipped.get(key).is_some_and(|skipped| *skipped != uid) {
            self.skipped.remove(key);
        }
        let Some(pod) = pod else {
            return;
        };
        let info = PodInfo::read(pod);
        if is_terminal_pod(&info.pod) {
            self.queue.remove(key);
            self.cluster.withdraw(key);
            self.remove_placed(key);
        } else if info.node.is_some() {
            self.queue.remove(key);
            self.apply_placed(info);
        } else if is_ours(&info.pod) {
            self.apply_unplaced(info);
        }
    }

    /// Removes a pod from its node.
    fn remove_placed(&mut self, key: &ObjectKey) {
        if let Some(node) = self.cluster.remove_pod(key).and_then(|pod| pod.node.clone()) {
            self.requeue_waiting(Event::ResourcesFreed(&node));
        }
    }

    fn apply_placed(&mut self, info: PodInfo) {
        let before = self.cluster.placed(&info.key).cloned();
        let node = info.node.clone();
        let labels = |pod: &PodInfo| pod.pod.metadata.labels.clone();
        let relabelled = before.as_ref().is_none_or(|before| labels(before) != labels(&info));
        let was_assumed = self.cluster.is_assumed(&info.key);
        let deletion_changed =
            before.as_ref().is_some_and(|before| before.is_terminating() != info.is_terminating());
        let moved = before.as_ref().is_some_and(|before| before.node != node);
        let shrunk = before.as_ref().is_some_and(|before| before.requests != info.requests);
        if moved {
            self.remove_placed(&info.key);
        }
        self.cluster.put_pod(info);
        match node.filter(|_| shrunk) {
            Some(node) => self.requeue_waiting(Event::ResourcesFreed(&node)),
            None if relabelled || was_assumed || deletion_changed => {
                self.requeue_waiting(Event::PodPlaced)
            }
            None => (),
        }
    }

    fn apply_unplaced(&mut self, info: PodInfo) {
        let key = &info.key.clone();
        if is_gated(&info.pod) {
            self.queue.remove(key);
            return;
        }
        if self.cluster.is_assumed(key) || self.skipped.contains_key(key) {
            return;
        }
        let info = Arc::new(info);
        let mut changed = false;
        if let Some(before) = self.queue.get(key) {
            let labels = |pod: &PodInfo| pod.pod.metadata.labels.clone();
            changed = before.pod.spec != info.pod.spec
                || labels(before) != labels(&info)
                || before.requests != info.requests
                || before.is_terminating() != info.is_terminating();
        } else if let Some(node) = info.nominated_node() {
            // An earlier scheduler process preempted pods for it.
            self.cluster.nominate(&info, node);
        }
        if info.is_terminating() {
            self.cluster.withdraw(key);
        }
        if self.queue.get(&info.key).is_none() {
            self.metrics.queued("active", "PodAdd");
        }
        self.queue.put(info, changed, Instant::now());
    }

    /// Requeues waiting pods that the event may make schedulable.
    fn requeue_waiting(&mut self, event: Event) {
        if event.is_relevant(&self.queue) {
            let mut evaluator = HintEvaluator::new(event, &self.cluster);
            self.queue.requeue(Instant::now(), |pod, by| evaluator.hint(pod, by));
        }
    }
}

/// Whether this scheduler is responsible for the pod (N-183).
fn is_ours(pod: &Pod) -> bool {
    let name = pod.spec.as_ref().and_then(|spec| spec.scheduler_name.as_deref());
    name.is_none_or(|name| name.is_empty() || name == NAME)
}

fn put<K: std::hash::Hash + Eq, V>(
    map: &mut std::collections::HashMap<K, V>,
    key: K,
    value: Option<V>,
) {
    match value {
        Some(value) => drop(map.insert(key, value)),
        None => drop(map.remove(&key)),
    }
}
