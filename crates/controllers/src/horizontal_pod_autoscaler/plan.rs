//! What a look at an autoscaler and its target leads to (C-131, C-134, C-136). Pure.

use super::limits::{self, Bounds, Limited, Memory};
use super::metric::{self, Answer, Failure, Figures};
use super::replicas::{Look, Tolerance};
use api::quantity::Quantity;
use jiff::Timestamp;
use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::api::autoscaling::v2::{
    HPAScalingRules, HorizontalPodAutoscaler, HorizontalPodAutoscalerCondition,
    HorizontalPodAutoscalerSpec, HorizontalPodAutoscalerStatus, MetricStatus,
};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::sync::Arc;

const ABLE: &str = "AbleToScale";
const ACTIVE: &str = "ScalingActive";
const LIMITED: &str = "ScalingLimited";

/// What is looked at.
pub(super) struct Seen<'a> {
    pub(super) scaler: &'a HorizontalPodAutoscaler,
    pub(super) scale: &'a Scale,
    pub(super) pods: Result<Vec<Arc<Pod>>, Unselected>,
    pub(super) figures: Figures,
    pub(super) now: Timestamp,
}

/// Why it is not known which pods are meant.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Unselected {
    pub(super) event: &'static str,
    pub(super) reason: &'static str,
    /// Of the condition.
    pub(super) message: String,
    pub(super) error: String,
}

#[derive(Debug, PartialEq)]
pub(super) struct Plan {
    pub(super) rescale: Option<Rescale>,
    /// If the target is not scaled, or is. What came of it is added by [`rescaled`] or [`refused`].
    pub(super) status: HorizontalPodAutoscalerStatus,
    /// Reasons and messages of warnings.
    pub(super) said: Vec<(&'static str, String)>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Rescale {
    pub(super) from: i32,
    pub(super) to: i32,
    pub(super) reason: String,
}

pub(super) fn decide(seen: &Seen<'_>, memory: &mut Memory) -> Plan {
    let HorizontalPodAutoscaler { spec, status, .. } = seen.scaler;
    let current = current(seen.scale);
    let mut plan = Plan {
        rescale: None,
        status: HorizontalPodAutoscalerStatus {
            current_replicas: Some(current),
            current_metrics: None,
            ..status.clone().unwrap_or_default()
        },
        said: Vec::new(),
    };
    let got = "the HPA controller was able to get the target's current scale";
    plan.set(ABLE, true, ("SucceededGetScale", got), seen.now);
    let min = spec.min_replicas.unwrap_or(1);
    let bounds = Bounds { current, min, max: spec.max_replicas };
    if current == 0 && min != 0 {
        let why = "scaling is disabled since the replica count of the target is zero";
        plan.set(ACTIVE, false, ("ScalingDisabled", why), seen.now);
        plan.status.desired_replicas = current;
    } else if current > bounds.max {
        plan.scale(current, bounds.max, "Current number of replicas above Spec.MaxReplicas");
    } else if current < min {
        plan.scale(current, min, "Current number of replicas below Spec.MinReplicas");
    } else {
        by_metrics(seen, memory, bounds, &mut plan);
    }
    plan
}

pub(super) fn current(scale: &Scale) -> i32 {
    scale.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(0)
}

fn by_metrics(seen: &Seen<'_>, memory: &mut Memory, bounds: Bounds, plan: &mut Plan) {
    let Some((wanted, name)) = recommend(seen, bounds.current, plan) else { return };
    let behavior = seen.scaler.spec.behavior.as_ref();
    let Limited { replicas, able, limited: (limited, why) } =
        limits::apply(memory, behavior, bounds, wanted, seen.now);
    plan.set(ABLE, true, able, seen.now);
    plan.set(LIMITED, limited, why, seen.now);
    plan.status.desired_replicas = replicas;
    if replicas != bounds.current {
        // What the metrics asked for is the reason, also where a limit turned it around.
        let reason = match wanted.cmp(&bounds.current) {
            std::cmp::Ordering::Greater => format!("{name} above target"),
            std::cmp::Ordering::Less => "All metrics below target".to_owned(),
            std::cmp::Ordering::Equal => String::new(),
        };
        plan.scale(bounds.current, replicas, reason);
    }
}

/// The most that any metric asks for, and its name. A metric that says nothing might have asked for
/// more: so then the target is not made smaller.
fn recommend(seen: &Seen<'_>, current: i32, plan: &mut Plan) -> Option<(i32, String)> {
    let spec = &seen.scaler.spec;
    let pods = match &seen.pods {
        Ok(pods) => pods,
        Err(why) => {
            plan.said.push((why.event, why.error.clone()));
            plan.set(ACTIVE, false, (why.reason, &why.message), seen.now);
            plan.give_up(seen.scaler, why.error.clone());
            return None;
        }
    };
    let look = Look { current, pods, tolerance: tolerance(spec), now: seen.now };
    let namespace = seen.scaler.metadata.namespace.as_deref().unwrap_or_default();
    let specs = spec.metrics.as_deref().unwrap_or_default();
    let mut most: Option<(i32, String)> = None;
    let mut failures: Vec<Failure> = Vec::new();
    let mut statuses: Vec<MetricStatus> = Vec::new();
    for spec in specs {
        match metric::evaluate(spec, &look, &seen.figures, namespace) {
            Ok(Answer { replicas, name, status }) => {
                statuses.push(status);
                if most.as_ref().is_none_or(|(most, _)| replicas > *most) {
                    most = Some((replicas, name));
                }
            }
            Err(failure) => {
                // Its place is kept: clients find a metric's status by the place of the metric.
                statuses.push(MetricStatus::default());
                plan.said.push((failure.reason, failure.message.clone()));
                failures.push(failure);
            }
        }
    }
    plan.status.current_metrics = Some(statuses);
    let blocked = most.as_ref().is_none_or(|(most, _)| *most < current);
    match (failures.first(), most) {
        (Some(first), _) if blocked => {
            let message =
                format!("the HPA was unable to compute the replica count: {}", first.message);
            plan.set(ACTIVE, false, (first.reason, &message), seen.now);
            let (count, all) = (failures.len(), specs.len());
            let first = &first.error;
            let error =
                format!("invalid metrics ({count} invalid out of {all}), first error is: {first}");
            plan.give_up(seen.scaler, error);
            None
        }
        (_, Some((replicas, name))) => {
            let found =
                format!("the HPA was able to successfully calculate a replica count from {name}");
            plan.set(ACTIVE, true, ("ValidMetricFound", &found), seen.now);
            Some((replicas, name))
        }
        // No metrics at all; the server lets no such autoscaler in.
        (_, None) => None,
    }
}

fn tolerance(spec: &HorizontalPodAutoscalerSpec) -> Tolerance {
    let default = Tolerance::default();
    let of = |rules: Option<&HPAScalingRules>| {
        let amount = Quantity::parse(&rules?.tolerance.as_ref()?.0).ok()?;
        Some(amount.milli_value() as f64 / 1000.0)
    };
    let behavior = spec.behavior.as_ref();
    Tolerance {
        up: of(behavior.and_then(|both| both.scale_up.as_ref())).unwrap_or(default.up),
        down: of(behavior.and_then(|both| both.scale_down.as_ref())).unwrap_or(default.down),
    }
}

impl Plan {
    fn set(&mut self, type_: &str, is: bool, why: (&str, &str), now: Timestamp) {
        set(&mut self.status, type_, is, why, now);
    }

