//! Decides one reconcile of an autoscaler and its target (C-131, C-134, C-136). Pure.

use super::limits::{self, Bounds, History, Limited};
use super::metric::{self, Failure, MetricResult, Usage};
use super::replicas::{ScaleTarget, Tolerance};
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

/// All that a decision depends on.
pub(super) struct Input<'a> {
    pub(super) scaler: &'a HorizontalPodAutoscaler,
    pub(super) scale: &'a Scale,
    pub(super) pods: Result<Vec<Arc<Pod>>, SelectorError>,
    pub(super) usage: Usage,
    pub(super) now: Timestamp,
}

/// Why the pods of the target cannot be determined.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SelectorError {
    pub(super) event: &'static str,
    pub(super) reason: &'static str,
    /// The message of the condition.
    pub(super) message: String,
    pub(super) error: String,
}

#[derive(Debug, PartialEq)]
pub(super) struct Plan {
    pub(super) rescale: Option<Rescale>,
    /// [`rescaled`] or [`refused`] add the result of scaling.
    pub(super) status: HorizontalPodAutoscalerStatus,
    /// Reasons and messages of warning events.
    pub(super) warnings: Vec<(&'static str, String)>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Rescale {
    pub(super) from: i32,
    pub(super) to: i32,
    pub(super) reason: String,
}

pub(super) fn decide(input: &Input<'_>, history: &mut History) -> Plan {
    let HorizontalPodAutoscaler { spec, status, .. } = input.scaler;
    let current = current(input.scale);
    let mut plan = Plan {
        rescale: None,
        status: HorizontalPodAutoscalerStatus {
            current_replicas: Some(current),
            current_metrics: None,
            ..status.clone().unwrap_or_default()
        },
        warnings: Vec::new(),
    };
    let got = "the HPA controller was able to get the target's current scale";
    plan.set(ABLE, true, ("SucceededGetScale", got), input.now);
    let min = spec.min_replicas.unwrap_or(1);
    let bounds = Bounds { current, min, max: spec.max_replicas };
    if current == 0 && min != 0 {
        let why = "scaling is disabled since the replica count of the target is zero";
        plan.set(ACTIVE, false, ("ScalingDisabled", why), input.now);
        plan.status.desired_replicas = current;
    } else if current > bounds.max {
        plan.scale(current, bounds.max, "Current number of replicas above Spec.MaxReplicas");
    } else if current < min {
        plan.scale(current, min, "Current number of replicas below Spec.MinReplicas");
    } else {
        by_metrics(input, history, bounds, &mut plan);
    }
    plan
}

pub(super) fn current(scale: &Scale) -> i32 {
    scale.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(0)
}

fn by_metrics(input: &Input<'_>, history: &mut History, bounds: Bounds, plan: &mut Plan) {
    let Some((wanted, name)) = recommend(input, bounds.current, plan) else { return };
    let behavior = input.scaler.spec.behavior.as_ref();
    let Limited { replicas, able, limited: (limited, why) } =
        limits::apply(history, behavior, bounds, wanted, input.now);
    plan.set(ABLE, true, able, input.now);
    plan.set(LIMITED, limited, why, input.now);
    plan.status.desired_replicas = replicas;
    if replicas != bounds.current {
        // The recommendation of the metrics is the reason, even if a limit reversed the direction.
        let reason = match wanted.cmp(&bounds.current) {
            std::cmp::Ordering::Greater => format!("{name} above target"),
            std::cmp::Ordering::Less => "All metrics below target".to_owned(),
            std::cmp::Ordering::Equal => String::new(),
        };
        plan.scale(bounds.current, replicas, reason);
    }
}

/// The highest recommendation of all metrics, and the name of that metric. If a metric fails it might have recommended
/// more, so the target is not scaled down.
fn recommend(input: &Input<'_>, current: i32, plan: &mut Plan) -> Option<(i32, String)> {
    let spec = &input.scaler.spec;
    let pods = match &input.pods {
        Ok(pods) => pods,
        Err(why) => {
            plan.warnings.push((why.event, why.error.clone()));
            plan.set(ACTIVE, false, (why.reason, &why.message), input.now);
            plan.give_up(input.scaler, why.error.clone());
            return None;
        }
    };
    let scaled = ScaleTarget { current, pods, tolerance: tolerance(spec), now: input.now };
    let namespace = input.scaler.metadata.namespace.as_deref().unwrap_or_default();
    let specs = spec.metrics.as_deref().unwrap_or_default();
    let mut most: Option<(i32, String)> = None;
    let mut failures: Vec<Failure> = Vec::new();
    let mut statuses: Vec<MetricStatus> = Vec::new();
    for spec in specs {
        match metric::evaluate(spec, &scaled, &input.usage, namespace) {
            Ok(MetricResult { replicas, name, status }) => {
                statuses.push(status);
                if most.as_ref().is_none_or(|(most, _)| replicas > *most) {
                    most = Some((replicas, name));
                }
            }
            Err(failure) => {
                // An empty entry: clients find the status of a metric by its position.
                statuses.push(MetricStatus::default());
                plan.warnings.push((failure.reason, failure.message.clone()));
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
            plan.set(ACTIVE, false, (first.reason, &message), input.now);
            let (count, all) = (failures.len(), specs.len());
            let first = &first.error;
            let error =
                format!("invalid metrics ({count} invalid out of {all}), first error is: {first}");
            plan.give_up(input.scaler, error);
            None
        }
        (_, Some((replicas, name))) => {
            let found =
                format!("the HPA was able to successfully calculate a replica count from {name}");
            plan.set(ACTIVE, true, ("ValidMetricFound", &found), input.now);
            Some((replicas, name))
        }
        // No metrics at all; the server rejects such autoscalers.
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
        self.warnings.push(("FailedComputeMetricsReplicas", error));
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

/// C-136: there is no scale to target at.
pub(super) fn scale_unknown(
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
