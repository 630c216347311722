//! What a look at all nodes and a set's pods leads to (C-87, C-95…C-99). Pure.

use super::placement::{self, Fit, is_updated, node_of};
use crate::deployment::{Round, part};
use crate::workload::{
    count, is_available, is_deleted, is_ready, is_terminal, name, next_availability, phase,
    some_count,
};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetStatus};
use k8s_openapi::api::core::v1::{Node, Pod};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Not more than this many creates, and deletes, in one look. Upstream: `BurstReplicas`.
const BURST: usize = 250;

#[derive(Debug)]
pub(super) struct Plan {
    pub(super) create: Vec<Pod>,
    pub(super) delete: Vec<Arc<Pod>>,
    /// On nodes that the set wants: to be deleted too, and told. Not those that wait.
    pub(super) ended: Vec<Ended>,
    pub(super) status: DaemonSetStatus,
    pub(super) next: Option<Duration>,
}

#[derive(Debug)]
pub(super) struct Ended {
    pub(super) pod: Arc<Pod>,
    pub(super) node: String,
    pub(super) failed: bool,
}

/// How a rolling update is bounded (C-95).
#[derive(Debug, Clone, Copy, PartialEq)]
struct Fence {
    surge: i32,
    unavailable: i32,
}

/// The new and the old pod of a node.
type Pair<'a> = (Option<&'a Arc<Pod>>, Option<&'a Arc<Pod>>);

struct Look<'a> {
    set: &'a DaemonSet,
    hash: &'a str,
    min_ready: i32,
    now: Timestamp,
    fence: Fence,
    /// By node: whether it suits, and the pods there, the one that counts first.
    nodes: BTreeMap<&'a str, (Fit, Vec<&'a Arc<Pod>>)>,
    create: BTreeSet<&'a str>,
    delete: Vec<Arc<Pod>>,
    ended: Vec<Ended>,
}

impl Plan {
    /// `waits` says whether a node's failed pod stays for now (C-87).
    pub(super) fn decide(
        set: &DaemonSet,
        nodes: &[Arc<Node>],
        pods: &[Arc<Pod>],
        hash: &str,
        waits: impl FnMut(&str) -> bool,
        now: Timestamp,
    ) -> Plan {
        let probe = placement::probe(set);
        let mut by_node: BTreeMap<&str, (Fit, Vec<&Arc<Pod>>)> = BTreeMap::new();
        for node in nodes {
            by_node.insert(name(node.as_ref()), (placement::fit(&probe, node), Vec::new()));
        }
        let mut strays = Vec::new();
        for pod in pods.iter().filter(|pod| !(is_terminal(pod) && is_deleted(pod.as_ref()))) {
            match node_of(pod).and_then(|node| by_node.get_mut(node)) {
                Some((_, there)) => there.push(pod),
                // Meant for a node that is no more. A bound one is left to the pods' own collector.
                None if node_of(pod).is_some() && !is_bound(pod) && !is_deleted(pod.as_ref()) => {
                    strays.push(Arc::clone(pod));
                }
                None => (),
            }
        }
        by_node.values_mut().for_each(|(_, pods)| pods.sort_by_key(|pod| age(pod)));
        let wanted = by_node.values().filter(|(fit, _)| fit.runs).count();
        let mut look = Look {
            set,
            hash,
            min_ready: set.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0),
            now,
            fence: Fence::of(set, count(wanted)),
            nodes: by_node,
            create: BTreeSet::new(),
            delete: strays,
            ended: Vec::new(),
        };
        look.manage(waits);
        // A pod that waits after its failure does not hold up the others.
        if look.create.is_empty() && look.delete.is_empty() && look.ended.is_empty() {
            look.roll();
        }
        look.plan(&probe, pods)
    }
}

fn is_bound(pod: &Pod) -> bool {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    node.is_some_and(|node| !node.is_empty())
}

/// Bound before unbound, then older, then by name.
fn age(pod: &Arc<Pod>) -> (bool, Option<Timestamp>, Option<String>) {
    let created = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
    (!is_bound(pod), created, pod.metadata.name.clone())
}

fn rolls(set: &DaemonSet) -> bool {
    let strategy = set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref());
    strategy.and_then(|strategy| strategy.type_.as_deref()) != Some("OnDelete")
}

impl Fence {
    /// Who updates on delete keeps to the one pod per node, whatever else is written (C-98).
    fn of(set: &DaemonSet, wanted: i32) -> Fence {
        let strategy = set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref());
        let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
        let surge = rolling.and_then(|rolling| rolling.max_surge.as_ref());
        let unavailable = rolling.and_then(|rolling| rolling.max_unavailable.as_ref());
        let surge = if rolls(set) { part(surge, wanted, Round::Up) } else { 0 };
        let unavailable = part(unavailable, wanted, Round::Up);
        Fence { surge, unavailable: if surge == 0 && unavailable == 0 { 1 } else { unavailable } }
    }
}

impl<'a> Look<'a> {
    fn is_available(&self, pod: &Pod) -> bool {
        is_available(pod, self.min_ready, self.now)
    }