    fn scale(&mut self, from: i32, to: i32, reason: impl Into<String>) {
        self.status.desired_replicas = to;
        self.rescale = Some(Rescale { from, to, reason: reason.into() });
    }

    /// Nothing is known that could be wanted, so what was wanted stays.
    fn give_up(&mut self, scaler: &HorizontalPodAutoscaler, error: String) {
        let before = scaler.status.as_ref();
        self.status.desired_replicas = before.map_or(0, |status| status.desired_replicas);
        self.said.push(("FailedComputeMetricsReplicas", error));
    }
}

/// C-137: the target took its new size.
pub(super) fn rescaled(status: &mut HorizontalPodAutoscalerStatus, to: i32, now: Timestamp) {
    let done = format!("the HPA controller was able to update the target scale to {to}");
    set(status, ABLE, true, ("SucceededRescale", &done), now);
    status.last_scale_time = Some(Time(now));
}

/// It did not.
pub(super) fn refused(
    status: &mut HorizontalPodAutoscalerStatus,
    before: Option<&HorizontalPodAutoscalerStatus>,
    error: &str,
    now: Timestamp,
) {
    let why = format!("the HPA controller was unable to update the target scale: {error}");
    set(status, ABLE, false, ("FailedUpdateScale", &why), now);
    status.desired_replicas = before.map_or(0, |before| before.desired_replicas);
    status.current_metrics = before.and_then(|before| before.current_metrics.clone());
}

/// C-136: there is no scale to look at.
pub(super) fn unseen(
    before: Option<&HorizontalPodAutoscalerStatus>,
    error: &str,
    now: Timestamp,
) -> HorizontalPodAutoscalerStatus {
    let mut status = before.cloned().unwrap_or_default();
    let why = format!("the HPA controller was unable to get the target's current scale: {error}");
    set(&mut status, ABLE, false, ("FailedGetScale", &why), now);
    status
}

fn set(
    status: &mut HorizontalPodAutoscalerStatus,
    type_: &str,
    is: bool,
    (reason, message): (&str, &str),
    now: Timestamp,
) {
    let conditions = status.conditions.get_or_insert_default();
    let place = conditions.iter().position(|condition| condition.type_ == type_);
    let place = place.unwrap_or_else(|| {
        let type_ = type_.to_owned();
        conditions.push(HorizontalPodAutoscalerCondition { type_, ..Default::default() });
        conditions.len() - 1
    });
    let condition = &mut conditions[place];
    let value = if is { "True" } else { "False" };
    if condition.status != value {
        condition.last_transition_time = Some(Time(now));
    }
    condition.status = value.to_owned();
    condition.reason = Some(reason.to_owned());
    condition.message = Some(message.to_owned());
}

#[cfg(test)]
mod tests;
