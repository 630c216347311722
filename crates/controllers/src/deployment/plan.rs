//! Decides one reconcile of a Deployment and its sets (C-38). Pure.

use super::{progress, revisions, rolling, scaling};
use crate::workload::{is_being_deleted, name, uid};
use api::selector::LabelSelector;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use std::sync::Arc;
use std::time::Duration;

pub(super) struct Plan {
    /// If there is a set to create, nothing else is done; the next reconcile continues with it.
    pub(super) create: Option<ReplicaSet>,
    pub(super) update: Vec<Change>,
    pub(super) delete: Vec<Arc<ReplicaSet>>,
    /// The Deployment with its new status and revision.
    pub(super) deployment: Deployment,
    pub(super) next: Option<Duration>,
}

pub(super) struct Change {
    pub(super) before: i32,
    pub(super) after: ReplicaSet,
}

impl Change {
    /// The message of the event for a change of size (T-CTRL-14, C-50).
    pub(super) fn event_message(&self) -> Option<String> {
        let (before, after) = (self.before, size(&self.after));
        let direction = match before.cmp(&after) {
            std::cmp::Ordering::Less => "up",
            std::cmp::Ordering::Equal => return None,
            std::cmp::Ordering::Greater => "down",
        };
        let name = name(&self.after);
        Some(format!("Scaled {direction} replica set {name} from {before} to {after}"))
    }
}

/// A Deployment and copies of its sets, modified step by step. The plan compares them with the original sets.
pub(super) struct Rollout<'a> {
    pub(super) deployment: Deployment,
    sets: &'a [Arc<ReplicaSet>],
    pub(super) new: Option<ReplicaSet>,
    /// Oldest first.
    pub(super) old: Vec<ReplicaSet>,
    create: Option<ReplicaSet>,
    delete: Vec<Arc<ReplicaSet>>,
    next: Option<Duration>,
    pub(super) now: Timestamp,
}

/// `runs` returns whether a set has pods that are not terminal.
pub(super) fn decide(
    deployment: &Deployment,
    sets: &[Arc<ReplicaSet>],
    runs: impl Fn(&ReplicaSet) -> bool,
    now: Timestamp,
) -> Plan {
    let mut rollout = Rollout::new(deployment, sets, now);
    if is_being_deleted(deployment) {
        progress::report_counts(&mut rollout);
        return rollout.plan();
    }
    progress::set_paused(&mut rollout.deployment, now);
    let paused = deployment.spec.as_ref().and_then(|spec| spec.paused) == Some(true);
    if paused || scaling::is_needed(&rollout) {
        revisions::update_new(&mut rollout);
        scaling::scale(&mut rollout);
        if paused {
            rollout.delete_history();
        }
        progress::report_counts(&mut rollout);
    } else if recreates(deployment) {
        rollout.recreate(runs);
    } else {
        rollout.roll();
    }
    rollout.plan()
}

impl<'a> Rollout<'a> {
    fn new(deployment: &Deployment, sets: &'a [Arc<ReplicaSet>], now: Timestamp) -> Self {
        let (new, old) = revisions::split(deployment, sets);
        let deployment = deployment.clone();
        let (create, delete, next) = (None, Vec::new(), None);
        Rollout { deployment, sets, new, old, create, delete, next, now }
    }