    /// One pod where one should be, none where none should be (T-CTRL-30). With surge one that is
    /// going does not count (C-97).
    fn manage(&mut self, mut waits: impl FnMut(&str) -> bool) {
        for (node, (fit, pods)) in &self.nodes {
            let living = pods.iter().filter(|pod| !is_deleted(pod.as_ref()));
            if fit.runs && pods.is_empty() {
                self.create.insert(node);
            } else if fit.stays {
                let (ended, running): (Vec<_>, Vec<_>) =
                    living.copied().partition(|pod| is_terminal(pod));
                if self.fence.surge > 0 && fit.runs && ended.is_empty() && running.is_empty() {
                    self.create.insert(node);
                }
                for pod in ended {
                    let failed = phase(pod) == "Failed";
                    if !failed || !waits(node) {
                        let (pod, node) = (Arc::clone(pod), (*node).to_owned());
                        self.ended.push(Ended { pod, node, failed });
                    }
                }
                self.delete.extend(self.surplus(&running));
            } else {
                self.delete.extend(living.map(|pod| Arc::clone(pod)));
            }
        }
    }

    /// All but one; with surge all but one of the old and one of the new.
    fn surplus(&self, running: &[&Arc<Pod>]) -> Vec<Arc<Pod>> {
        if running.len() <= 1 {
            return Vec::new();
        }
        if self.fence.surge == 0 {
            return running.iter().skip(1).map(|pod| Arc::clone(pod)).collect();
        }
        let (new, old): (Vec<&Arc<Pod>>, Vec<&Arc<Pod>>) =
            running.iter().copied().partition(|pod| is_updated(self.set, pod, self.hash));
        let mut surplus: Vec<Arc<Pod>> =
            new.iter().skip(1).chain(old.iter().skip(1)).map(|pod| Arc::clone(pod)).collect();
        if let (Some(new), Some(old)) = (new.first(), old.first())
            && (!is_ready(old) || self.is_available(new))
        {
            surplus.push(Arc::clone(old));
        }
        surplus
    }

    fn roll(&mut self) {
        if !rolls(self.set) {
            return;
        }
        match self.fence.surge {
            0 => self.roll_down(),
            _ => self.roll_over(),
        }
    }

    /// The new and the old pod of a node, unless there are several of either.
    fn pair(&self, pods: &[&'a Arc<Pod>]) -> Option<Pair<'a>> {
        let living = pods.iter().copied().filter(|pod| !is_deleted(pod.as_ref()));
        let (new, old): (Vec<_>, Vec<_>) =
            living.partition(|pod| is_updated(self.set, pod, self.hash));
        (new.len() <= 1 && old.len() <= 1).then(|| (new.first().copied(), old.first().copied()))
    }

    /// Old pods go, as many as may be missing (C-96).
    fn roll_down(&mut self) {
        let mut unavailable = 0;
        let (mut allowed, mut candidates) = (Vec::new(), Vec::new());
        for (fit, pods) in self.nodes.values() {
            if !fit.runs && pods.is_empty() {
                continue;
            }
            match self.pair(pods) {
                Some((Some(new), None)) if self.is_available(new) => (),
                Some((None, Some(old))) if self.is_available(old) => candidates.push(old),
                Some((None, Some(old))) => {
                    allowed.push(old);
                    unavailable += 1;
                }
                _ => unavailable += 1,
            }
        }
        let left = usize::try_from(self.fence.unavailable - unavailable).unwrap_or(0);
        let go = allowed.into_iter().chain(candidates.into_iter().take(left));
        self.delete.extend(go.map(Arc::clone));
    }

    /// New pods come beside the old, as many as may be too many (C-97).
    fn roll_over(&mut self) {
        let mut surging = 0;
        let (mut allowed, mut candidates) = (Vec::new(), Vec::new());
        for (node, (fit, pods)) in &self.nodes {
            match self.pair(pods) {
                Some((None, Some(old))) if fit.runs => match self.is_available(old) {
                    true => candidates.push(*node),
                    false => allowed.push(*node),
                },
                Some((Some(new), Some(old))) => {
                    if !self.is_available(old) || self.is_available(new) {
                        self.delete.push(Arc::clone(old));
                    } else {
                        surging += 1;
                    }
                }
                _ => (),
            }
        }
        let left = usize::try_from(self.fence.surge - surging).unwrap_or(0);
        self.create.extend(allowed.into_iter().chain(candidates.into_iter().take(left)));
    }

    fn plan(self, probe: &Pod, pods: &[Arc<Pod>]) -> Plan {
        let status = self.status();
        let make = |node: &&str| placement::make(probe, self.set, node, self.hash);
        Plan {
            create: self.create.iter().take(BURST).map(make).collect(),
            delete: self.delete.into_iter().take(BURST).collect(),
            ended: self.ended,
            status,
            next: next_availability(pods.iter().map(AsRef::as_ref), self.min_ready, self.now),
        }
    }

    /// C-99.
    fn status(&self) -> DaemonSetStatus {
        let wanted = || self.nodes.values().filter(|(fit, _)| fit.runs);
        let first = || wanted().filter_map(|(_, pods)| pods.first().copied());
        let misplaced = self.nodes.values().filter(|(fit, pods)| !fit.runs && !pods.is_empty());
        let desired = count(wanted().count());
        let available = count(first().filter(|pod| self.is_available(pod)).count());
        let updated = first().filter(|pod| is_updated(self.set, pod, self.hash)).count();
        DaemonSetStatus {
            observed_generation: self.set.metadata.generation,
            desired_number_scheduled: desired,
            current_number_scheduled: count(first().count()),
            number_misscheduled: count(misplaced.count()),
            number_ready: count(first().filter(|pod| is_ready(pod)).count()),
            number_available: some_count(available),
            number_unavailable: some_count(desired - available),
            updated_number_scheduled: some_count(count(updated)),
            collision_count: None,
            conditions: self.set.status.as_ref().and_then(|status| status.conditions.clone()),
        }
    }
}

#[cfg(test)]
mod tests;
