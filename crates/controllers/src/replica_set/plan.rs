//! Decides which pods to create and delete, and the status. Pure.

use super::kinds::Replicated;
use crate::workload::{
    BURST, Candidate, count, from_template, is_active, is_available, is_being_deleted, is_ready,
    is_terminating, next_availability, some_count, sort_for_deletion,
};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ReplicaSetCondition, ReplicaSetStatus};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Related pods (T-CTRL-5) per node.
pub(super) type RelatedPods = BTreeMap<String, usize>;

#[derive(Debug)]
pub(super) struct Plan {
    pub(super) missing: Vec<Pod>,
    pub(super) surplus: Vec<Arc<Pod>>,
    pub(super) status: ReplicaSetStatus,
    /// When the next pod becomes available.
    pub(super) next: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Failure {
    Create,
    Delete,
}

const REPLICA_FAILURE: &str = "ReplicaFailure";

impl Plan {
    /// `related` is called only if pods must be deleted.
    pub(super) fn decide<S: Replicated>(
        set: &S,
        pods: &[Arc<Pod>],
        related: impl FnOnce() -> RelatedPods,
        now: Timestamp,
    ) -> Plan {
        let active: Vec<&Arc<Pod>> = pods.iter().filter(|pod| is_active(pod)).collect();
        let wanted = usize::try_from(set.replicas()).unwrap_or(0);
        let mut plan = Plan {
            missing: Vec::new(),
            surplus: Vec::new(),
            status: counts(set, pods, now),
            next: next_availability(
                active.iter().map(|pod| pod.as_ref()),
                set.min_ready_seconds(),
                now,
            ),
        };
        if is_being_deleted(set) {
            return plan; // A set that is being deleted manages no pods (T-CTRL-7).
        }
        if active.len() < wanted {
            let missing = (wanted - active.len()).min(BURST);
            let template = set.template().cloned().unwrap_or_default();
            plan.missing = vec![from_template(set, &template); missing];
        } else if active.len() > wanted {
            let surplus = (active.len() - wanted).min(BURST);
            plan.surplus = victims(&active, surplus, related, now);
        }
        plan
    }
}

fn victims(
    active: &[&Arc<Pod>],
    surplus: usize,
    related: impl FnOnce() -> RelatedPods,
    now: Timestamp,
) -> Vec<Arc<Pod>> {
    if surplus == active.len() {
        return active.iter().map(|pod| Arc::clone(pod)).collect();
    }
    let related = related();
    let ranked = active.iter().map(|pod| Candidate {
        pod: Arc::clone(pod),
        related_on_node: related.get(node(pod)).copied().unwrap_or(0),
    });
    let mut ranked: Vec<Candidate> = ranked.collect();
    sort_for_deletion(&mut ranked, now);
    ranked.into_iter().take(surplus).map(|candidate| candidate.pod).collect()
}

pub(super) fn node(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default()
}

/// C-20: the status counts active owned pods.
fn counts<S: Replicated>(set: &S, pods: &[Arc<Pod>], now: Timestamp) -> ReplicaSetStatus {
    let active = || pods.iter().filter(|pod| is_active(pod));
    let wanted = set.template().and_then(|template| template.metadata.as_ref()?.labels.as_ref());
    let fully_labelled = |pod: &Pod| {
        let labels = pod.metadata.labels.as_ref();
        let has = |(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value);
        wanted.into_iter().flatten().all(has)
    };
    let seconds = set.min_ready_seconds();
    let available = active().filter(|pod| is_available(pod, seconds, now)).count();
    let terminating = count(pods.iter().filter(|pod| is_terminating(pod)).count());
    ReplicaSetStatus {
        replicas: count(active().count()),
        fully_labeled_replicas: some_count(count(active().filter(|p| fully_labelled(p)).count())),
        ready_replicas: some_count(count(active().filter(|pod| is_ready(pod)).count())),
        available_replicas: some_count(count(available)),
        terminating_replicas: S::TELLS_TERMINATING.then_some(terminating),
        observed_generation: set.metadata().generation,
        conditions: set.status().conditions,
    }
}

/// Adds or removes the condition `ReplicaFailure` (C-21).
pub(super) fn status<S: Replicated>(
    set: &S,
    mut status: ReplicaSetStatus,
    failure: Option<(Failure, String)>,
    now: Timestamp,
) -> ReplicaSetStatus {
    let mut conditions = status.conditions.take().unwrap_or_default();
    let is_failure = |condition: &ReplicaSetCondition| condition.type_ == REPLICA_FAILURE;
    match failure {
        // An existing condition stays unchanged, including its message.
        Some(_) if conditions.iter().any(is_failure) => (),
        Some((failure, message)) => conditions.push(ReplicaSetCondition {
            type_: REPLICA_FAILURE.to_owned(),
            status: "True".to_owned(),
            reason: Some(match failure {
                Failure::Create => "FailedCreate".to_owned(),
                Failure::Delete => "FailedDelete".to_owned(),
            }),
            message: Some(message),
            last_transition_time: Some(Time(now)),
        }),
        None => conditions.retain(|condition| !is_failure(condition)),
    }
    let untouched = set.status().conditions;
    let same = conditions.as_slice() == untouched.as_deref().unwrap_or_default();
    status.conditions = if same { untouched } else { Some(conditions) };
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::apps::v1::ReplicaSet;
    use k8s_openapi::api::core::v1::ReplicationController;
    use serde_json::{Value, json};

    const NOW: &str = "2026-01-01T00:01:00Z";

    fn set<S: Replicated>(replicas: i32) -> S {
        typed::from_value(json!({
            "metadata": { "namespace": "a", "name": "s", "uid": "u", "generation": 3 },
            "spec": { "replicas": replicas, "minReadySeconds": 10,
                "template": { "metadata": { "labels": { "app": "web", "tier": "x" } },
                              "spec": { "containers": [] } },
                "selector": {} },
        }))
        .unwrap()
    }

    /// One letter per pod: a(ctive), r(eady just now), v (available), t(erminating and ready), T (terminating, but
    /// failed), f(ailed), l (without all labels).
    fn pods(what: &str) -> Vec<Arc<Pod>> {
        what.chars().enumerate().map(|(number, what)| Arc::new(pod(number, what))).collect()
    }

    fn pod(number: usize, what: char) -> Pod {
        let since =
            if matches!(what, 'v' | 't') { "2026-01-01T00:00:00Z" } else { "2026-01-01T00:00:55Z" };
        let ready = if matches!(what, 'r' | 'v' | 't') { "True" } else { "False" };
        let deleted = matches!(what, 't' | 'T').then_some("2026-01-01T00:00:59Z");
        let phase = if matches!(what, 'f' | 'T') { "Failed" } else { "Running" };
        let tier = if what == 'l' { Value::Null } else { json!("x") };
        let mut labels = json!({ "app": "web", "tier": tier });
        labels.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        typed::from_value(json!({
            "metadata": { "name": number.to_string(), "uid": number.to_string(),
                          "labels": labels, "deletionTimestamp": deleted },
            "spec": { "nodeName": "n", "containers": [] },
            "status": { "phase": phase, "conditions": [
                { "type": "Ready", "status": ready, "lastTransitionTime": since }] },
        }))
        .unwrap()
    }

    fn decide(replicas: i32, what: &str) -> Plan {
        let set = set::<ReplicaSet>(replicas);
        Plan::decide(&set, &pods(what), RelatedPods::new, NOW.parse().unwrap())
    }

    #[test]
    fn c_19_t_ctrl_1_only_active_pods_count_as_replicas() {
        let cases = [
            (3, "", 3, 0),
            (3, "aaa", 0, 0),
            (3, "aat", 1, 0),
            (3, "aaf", 1, 0),
            (3, "aaTT", 1, 0),
            (1, "aar", 0, 2),
            (0, "aat", 0, 2),
            (600, "", 500, 0),
        ];
        for (replicas, what, missing, surplus) in cases {
            let plan = decide(replicas, what);
            let found = (plan.missing.len(), plan.surplus.len());
            assert_eq!(found, (missing, surplus), "{replicas} of {what}");
        }
    }

    #[test]
    fn c_20_t_ctrl_2_t_ctrl_3_the_status_counts_active_and_terminating_pods() {
        let status = decide(5, "arvvltTf").status;
        assert_eq!(status.replicas, 5);
        assert_eq!(status.fully_labeled_replicas, Some(4));
        assert_eq!(status.ready_replicas, Some(3));
        assert_eq!(status.available_replicas, Some(2));
        assert_eq!(status.terminating_replicas, Some(1));
        assert_eq!(status.observed_generation, Some(3));
        let set = set::<ReplicationController>(1);
        let plan = Plan::decide(&set, &pods("t"), RelatedPods::new, NOW.parse().unwrap());
        assert_eq!(plan.status.terminating_replicas, None);
    }

    #[test]
    fn c_12_next_reconcile_is_when_the_next_pod_becomes_available() {
        assert_eq!(decide(2, "rv").next, Some(Duration::from_secs(5)));
        assert_eq!(decide(2, "vv").next, None);
    }

    /// C-24: a ReplicaSet that is being deleted only reports its pods.
    #[test]
    fn t_ctrl_7_a_set_being_deleted_manages_no_pods() {
        let mut set = set::<ReplicaSet>(3);
        set.metadata.deletion_timestamp = Some(Time(NOW.parse().unwrap()));
        let plan = Plan::decide(&set, &pods("a"), RelatedPods::new, NOW.parse().unwrap());
        assert!(plan.missing.is_empty() && plan.surplus.is_empty());
        assert_eq!(plan.status.replicas, 1);
    }

    #[test]
    fn t_ctrl_5_the_node_with_most_related_pods_loses_one() {
        let mut all = pods("vv");
        Arc::make_mut(&mut all[1]).spec.as_mut().unwrap().node_name = Some("m".into());
        let related = || RelatedPods::from([("n".to_owned(), 1), ("m".to_owned(), 4)]);
        let plan = Plan::decide(&set::<ReplicaSet>(1), &all, related, NOW.parse().unwrap());
        assert_eq!(plan.surplus[0].metadata.name.as_deref(), Some("1"));
    }

    /// C-17: a condition with the same status keeps its time and message.
    #[test]
    fn c_21_replica_failure_is_set_once_and_removed_after_success() {
        let now = NOW.parse().unwrap();
        let mut set = set::<ReplicaSet>(3);
        let counted = decide(3, "a").status;
        let failed = status(&set, counted.clone(), Some((Failure::Create, "no".into())), now);
        let condition = failed.conditions.as_ref().unwrap()[0].clone();
        assert_eq!(condition.reason.as_deref(), Some("FailedCreate"));
        assert_eq!(condition.message.as_deref(), Some("no"));
        set.status = Some(failed.clone());
        let again = status(&set, failed.clone(), Some((Failure::Delete, "else".into())), now);
        assert_eq!(again.conditions.unwrap(), [condition]);
        let healed = status(&set, failed, None, now);
        assert_eq!(healed.conditions, Some(Vec::new()));
    }
}
