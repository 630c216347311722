//! Computes the status of a budget. Pure.

use crate::pods;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How long an eviction may take to become a deletion. Upstream: `DeletionTimeout`.
pub(super) const DELETION_MAX: SignedDuration = SignedDuration::from_mins(2);

const CONDITION: &str = "DisruptionAllowed";

/// The number of pods that a budget expects, and how many of them must be healthy.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub(super) struct Sums {
    pub(super) expected: i32,
    pub(super) desired: i32,
    /// Some pods have no controller and are not counted.
    pub(super) unmanaged: bool,
}

/// Pods that were evicted but not deleted yet.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Disrupted {
    pub(super) pods: BTreeMap<String, Time>,
    pub(super) not_deleted: Vec<String>,
    pub(super) check_again_in: Option<Duration>,
}

pub(super) struct Healthy {
    pub(super) current: i32,
    pub(super) disrupted: Disrupted,
}

/// The spec of a budget.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Expectation {
    Least(i32),
    LeastPercent(i64),
    Most(i32),
    MostPercent(i64),
}

pub(super) fn expectation(budget: &PodDisruptionBudget) -> Option<Expectation> {
    let spec = budget.spec.as_ref()?;
    let percent = |text: &str| text.strip_suffix('%')?.parse().ok();
    match (&spec.max_unavailable, &spec.min_available) {
        (Some(IntOrString::Int(count)), _) => Some(Expectation::Most(*count)),
        (Some(IntOrString::String(text)), _) => Some(Expectation::MostPercent(percent(text)?)),
        (None, Some(IntOrString::Int(count))) => Some(Expectation::Least(*count)),
        (None, Some(IntOrString::String(text))) => Some(Expectation::LeastPercent(percent(text)?)),
        (None, None) => None,
    }
}

impl Expectation {
    /// Whether the scales of the pods' owners are needed. A plain minimum does not need them.
    pub(super) fn counts_owners(&self) -> bool {
        !matches!(self, Expectation::Least(_))
    }

    /// Percentages are rounded up for both fields (C-214).
    pub(super) fn sums(&self, expected: usize) -> Sums {
        let expected = i32::try_from(expected).unwrap_or(i32::MAX);
        let part = |percent: i64| {
            let part = (i64::from(expected) * percent + 99).div_euclid(100);
            i32::try_from(part).unwrap_or(i32::MAX)
        };
        let desired = match self {
            Expectation::Least(count) => *count,
            Expectation::LeastPercent(percent) => part(*percent),
            Expectation::Most(count) => expected.saturating_sub(*count).max(0),
            Expectation::MostPercent(percent) => expected.saturating_sub(part(*percent)).max(0),
        };
        Sums { expected, desired, unmanaged: false }
    }
}

/// Entries that the eviction API wrote stay until they time out (C-141).
pub(super) fn disrupted(
    budget: &PodDisruptionBudget,
    pods: &[Arc<Pod>],
    now: Timestamp,
) -> Disrupted {
    let mut disrupted = Disrupted::default();
    let known = budget.status.as_ref().and_then(|status| status.disrupted_pods.as_ref());
    let Some(known) = known.filter(|known| !known.is_empty()) else { return disrupted };
    for pod in pods.iter().filter(|pod| !pods::is_being_deleted(pod)) {
        let name = pod.metadata.name.clone().unwrap_or_default();
        let Some(since) = known.get(&name) else { continue };
        let left = since
            .0
            .saturating_add(DELETION_MAX)
            .map_or(SignedDuration::ZERO, |until| until.duration_since(now));
        match Duration::try_from(left) {
            Ok(left) if !left.is_zero() => {
                disrupted.check_again_in =
                    Some(disrupted.check_again_in.map_or(left, |old| old.min(left)));
                disrupted.pods.insert(name, since.clone());
            }
            _ => disrupted.not_deleted.push(name),
        }
    }
    disrupted
}

pub(super) fn count_healthy(pods: &[Arc<Pod>], disrupted: &Disrupted) -> i32 {
    let healthy = pods.iter().filter(|pod| {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        pods::is_ready(pod) && !pods::is_being_deleted(pod) && !disrupted.pods.contains_key(name)
    });
    i32::try_from(healthy.count()).unwrap_or(i32::MAX)
}

