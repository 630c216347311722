//! What a look at a Deployment and its sets leads to (C-38). Pure.

use super::{progress, revisions, rolling, scaling};
use crate::workload::{is_deleted, name, uid};
use api::selector::LabelSelector;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use std::sync::Arc;
use std::time::Duration;

pub(super) struct Plan {
    /// If there is one to create, nothing else is done: the next look goes on with it.
    pub(super) create: Option<ReplicaSet>,
    pub(super) update: Vec<Change>,
    pub(super) delete: Vec<Arc<ReplicaSet>>,
    /// With status and revision as they should be.
    pub(super) deployment: Deployment,
    pub(super) next: Option<Duration>,
}

pub(super) struct Change {
    pub(super) before: i32,
    pub(super) after: ReplicaSet,
}

impl Change {
    /// T-CTRL-14, C-50.
    pub(super) fn said(&self) -> Option<String> {
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

/// A Deployment and its sets, changed step by step; what changed is found by comparison.
pub(super) struct Work<'a> {
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

/// `runs` says whether a set has pods that have not ended.
pub(super) fn decide(
    deployment: &Deployment,
    sets: &[Arc<ReplicaSet>],
    runs: impl Fn(&ReplicaSet) -> bool,
    now: Timestamp,
) -> Plan {
    let mut work = Work::new(deployment, sets, now);
    if is_deleted(deployment) {
        progress::report_counts(&mut work);
        return work.plan();
    }
    progress::say_paused(&mut work.deployment, now);
    let paused = deployment.spec.as_ref().and_then(|spec| spec.paused) == Some(true);
    if paused || scaling::is_wanted(&work) {
        revisions::keep(&mut work);
        scaling::scale(&mut work);
        if paused {
            work.forget_history();
        }
        progress::report_counts(&mut work);
    } else if recreates(deployment) {
        work.recreate(runs);
    } else {
        work.roll();
    }
    work.plan()
}

impl<'a> Work<'a> {
    fn new(deployment: &Deployment, sets: &'a [Arc<ReplicaSet>], now: Timestamp) -> Self {
        let (new, old) = revisions::split(deployment, sets);
        let deployment = deployment.clone();
        let (create, delete, next) = (None, Vec::new(), None);
        Work { deployment, sets, new, old, create, delete, next, now }
    }

    /// Σ spec.replicas over all sets.
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
        revisions::keep(self);
        if !rolling::grow_new(self) && !rolling::shrink_old(self) {
            self.forget_history_if_complete();
        }
        self.next = progress::report_rollout(self);
    }

    fn recreate(&mut self, runs: impl Fn(&ReplicaSet) -> bool) {
        revisions::keep(self);
        let mut shrunk = false;
        for set in self.old.iter_mut().filter(|set| size(set) > 0) {
            resize(set, 0, &self.deployment);
            shrunk = true;
        }
        let wait = shrunk || self.old.iter().any(|set| replicas(set) > 0 || runs(set));
        match &mut self.new {
            _ if wait => (),
            None => {
                self.create = Some(revisions::make(self, wanted(&self.deployment)));
                return;
            }
            Some(new) if size(new) != wanted(&self.deployment) => {
                resize(new, wanted(&self.deployment), &self.deployment);
            }
            Some(_) => self.forget_history_if_complete(),
        }
        self.next = progress::report_rollout(self);
    }

    fn forget_history_if_complete(&mut self) {
        if progress::is_complete(&self.deployment) {
            self.forget_history();
        }
    }

    fn forget_history(&mut self) {
        let forgotten = revisions::forgotten(&self.deployment, &self.old);
        let is_it = |set: &&Arc<ReplicaSet>| forgotten.iter().any(|uid_| uid_ == uid(set.as_ref()));
        self.delete = self.sets.iter().filter(is_it).cloned().collect();
        self.old.retain(|set| !forgotten.iter().any(|uid_| uid_ == uid(set)));
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

pub(super) fn wanted(deployment: &Deployment) -> i32 {
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

/// Sets the size and, with it, what it was chosen for (C-30).
pub(super) fn resize(set: &mut ReplicaSet, size: i32, deployment: &Deployment) {
    if let Some(spec) = &mut set.spec {
        spec.replicas = Some(size);
    }
    revisions::note_sizes(set, deployment);
}

/// How many more than wanted, and how many less available, a rollout may have (C-40).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Fence {
    pub(super) surge: i32,
    pub(super) unavailable: i32,
}

impl Fence {
    pub(super) fn of(deployment: &Deployment) -> Fence {
        let wanted = wanted(deployment);
        let strategy = deployment.spec.as_ref().and_then(|spec| spec.strategy.as_ref());
        if recreates(deployment) {
            return Fence { surge: 0, unavailable: 0 };
        }
        let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
        let surge = rolling.and_then(|rolling| rolling.max_surge.as_ref());
        let unavailable = rolling.and_then(|rolling| rolling.max_unavailable.as_ref());
        let surge = part(surge, wanted, Round::Up);
        let unavailable = part(unavailable, wanted, Round::Down);
        let unavailable = if surge == 0 && unavailable == 0 { 1 } else { unavailable };
        Fence { surge, unavailable: unavailable.min(wanted) }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Round {
    Up,
    Down,
}

/// A number, or a percentage of one. Nothing is nothing.
pub(crate) fn part(of: Option<&IntOrString>, whole: i32, round: Round) -> i32 {
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
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const NOW: &str = "2026-01-01T01:00:00Z";

    fn deployment(replicas: i32, surge: Value, unavailable: Value) -> Deployment {
        serde_json::from_value(json!({
            "metadata": { "namespace": "a", "name": "web", "uid": "d", "generation": 1 },
            "spec": {
                "replicas": replicas, "progressDeadlineSeconds": 600, "revisionHistoryLimit": 10,
                "selector": { "matchLabels": { "app": "web" } },
                "strategy": { "type": "RollingUpdate",
                    "rollingUpdate": { "maxSurge": surge, "maxUnavailable": unavailable } },
                "template": template("new"),
            },
        }))
        .unwrap()
    }

    fn template(image: &str) -> Value {
        json!({ "metadata": { "labels": { "app": "web" } },
                "spec": { "containers": [{ "name": "c", "image": image }] } })
    }

    /// Older sets have smaller numbers.
    fn set(
        number: u32,
        image: &str,
        size: i32,
        available: i32,
        sized_for: (i32, i32),
    ) -> Arc<ReplicaSet> {
        Arc::new(
            serde_json::from_value(json!({
                "metadata": {
                    "namespace": "a", "name": format!("web-{number}"), "uid": format!("s{number}"),
                    "generation": 1, "creationTimestamp": format!("2026-01-01T00:00:{number:02}Z"),
                    "annotations": {
                        "deployment.kubernetes.io/revision": number.to_string(),
                        "deployment.kubernetes.io/desired-replicas": sized_for.0.to_string(),
                        "deployment.kubernetes.io/max-replicas": sized_for.1.to_string(),
                    },
                },
                "spec": { "replicas": size, "selector": {}, "template": template(image) },
                "status": { "replicas": size, "readyReplicas": available, "observedGeneration": 1,
                            "availableReplicas": available, "terminatingReplicas": 0 },
            }))
            .unwrap(),
        )
    }

    fn planned(deployment: &Deployment, sets: &[Arc<ReplicaSet>]) -> Plan {
        decide(deployment, sets, |_| false, NOW.parse().unwrap())
    }

    /// The sizes of all sets after the plan, in order of their names.
    fn sizes(plan: &Plan, sets: &[Arc<ReplicaSet>]) -> Vec<i32> {
        let after = |before: &Arc<ReplicaSet>| {
            let change =
                plan.update.iter().find(|change| name(&change.after) == name(before.as_ref()));
            change.map_or_else(|| size(before), |change| size(&change.after))
        };
        sets.iter().map(after).collect()
    }

    #[test]
    fn c_40_t_ctrl_9_surge_rounds_up_and_unavailable_down() {
        let cases = [
            (1, "25%", "25%", (1, 0)),
            (3, "25%", "25%", (1, 0)),
            (4, "25%", "25%", (1, 1)),
            (10, "25%", "25%", (3, 2)),
            (10, "1%", "0%", (1, 0)),
            (10, "0%", "1%", (0, 1)),
            (0, "25%", "25%", (0, 0)),
        ];
        for (replicas, surge, unavailable, expected) in cases {
            let fence = Fence::of(&deployment(replicas, json!(surge), json!(unavailable)));
            assert_eq!(
                (fence.surge, fence.unavailable),
                expected,
                "{replicas} {surge} {unavailable}"
            );
        }
    }

    #[test]
    fn c_29_c_31_the_first_set_has_its_size_and_the_deployment_its_revision() {
        let plan = planned(&deployment(3, json!("25%"), json!("25%")), &[]);
        let set = plan.create.unwrap();
        let hash = set.metadata.labels.as_ref().unwrap()["pod-template-hash"].clone();
        assert_eq!(name(&set), format!("web-{hash}"));
        assert_eq!(size(&set), 3);
        let annotations = set.metadata.annotations.unwrap();
        assert_eq!(annotations["deployment.kubernetes.io/revision"], "1");
        assert_eq!(annotations["deployment.kubernetes.io/desired-replicas"], "3");
        assert_eq!(annotations["deployment.kubernetes.io/max-replicas"], "4");
        let spec = set.spec.unwrap();
        assert_eq!(spec.selector.match_labels.unwrap()["pod-template-hash"], hash);
        assert_eq!(
            plan.deployment.metadata.annotations.unwrap()["deployment.kubernetes.io/revision"],
            "1"
        );
        let condition = plan.deployment.status.unwrap().conditions.unwrap().remove(0);
        assert_eq!(condition.reason.as_deref(), Some("NewReplicaSetCreated"));
        assert_eq!(condition.message, Some(format!("Created new replica set \"web-{hash}\"")));
    }

    #[test]
    fn c_41_c_42_c_44_a_rollout_goes_up_then_down_and_stays_when_nothing_gets_ready() {
        let ten = deployment(10, json!(3), json!(2));
        let at = (10, 13);
        let cases = [
            (
                "the new one grows into the surge",
                vec![set(1, "old", 10, 10, at), set(2, "new", 0, 0, at)],
                vec![10, 3],
            ),
            (
                "then the old shrink",
                vec![set(1, "old", 10, 10, at), set(2, "new", 3, 0, at)],
                vec![8, 3],
            ),
            (
                "then the new one grows",
                vec![set(1, "old", 8, 8, at), set(2, "new", 3, 0, at)],
                vec![8, 5],
            ),
            (
                "and there it stays",
                vec![set(1, "old", 8, 8, at), set(2, "new", 5, 0, at)],
                vec![8, 5],
            ),
            (
                "what is not available goes first",
                vec![set(1, "x", 4, 4, at), set(2, "old", 6, 4, at), set(3, "new", 3, 0, at)],
                vec![4, 4, 3],
            ),
            (
                "oldest first",
                vec![set(1, "x", 4, 4, at), set(2, "old", 4, 4, at), set(3, "new", 5, 5, at)],
                vec![0, 3, 5],
            ),
            ("the end", vec![set(1, "old", 2, 2, at), set(2, "new", 10, 10, at)], vec![0, 10]),
        ];
        for (what, sets, expected) in cases {
            assert_eq!(sizes(&planned(&ten, &sets), &sets), expected, "{what}");
        }
    }

    /// T-EDGE-18: as upstream, pods that are still ending count neither for the surge nor against the end;
    /// how many they are is told.
    #[test]
    fn t_ctrl_10_t_ctrl_12_ending_pods_hold_up_no_rollout() {
        let three = deployment(3, json!(1), json!(0));
        let ending = |mut set: Arc<ReplicaSet>, pods| {
            let status = Arc::make_mut(&mut set).status.as_mut().unwrap();
            status.terminating_replicas = Some(pods);
            set
        };
        let at = (3, 4);
        let sets = [ending(set(1, "old", 2, 2, at), 5), set(2, "new", 1, 1, at)];
        assert_eq!(sizes(&planned(&three, &sets), &sets), [2, 2], "T-CTRL-10: the surge is free");
        let sets = [ending(set(1, "old", 0, 0, at), 5), set(2, "new", 3, 3, at)];
        let status = planned(&three, &sets).deployment.status.unwrap();
        assert_eq!(status.terminating_replicas, Some(5));
        let conditions = status.conditions.unwrap();
        let progress = conditions.iter().find(|c| c.type_ == "Progressing").unwrap();
        assert_eq!(progress.reason.as_deref(), Some("NewReplicaSetAvailable"), "T-CTRL-12");
    }

    #[test]
    fn c_47_c_48_c_49_scaling_is_spread_in_proportion() {
        let scaled = |replicas| deployment(replicas, json!(3), json!(2));
        let at = (10, 13);
        let cases = [
            ("up", 30, vec![set(1, "old", 8, 8, at), set(2, "new", 5, 0, at)], vec![20, 13]),
            ("down", 5, vec![set(1, "old", 8, 8, at), set(2, "new", 5, 0, at)], vec![5, 3]),
            ("to none", 0, vec![set(1, "old", 8, 8, at), set(2, "new", 5, 0, at)], vec![0, 0]),
            (
                "only one is active",
                5,
                vec![set(1, "old", 0, 0, at), set(2, "new", 10, 10, at)],
                vec![0, 5],
            ),
        ];
        for (what, replicas, sets, expected) in cases {
            assert_eq!(sizes(&planned(&scaled(replicas), &sets), &sets), expected, "{what}");
        }
    }

    #[test]
    fn c_33_a_rollback_makes_the_old_set_the_new_one_with_the_next_revision() {
        let sets = [set(1, "new", 0, 0, (3, 4)), set(2, "old", 3, 3, (3, 4))];
        let plan = planned(&deployment(3, json!(1), json!(0)), &sets);
        assert!(plan.create.is_none());
        let new = &plan.update.iter().find(|change| name(&change.after) == "web-1").unwrap().after;
        let annotations = new.metadata.annotations.as_ref().unwrap();
        assert_eq!(annotations["deployment.kubernetes.io/revision"], "3");
        assert_eq!(annotations["deployment.kubernetes.io/revision-history"], "1");
        assert_eq!(size(new), 1);
    }

    #[test]
    fn c_36_history_beyond_the_limit_goes_when_the_rollout_is_complete() {
        let mut deployment = deployment(1, json!(1), json!(0));
        deployment.spec.as_mut().unwrap().revision_history_limit = Some(1);
        deployment.status = Some(
            serde_json::from_value(json!({ "observedGeneration": 1, "replicas": 1,
                "updatedReplicas": 1, "availableReplicas": 1, "readyReplicas": 1 }))
            .unwrap(),
        );
        let at = (1, 2);
        let sets = [
            set(1, "a", 0, 0, at),
            set(2, "b", 0, 0, at),
            set(3, "c", 0, 0, at),
            set(4, "new", 1, 1, at),
        ];
        let deleted: Vec<String> = planned(&deployment, &sets)
            .delete
            .iter()
            .map(|set| name(set.as_ref()).to_owned())
            .collect();
        assert_eq!(deleted, ["web-1", "web-2"]);
        deployment.status = None;
        assert!(planned(&deployment, &sets).delete.is_empty(), "not before it is complete");
    }

    #[test]
    fn c_51_t_ctrl_13_recreating_waits_for_the_last_old_pod() {
        let mut deployment = deployment(3, json!(null), json!(null));
        deployment.spec.as_mut().unwrap().strategy =
            Some(serde_json::from_value(json!({ "type": "Recreate" })).unwrap());
        let at = (3, 3);
        let old = [set(1, "old", 3, 3, at)];
        let plan = planned(&deployment, &old);
        assert!(plan.create.is_none());
        assert_eq!(sizes(&plan, &old), [0]);
        let empty = [set(1, "old", 0, 0, at)];
        let waiting = decide(&deployment, &empty, |_| true, NOW.parse().unwrap());
        assert!(waiting.create.is_none() && waiting.update.is_empty());
        assert_eq!(size(&planned(&deployment, &empty).create.unwrap()), 3);
    }

    #[test]
    fn c_57_c_58_progress_is_told_and_a_stuck_rollout_is_said_to_be_stuck() {
        let mut deployment = deployment(1, json!(1), json!(0));
        let at = (1, 2);
        let stuck = [set(1, "new", 1, 0, at)];
        let first = planned(&deployment, &stuck);
        assert_eq!(first.next, Some(Duration::from_secs(601)));
        let progressing = |plan: &Plan| {
            let conditions = plan.deployment.status.clone().unwrap().conditions.unwrap();
            let found = conditions.into_iter().find(|condition| condition.type_ == "Progressing");
            found.map(|condition| (condition.status, condition.reason.unwrap()))
        };
        let is = |status: &str, reason: &str| Some((status.to_owned(), reason.to_owned()));
        assert_eq!(progressing(&first), is("True", "ReplicaSetUpdated"));
        deployment.status = first.deployment.status.clone();
        let later = "2026-01-01T01:10:01Z".parse().unwrap();
        let late = decide(&deployment, &stuck, |_| false, later);
        assert_eq!(progressing(&late), is("False", "ProgressDeadlineExceeded"));
        assert_eq!(late.next, None);
        deployment.status = late.deployment.status.clone();
        let done = [set(1, "new", 1, 1, at)];
        let done = decide(&deployment, &done, |_| false, later);
        assert_eq!(progressing(&done), is("True", "NewReplicaSetAvailable"));
        deployment.status = done.deployment.status.clone();
        let again = decide(&deployment, &stuck, |_| false, later);
        assert_eq!(progressing(&again), is("True", "NewReplicaSetAvailable"), "C-58");
        deployment.spec.as_mut().unwrap().progress_deadline_seconds = Some(i32::MAX);
        assert_eq!(progressing(&decide(&deployment, &stuck, |_| false, later)), None);
    }

    #[test]
    fn c_53_a_paused_deployment_makes_no_set_and_says_so() {
        let mut deployment = deployment(4, json!(1), json!(0));
        deployment.spec.as_mut().unwrap().paused = Some(true);
        let sets = [set(1, "old", 3, 3, (3, 4))];
        let plan = planned(&deployment, &sets);
        assert!(plan.create.is_none());
        assert_eq!(sizes(&plan, &sets), [4]);
        let conditions = plan.deployment.status.unwrap().conditions.unwrap();
        let paused = &conditions[0];
        assert_eq!(paused.reason.as_deref(), Some("DeploymentPaused"));
        assert_eq!(paused.message.as_deref(), Some("Deployment is paused"));
    }

    #[test]
    fn c_56_availability_is_judged_against_what_may_be_missing() {
        let sets = [set(1, "old", 1, 1, (4, 5)), set(2, "new", 4, 2, (4, 5))];
        let status = planned(&deployment(4, json!(1), json!(1)), &sets).deployment.status.unwrap();
        assert_eq!(status.replicas, Some(5));
        assert_eq!(status.updated_replicas, Some(4));
        assert_eq!(status.available_replicas, Some(3));
        assert_eq!(status.unavailable_replicas, Some(2));
        assert_eq!(status.terminating_replicas, Some(0));
        let conditions = status.conditions.unwrap();
        let available = conditions.iter().find(|c| c.type_ == "Available").unwrap();
        assert_eq!(available.reason.as_deref(), Some("MinimumReplicasAvailable"));
    }
}
