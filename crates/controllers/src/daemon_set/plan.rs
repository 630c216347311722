//! Decides one reconcile of a set, given all nodes and its pods (C-87, C-95…C-99). Pure.

use super::placement::{self, Fit, is_updated, node_of};
use crate::deployment::{Round, resolve_percent};
use crate::workload::{
    count, is_available, is_being_deleted, is_ready, is_terminal_pod, name, next_availability,
    phase, some_count,
};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetStatus};
use k8s_openapi::api::core::v1::{Node, Pod};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// At most this many creates and deletes in one reconcile. Upstream: `BurstReplicas`.
const BURST: usize = 250;

#[derive(Debug)]
pub(super) struct Plan {
    pub(super) create: Vec<Pod>,
    pub(super) delete: Vec<Arc<Pod>>,
    /// Finished pods on matching nodes: delete them and record events. Without those that wait for their backoff.
    pub(super) finished: Vec<FinishedPod>,
    pub(super) status: DaemonSetStatus,
    pub(super) next: Option<Duration>,
}

#[derive(Debug)]
pub(super) struct FinishedPod {
    pub(super) pod: Arc<Pod>,
    pub(super) node: String,
    pub(super) failed: bool,
}

/// The limits of a rolling update (C-95).
#[derive(Debug, Clone, Copy, PartialEq)]
struct RolloutLimits {
    surge: i32,
    unavailable: i32,
}

/// The new and the old pod of a node.
type Pair<'a> = (Option<&'a Arc<Pod>>, Option<&'a Arc<Pod>>);

struct Planner<'a> {
    set: &'a DaemonSet,
    hash: &'a str,
    min_ready: i32,
    now: Timestamp,
    limits: RolloutLimits,
    /// By node: whether it matches, and the pods there; the pod that counts comes first.
    nodes: BTreeMap<&'a str, (Fit, Vec<&'a Arc<Pod>>)>,
    create: BTreeSet<&'a str>,
    delete: Vec<Arc<Pod>>,
    finished: Vec<FinishedPod>,
}

impl Plan {
    /// `waits` returns whether the failed pod of a node must stay for its backoff (C-87).
    pub(super) fn decide(
        set: &DaemonSet,
        nodes: &[Arc<Node>],
        pods: &[Arc<Pod>],
        hash: &str,
        waits: impl FnMut(&str) -> bool,
        now: Timestamp,
    ) -> Plan {
        let template_pod = placement::template_pod(set);
        let mut by_node: BTreeMap<&str, (Fit, Vec<&Arc<Pod>>)> = BTreeMap::new();
        for node in nodes {
            by_node.insert(name(node.as_ref()), (placement::fit(&template_pod, node), Vec::new()));
        }
        let mut strays = Vec::new();
        for pod in
            pods.iter().filter(|pod| !(is_terminal_pod(pod) && is_being_deleted(pod.as_ref())))
        {
            match node_of(pod).and_then(|node| by_node.get_mut(node)) {
                Some((_, there)) => there.push(pod),
                // Made for a node that is gone. The pod garbage collector deletes bound pods.
                None if node_of(pod).is_some()
                    && !is_bound(pod)
                    && !is_being_deleted(pod.as_ref()) =>
                {
                    strays.push(Arc::clone(pod));
                }
                None => (),
            }
        }
        by_node.values_mut().for_each(|(_, pods)| pods.sort_by_key(|pod| age(pod)));
        let wanted = by_node.values().filter(|(fit, _)| fit.should_run).count();
        let mut planner = Planner {
            set,
            hash,
            min_ready: set.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0),
            now,
            limits: RolloutLimits::of(set, count(wanted)),
            nodes: by_node,
            create: BTreeSet::new(),
            delete: strays,
            finished: Vec::new(),
        };
        planner.manage(waits);
        // A pod that waits for its backoff does not delay the rollout.
        if planner.create.is_empty() && planner.delete.is_empty() && planner.finished.is_empty() {
            planner.roll();
        }
        planner.plan(&template_pod, pods)
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

impl RolloutLimits {
    /// With `OnDelete` there is never a surge, whatever else the spec says (C-98).
    fn of(set: &DaemonSet, wanted: i32) -> RolloutLimits {
        let strategy = set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref());
        let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
        let surge = rolling.and_then(|rolling| rolling.max_surge.as_ref());
        let unavailable = rolling.and_then(|rolling| rolling.max_unavailable.as_ref());
        let surge = if rolls(set) { resolve_percent(surge, wanted, Round::Up) } else { 0 };
        let unavailable = resolve_percent(unavailable, wanted, Round::Up);
        RolloutLimits {
            surge,
            unavailable: if surge == 0 && unavailable == 0 { 1 } else { unavailable },
        }
    }
}

