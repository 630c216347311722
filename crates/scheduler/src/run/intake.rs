//! What is watched, and what a change means for the world and for those who wait.

use super::help::{Event, Helper};
use super::{NAME, Scheduler};
use crate::neighbourhood::selector;
use crate::pod::{PodInfo, is_gated, is_over};
use crate::preempt::Budget;
use crate::world::NodeChange;
use api::selector::LabelSelector;
use client::{Cache, Client, Object, ObjectKey, Queue};
use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{
    Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, ReplicationController, Service,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::{CSINode, StorageClass};
use std::sync::Arc;
use tokio::time::Instant;

/// Something came, changed or went.
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

/// Everything that is watched, and one queue of what changed.
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
            pods: follow(client, &inputs, Input::Pod),
            nodes: follow(client, &inputs, Input::Node),
            namespaces: follow(client, &inputs, Input::Namespace),
            claims: follow(client, &inputs, Input::Claim),
            volumes: follow(client, &inputs, Input::Volume),
            classes: follow(client, &inputs, Input::Class),
            attachments: follow(client, &inputs, Input::Attachments),
            budgets: follow(client, &inputs, Input::Budget),
            services: follow(client, &inputs, Input::Service),
            replica_sets: follow(client, &inputs, Input::ReplicaSet),
            stateful_sets: follow(client, &inputs, Input::StatefulSet),
            controllers: follow(client, &inputs, Input::Controller),
            inputs,
        }
    }

    /// Nothing is decided before everything is known.
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

fn follow<K: Object<DynamicType = ()>>(
    client: &Client,
    inputs: &Queue<Input>,
    input: fn(ObjectKey) -> Input,
) -> Cache<K> {
    let cache = Cache::start(client);
    cache.feed(inputs, move |object| vec![input(ObjectKey::of(object))]);
    cache
}

impl Scheduler {
    pub(super) fn take_in(&mut self, input: &Input) {
        let world = &mut self.world;
        match input {
            Input::Pod(key) => self.take_pod(key),
            Input::Node(key) => self.take_node(key.name()),
            Input::Namespace(key) => {
                match self.caches.namespaces.get(key) {
                    Some(namespace) => {
                        let labels = namespace.metadata.labels.clone().unwrap_or_default();
                        world.namespaces.insert(key.name().into(), labels);
                    }
                    None => drop(world.namespaces.remove(key.name())),
                }
                self.tell(Event::Neighbour);
            }
            Input::Claim(key) => {
                put(&mut world.volumes.claims, key.clone(), self.caches.claims.get(key));
                self.tell(Event::Volumes);
            }
            Input::Volume(key) => {
                match self.caches.volumes.get(key) {
                    Some(volume) => drop(world.volumes.volumes.insert(key.name().into(), volume)),
                    None => drop(world.volumes.volumes.remove(key.name())),
                }
                self.tell(Event::Volumes);
            }
            Input::Class(key) => {
                put(&mut world.volumes.classes, key.name().into(), self.caches.classes.get(key));
                self.tell(Event::Volumes);
            }
            Input::Attachments(key) => {
                let attachments = &mut world.volumes.attachments;
                put(attachments, key.name().into(), self.caches.attachments.get(key));
                self.tell(Event::Volumes);
            }
            Input::Budget(key) => {
                let budget = self.caches.budgets.get(key);
                world.budgets.put(key, budget.as_deref().map(Budget::read));
            }
            Input::Service(_)
            | Input::ReplicaSet(_)
            | Input::StatefulSet(_)
            | Input::Controller(_) => self.take_workload(input),
        }
    }

    fn take_workload(&mut self, input: &Input) {
        let workloads = &mut self.world.workloads;
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

    fn take_node(&mut self, name: &str) {
        match self.caches.nodes.get(&ObjectKey::cluster(name)) {
            Some(node) => {
                if self.world.put_node(name, &node) == NodeChange::Other {
                    self.tell(Event::Node(name));
                }
            }
            None => self.world.remove_node(name),
        }
    }

    fn take_pod(&mut self, key: &ObjectKey) {
        let pod = self.caches.pods.get(key);
        let known = self.world.placed(key).cloned();
        let uid = pod.as_ref().and_then(|pod| pod.metadata.uid.clone()).unwrap_or_default();
        if known.as_ref().is_some_and(|known| known.uid != uid) {
            self.leave(key);
        }
        if self.queue.get(key).is_some_and(|queued| queued.uid != uid) {
            self.queue.remove(key);
            self.world.withdraw(key);
        }
        if self.skipped.get(key).is_some_and(|skipped| *skipped != uid) {
            self.skipped.remove(key);
        }
        let Some(pod) = pod else {
            return;
        };
        let info = PodInfo::read(pod);
        if is_over(&info.pod) {
            self.queue.remove(key);
            self.world.withdraw(key);
            self.leave(key);
        } else if info.node.is_some() {
            self.queue.remove(key);
            self.take_placed(info);
        } else if is_ours(&info.pod) {
            self.take_unplaced(info);
        }
    }

    /// A pod that took room takes none any more.
    fn leave(&mut self, key: &ObjectKey) {
        if let Some(node) = self.world.remove_pod(key).and_then(|pod| pod.node.clone()) {
            self.tell(Event::Room(&node));
        }
    }

    fn take_placed(&mut self, info: PodInfo) {
        let before = self.world.placed(&info.key).cloned();
        let node = info.node.clone();
        let labels = |pod: &PodInfo| pod.pod.metadata.labels.clone();
        let news = before.as_ref().is_none_or(|before| labels(before) != labels(&info));
        let was_assumed = self.world.is_assumed(&info.key);
        let going = before.as_ref().is_some_and(|before| before.is_going() != info.is_going());
        let moved = before.as_ref().is_some_and(|before| before.node != node);
        let shrunk = before.as_ref().is_some_and(|before| before.requests != info.requests);
        if moved {
            self.leave(&info.key);
        }
        self.world.put_pod(info);
        match node.filter(|_| shrunk) {
            Some(node) => self.tell(Event::Room(&node)),
            None if news || was_assumed || going => self.tell(Event::Neighbour),
            None => (),
        }
    }

    fn take_unplaced(&mut self, info: PodInfo) {
        let key = &info.key.clone();
        if is_gated(&info.pod) {
            self.queue.remove(key);
            return;
        }
        if self.world.is_assumed(key) || self.skipped.contains_key(key) {
            return;
        }
        let info = Arc::new(info);
        let mut anew = false;
        if let Some(before) = self.queue.get(key) {
            let labels = |pod: &PodInfo| pod.pod.metadata.labels.clone();
            anew = before.pod.spec != info.pod.spec
                || labels(before) != labels(&info)
                || before.requests != info.requests
                || before.is_going() != info.is_going();
        } else if let Some(node) = info.nominated_node() {
            // Somebody made room for it before we were here.
            self.world.nominate(&info, node);
        }
        if info.is_going() {
            self.world.withdraw(key);
        }
        if self.queue.get(&info.key).is_none() {
            self.figures.came("active", "PodAdd");
        }
        self.queue.put(info, anew, Instant::now());
    }

    /// Asks those who wait whether this helps them.
    fn tell(&mut self, event: Event) {
        if event.is_for_anyone(&self.queue) {
            let mut helper = Helper::new(event, &self.world);
            self.queue.help(Instant::now(), |pod, by| helper.helps(pod, by));
        }
    }
}

/// Pods of other schedulers are theirs, and those that ended need no node (N-183).
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