    /// The sum of `spec.replicas` of all sets.
    pub(super) fn total(&self) -> i32 {
        self.all().map(size).sum()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &ReplicaSet> {
        self.old.iter().chain(&self.new)
    }

    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut ReplicaSet> {
        self.old.iter_mut().chain(&mut self.new)
    }

    fn roll(&mut self) {
        if self.new.is_none() {
            let room = rolling::first_size(self);
            self.create = Some(revisions::make(self, room));
            return;
        }
        revisions::update_new(self);
        if !rolling::grow_new(self) && !rolling::shrink_old(self) {
            self.delete_history_if_complete();
        }
        self.next = progress::report_rollout(self);
    }

    fn recreate(&mut self, runs: impl Fn(&ReplicaSet) -> bool) {
        revisions::update_new(self);
        let mut shrunk = false;
        for set in self.old.iter_mut().filter(|set| size(set) > 0) {
            resize(set, 0, &self.deployment);
            shrunk = true;
        }
        let wait = shrunk || self.old.iter().any(|set| replicas(set) > 0 || runs(set));
        match &mut self.new {
            _ if wait => (),
            None => {
                self.create = Some(revisions::make(self, desired_replicas(&self.deployment)));
                return;
            }
            Some(new) if size(new) != desired_replicas(&self.deployment) => {
                resize(new, desired_replicas(&self.deployment), &self.deployment);
            }
            Some(_) => self.delete_history_if_complete(),
        }
        self.next = progress::report_rollout(self);
    }

    fn delete_history_if_complete(&mut self) {
        if progress::is_complete(&self.deployment) {
            self.delete_history();
        }
    }

    fn delete_history(&mut self) {
        let surplus = revisions::surplus(&self.deployment, &self.old);
        let is_it = |set: &&Arc<ReplicaSet>| surplus.iter().any(|uid_| uid_ == uid(set.as_ref()));
        self.delete = self.sets.iter().filter(is_it).cloned().collect();
        self.old.retain(|set| !surplus.iter().any(|uid_| uid_ == uid(set)));
    }

    fn plan(self) -> Plan {
        let mut update = Vec::new();
        for after in self.old.into_iter().chain(self.new) {
            let before = self.sets.iter().find(|before| uid(before.as_ref()) == uid(&after));
            if let Some(before) = before.filter(|before| before.as_ref() != &after) {
                update.push(Change { before: size(before), after });
            }
        }
        let (create, delete, next) = (self.create, self.delete, self.next);
        Plan { create, update, delete, deployment: self.deployment, next }
    }
}

pub(super) fn selector(deployment: &Deployment) -> LabelSelector {
    let spec = deployment.spec.as_ref();
    spec.map(|spec| crate::workload::selector(&spec.selector)).unwrap_or_default()
}

pub(super) fn recreates(deployment: &Deployment) -> bool {
    let strategy = deployment.spec.as_ref().and_then(|spec| spec.strategy.as_ref());
    strategy.and_then(|strategy| strategy.type_.as_deref()) == Some("Recreate")
}

pub(super) fn desired_replicas(deployment: &Deployment) -> i32 {
    deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

pub(super) fn size(set: &ReplicaSet) -> i32 {
    set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

pub(super) fn replicas(set: &ReplicaSet) -> i32 {
    set.status.as_ref().map_or(0, |status| status.replicas)
}

pub(super) fn available(set: &ReplicaSet) -> i32 {
    set.status.as_ref().and_then(|status| status.available_replicas).unwrap_or(0)
}

pub(super) fn template(set: &ReplicaSet) -> Option<&PodTemplateSpec> {
    set.spec.as_ref()?.template.as_ref()
}

/// Sets the size of a set and the annotations that go with it (C-30).
pub(super) fn resize(set: &mut ReplicaSet, size: i32, deployment: &Deployment) {
    if let Some(spec) = &mut set.spec {
        spec.replicas = Some(size);
    }
    revisions::annotate_sizes(set, deployment);
}

/// How many pods above, and how many unavailable pods below the desired number a rollout may have (C-40).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct RolloutLimits {
    pub(super) surge: i32,
    pub(super) unavailable: i32,
}

impl RolloutLimits {
    pub(super) fn of(deployment: &Deployment) -> RolloutLimits {
        let wanted = desired_replicas(deployment);
        let strategy = deployment.spec.as_ref().and_then(|spec| spec.strategy.as_ref());
        if recreates(deployment) {
            return RolloutLimits { surge: 0, unavailable: 0 };
        }
        let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
        let surge = rolling.and_then(|rolling| rolling.max_surge.as_ref());
        let unavailable = rolling.and_then(|rolling| rolling.max_unavailable.as_ref());
        let surge = resolve_percent(surge, wanted, Round::Up);
        let unavailable = resolve_percent(unavailable, wanted, Round::Down);
        let unavailable = if surge == 0 && unavailable == 0 { 1 } else { unavailable };
        RolloutLimits { surge, unavailable: unavailable.min(wanted) }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Round {
    Up,
    Down,
}

/// Resolves a number, or a percentage of `whole`. `None` is zero.
pub(crate) fn resolve_percent(of: Option<&IntOrString>, whole: i32, round: Round) -> i32 {
    match of {
        None => 0,
        Some(IntOrString::Int(number)) => *number,
        Some(IntOrString::String(text)) => {
            let percent: i64 = text.trim_end_matches('%').parse().unwrap_or(0);
            let hundredths = i64::from(whole).saturating_mul(percent);
            let part = match round {
                Round::Up => hundredths.saturating_add(99).div_euclid(100),
                Round::Down => hundredths.div_euclid(100),
            };
            i32::try_from(part).unwrap_or(i32::MAX)
        }
    }
}

#[cfg(test)]
mod tests;