/// The new status, if it differs.
pub(super) fn status(
    budget: &PodDisruptionBudget,
    sums: Sums,
    healthy: Healthy,
    now: Timestamp,
) -> Option<PodDisruptionBudgetStatus> {
    let spare = healthy.current.saturating_sub(sums.desired);
    let allowed = if sums.expected <= 0 { 0 } else { spare.max(0) };
    let before = budget.status.clone().unwrap_or_default();
    let (allows, reason) =
        if allowed > 0 { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
    let generation = budget.metadata.generation;
    let disrupted = healthy.disrupted.pods;
    let status = PodDisruptionBudgetStatus {
        current_healthy: Some(healthy.current),
        desired_healthy: Some(sums.desired),
        disrupted_pods: (!disrupted.is_empty()).then_some(disrupted),
        disruptions_allowed: Some(allowed),
        expected_pods: Some(sums.expected),
        observed_generation: generation,
        conditions: conditions(&before, allows, reason, "", generation, now),
    };
    let empty = |map: &BTreeMap<String, Time>| map.is_empty();
    let mut before = before;
    before.disrupted_pods.take_if(|map| empty(map));
    (status != before).then_some(status)
}

/// The status if the expected number of pods is unknown (C-140).
pub(super) fn failed(
    budget: &PodDisruptionBudget,
    why: &str,
    now: Timestamp,
) -> Option<PodDisruptionBudgetStatus> {
    let before = budget.status.clone().unwrap_or_default();
    let observed = before.observed_generation.or(Some(0));
    let status = PodDisruptionBudgetStatus {
        // These fields are required even before the first count.
        current_healthy: before.current_healthy.or(Some(0)),
        desired_healthy: before.desired_healthy.or(Some(0)),
        expected_pods: before.expected_pods.or(Some(0)),
        disruptions_allowed: Some(0),
        conditions: conditions(&before, "False", "SyncFailed", why, observed, now),
        ..before.clone()
    };
    (status != before).then_some(status)
}

/// Other conditions stay; the transition time changes only with the status.
fn conditions(
    before: &PodDisruptionBudgetStatus,
    status: &str,
    reason: &str,
    message: &str,
    generation: Option<i64>,
    now: Timestamp,
) -> Option<Vec<Condition>> {
    let mut all = before.conditions.clone().unwrap_or_default();
    let mut wanted = Condition {
        type_: CONDITION.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        observed_generation: generation,
        last_transition_time: Time(now),
    };
    match all.iter_mut().find(|condition| condition.type_ == CONDITION) {
        None => all.push(wanted),
        Some(there) => {
            if there.status == wanted.status {
                wanted.last_transition_time = there.last_transition_time.clone();
            }
            *there = wanted;
        }
    }
    Some(all)
}

/// The message has the selector in upstream's format.
pub(super) fn unmanaged_text(budget: &PodDisruptionBudget) -> String {
    let selector = budget.spec.as_ref().and_then(|spec| spec.selector.clone()).unwrap_or_default();
    let labels = selector.match_labels.iter().flatten();
    let labels: String = labels.map(|(key, value)| format!("{key}: {value},")).collect();
    let expressions = selector.match_expressions.iter().flatten().map(|expression| {
        let values = expression.values.iter().flatten().cloned().collect::<Vec<_>>().join(" ");
        format!(
            "LabelSelectorRequirement{{Key:{},Operator:{},Values:[{values}],}},",
            expression.key, expression.operator
        )
    });
    let expressions: String = expressions.collect();
    format!(
        "Pods selected by this PodDisruptionBudget (selector: &LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{{expressions}}},}}) were found to be unmanaged. As a result, the status of the PDB cannot be calculated correctly, which may result in undefined behavior. To account for these pods please set \".spec.minAvailable\" field of the PDB to an integer value."
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn budget(spec: Value, status: Value) -> PodDisruptionBudget {
        let meta = json!({ "name": "b", "generation": 3 });
        typed::from_value(json!({ "metadata": meta, "spec": spec, "status": status })).unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn pod(name: &str, ready: bool, ending: bool) -> Arc<Pod> {
        let pod = json!({
            "metadata": { "name": name, "deletionTimestamp": ending.then(|| at(0).to_string()) },
            "status": { "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }] },
        });
        Arc::new(typed::from_value(pod).unwrap())
    }

    #[test]
    fn c_139_c_214_desired_healthy_pods_by_spec() {
        for (spec, expected, desired) in [
            (json!({ "minAvailable": 2 }), 5, 2),
            (json!({ "minAvailable": "50%" }), 5, 3),
            (json!({ "maxUnavailable": 1 }), 5, 4),
            (json!({ "maxUnavailable": 9 }), 5, 0),
            (json!({ "maxUnavailable": "30%" }), 5, 3),
            (json!({ "maxUnavailable": "0%" }), 5, 5),
        ] {
            let wanted = expectation(&budget(spec.clone(), json!({}))).unwrap();
            assert_eq!(wanted.sums(expected).desired, desired, "{spec}");
        }
    }

    #[test]
    fn c_139_healthy_pods_beyond_the_desired_number_may_be_disrupted() {
        for (what, current, expected, desired, allowed, reason) in [
            ("spare", 3, 3, 2, 1, "SufficientPods"),
            ("none to spare", 2, 3, 2, 0, "InsufficientPods"),
            ("too few", 1, 3, 2, 0, "InsufficientPods"),
            ("no pods expected", 0, 0, 0, 0, "InsufficientPods"),
        ] {
            let healthy = Healthy { current, disrupted: Disrupted::default() };
            let sums = Sums { expected, desired, unmanaged: false };
            let before = budget(json!({}), Value::Null);
            let status = status(&before, sums, healthy, at(9)).unwrap();
            assert_eq!(status.disruptions_allowed, Some(allowed), "{what}");
            let condition = &status.conditions.as_ref().unwrap()[0];
            assert_eq!(
                (condition.reason.as_str(), condition.observed_generation),
                (reason, Some(3)),
                "{what}"
            );
            let settled = PodDisruptionBudget { status: Some(status), ..before };
            let healthy = Healthy { current, disrupted: Disrupted::default() };
            assert_eq!(
                super::status(&settled, sums, healthy, at(99)),
                None,
                "{what}: written once"
            );
        }
    }

    #[test]
    fn t_evict_12_c_141_evicted_pods_are_not_healthy_for_two_minutes() {
        let pods = [
            pod("a", true, false),
            pod("b", true, true),
            pod("c", true, false),
            pod("d", false, false),
        ];
        let status = json!({ "disruptedPods": {
            "a": at(100).to_string(), "b": at(100).to_string(),
            "c": at(0).to_string(), "gone": at(100).to_string(),
        }});
        let found = disrupted(&budget(json!({}), status), &pods, at(130));
        assert_eq!(
            found.pods.keys().collect::<Vec<_>>(),
            ["a"],
            "b is being deleted, gone is gone"
        );
        assert_eq!(found.not_deleted, ["c"]);
        assert_eq!(found.check_again_in, Some(Duration::from_secs(90)));
        assert_eq!(count_healthy(&pods, &found), 1, "c alone");
    }

    #[test]
    fn c_140_a_budget_with_an_unknown_number_of_pods_allows_no_disruption() {
        let before = budget(
            json!({}),
            json!({ "disruptionsAllowed": 2, "currentHealthy": 3,
            "desiredHealthy": 1, "expectedPods": 3, "observedGeneration": 2 }),
        );
        let status = failed(&before, "no scale", at(0)).unwrap();
        assert_eq!(status.disruptions_allowed, Some(0));
        let condition = &status.conditions.as_ref().unwrap()[0];
        assert_eq!(
            (condition.reason.as_str(), condition.message.as_str()),
            ("SyncFailed", "no scale")
        );
        assert_eq!(
            condition.observed_generation,
            Some(2),
            "the current generation was not observed"
        );
        let settled = PodDisruptionBudget { status: Some(status), ..before };
        assert_eq!(failed(&settled, "no scale", at(50)), None);
    }
}