impl<'a> Planner<'a> {
    fn is_available(&self, pod: &Pod) -> bool {
        is_available(pod, self.min_ready, self.now)
    }

    /// One pod on each matching node, none elsewhere (T-CTRL-30). With surge, terminating pods do not count (C-97).
    fn manage(&mut self, mut waits: impl FnMut(&str) -> bool) {
        for (node, (fit, pods)) in &self.nodes {
            let living = pods.iter().filter(|pod| !is_being_deleted(pod.as_ref()));
            if fit.should_run && pods.is_empty() {
                self.create.insert(node);
            } else if fit.should_continue {
                let (finished, running): (Vec<_>, Vec<_>) =
                    living.copied().partition(|pod| is_terminal_pod(pod));
                if self.limits.surge > 0
                    && fit.should_run
                    && finished.is_empty()
                    && running.is_empty()
                {
                    self.create.insert(node);
                }
                for pod in finished {
                    let failed = phase(pod) == "Failed";
                    if !failed || !waits(node) {
                        let (pod, node) = (Arc::clone(pod), (*node).to_owned());
                        self.finished.push(FinishedPod { pod, node, failed });
                    }
                }
                self.delete.extend(self.surplus(&running));
            } else {
                self.delete.extend(living.map(|pod| Arc::clone(pod)));
            }
        }
    }

    /// All pods but one; with surge, all but one old and one new.
    fn surplus(&self, running: &[&Arc<Pod>]) -> Vec<Arc<Pod>> {
        if running.len() <= 1 {
            return Vec::new();
        }
        if self.limits.surge == 0 {
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
        match self.limits.surge {
            0 => self.roll_by_deleting(),
            _ => self.roll_by_surging(),
        }
    }

    /// The new and the old pod of a node; `None` if there are several of either.
    fn pair(&self, pods: &[&'a Arc<Pod>]) -> Option<Pair<'a>> {
        let living = pods.iter().copied().filter(|pod| !is_being_deleted(pod.as_ref()));
        let (new, old): (Vec<_>, Vec<_>) =
            living.partition(|pod| is_updated(self.set, pod, self.hash));
        (new.len() <= 1 && old.len() <= 1).then(|| (new.first().copied(), old.first().copied()))
    }

    /// Deletes old pods, as many as may be unavailable (C-96).
    fn roll_by_deleting(&mut self) {
        let mut unavailable = 0;
        let (mut allowed, mut candidates) = (Vec::new(), Vec::new());
        for (fit, pods) in self.nodes.values() {
            if !fit.should_run && pods.is_empty() {
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
        let left = usize::try_from(self.limits.unavailable - unavailable).unwrap_or(0);
        let deleted = allowed.into_iter().chain(candidates.into_iter().take(left));
        self.delete.extend(deleted.map(Arc::clone));
    }

    /// Creates new pods beside the old ones, as many as the surge allows (C-97).
    fn roll_by_surging(&mut self) {
        let mut surging = 0;
        let (mut allowed, mut candidates) = (Vec::new(), Vec::new());
        for (node, (fit, pods)) in &self.nodes {
            match self.pair(pods) {
                Some((None, Some(old))) if fit.should_run => match self.is_available(old) {
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
        let left = usize::try_from(self.limits.surge - surging).unwrap_or(0);
        self.create.extend(allowed.into_iter().chain(candidates.into_iter().take(left)));
    }

    fn plan(self, template_pod: &Pod, pods: &[Arc<Pod>]) -> Plan {
        let status = self.status();
        let make = |node: &&str| placement::make(template_pod, self.set, node, self.hash);
        Plan {
            create: self.create.iter().take(BURST).map(make).collect(),
            delete: self.delete.into_iter().take(BURST).collect(),
            finished: self.finished,
            status,
            next: next_availability(pods.iter().map(AsRef::as_ref), self.min_ready, self.now),
        }
    }

    /// The status covers all nodes (C-99).
    fn status(&self) -> DaemonSetStatus {
        let wanted = || self.nodes.values().filter(|(fit, _)| fit.should_run);
        let first = || wanted().filter_map(|(_, pods)| pods.first().copied());
        let misplaced =
            self.nodes.values().filter(|(fit, pods)| !fit.should_run && !pods.is_empty());
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
