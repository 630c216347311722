//! Computes how many pods would bring a metric to its target (C-132, C-133). Pure.
//!
//! Pods without samples count so that they can only reduce a change: as fully busy when scaling down, as idle when
//! scaling up.

use crate::pods;
use api::quantity::Quantity;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, Pod};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Upstream: `--horizontal-pod-autoscaler-cpu-initialization-period`.
const INITIALIZATION: SignedDuration = SignedDuration::from_mins(5);
/// Upstream: `--horizontal-pod-autoscaler-initial-readiness-delay`.
const FIRST_READINESS: SignedDuration = SignedDuration::from_secs(30);
/// Upstream: `--horizontal-pod-autoscaler-tolerance`.
const TOLERANCE: f64 = 0.1;

/// The usage of a pod in thousandths.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Sample {
    pub(super) value: i64,
    pub(super) at: Timestamp,
    pub(super) window: SignedDuration,
}

/// Samples by the name of the pod.
pub(super) type Samples = BTreeMap<String, Sample>;

/// How far a metric may be from its target without scaling.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Tolerance {
    pub(super) up: f64,
    pub(super) down: f64,
}

impl Default for Tolerance {
    fn default() -> Self {
        Tolerance { up: TOLERANCE, down: TOLERANCE }
    }
}

impl Tolerance {
    fn holds(self, ratio: f64) -> bool {
        (1.0 - self.down..=1.0 + self.up).contains(&ratio)
    }
}

/// The target and its pods.
pub(super) struct ScaleTarget<'a> {
    /// The current `spec.replicas` of the target.
    pub(super) current: i32,
    pub(super) pods: &'a [Arc<Pod>],
    pub(super) tolerance: Tolerance,
    pub(super) now: Timestamp,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Proposal {
    pub(super) replicas: i32,
    /// Percent of the request, for metrics with that target.
    pub(super) utilization: Option<i32>,
    /// Thousandths per pod.
    pub(super) average: i64,
}

/// For a target in percent of the requests of pods.
pub(super) fn by_utilization(
    scaled: &ScaleTarget<'_>,
    samples: &Samples,
    resource: &str,
    container: Option<&str>,
    target: i32,
) -> Result<Proposal, String> {
    let requests = requests(scaled.pods, resource, container)?;
    let request = |pod: &str| requests.get(pod).copied().unwrap_or(0);
    let measure = |values: &Values<'_>| {
        let known = values.iter().filter(|(pod, _)| requests.contains_key(*pod));
        let (mut used, mut requested, mut count) = (0_i64, 0_i64, 0_i64);
        for (pod, value) in known {
            used = used.saturating_add(*value);
            requested = requested.saturating_add(request(pod));
            count += 1;
        }
        if requested == 0 {
            return Err("no metrics returned matched known pods".to_owned());
        }
        let percent = i128::from(used) * 100 / i128::from(requested);
        let percent = i32::try_from(percent).unwrap_or(i32::MAX);
        let ratio = f64::from(percent) / f64::from(target);
        Ok(Measured { ratio, utilization: Some(percent), average: used / count })
    };
    // The whole request, or the target if that is more.
    let busy = |pod: &str| request(pod).saturating_mul(i64::from(target.max(100))) / 100;
    propose(scaled, samples, resource, measure, busy)
}

/// For a target amount per pod, in thousandths.
pub(super) fn by_average(
    scaled: &ScaleTarget<'_>,
    samples: &Samples,
    resource: &str,
    target: i64,
) -> Result<Proposal, String> {
    let measure = |values: &Values<'_>| {
        let sum: i64 = values.values().fold(0, |sum, value| sum.saturating_add(*value));
        let average = sum / i64::try_from(values.len().max(1)).unwrap_or(i64::MAX);
        Ok(Measured { ratio: average as f64 / target as f64, utilization: None, average })
    };
    propose(scaled, samples, resource, measure, |_| target)
}

type Values<'a> = BTreeMap<&'a str, i64>;

struct Measured {
    ratio: f64,
    utilization: Option<i32>,
    average: i64,
}

fn propose<'a>(
    scaled: &ScaleTarget<'a>,
    samples: &'a Samples,
    resource: &str,
    measure: impl Fn(&Values<'_>) -> Result<Measured, String>,
    busy: impl Fn(&str) -> i64,
) -> Result<Proposal, String> {
    if scaled.pods.is_empty() {
        return Err("no pods returned by selector while calculating replica count".to_owned());
    }
    let classes = Classes::of(scaled, samples, resource);
    let counted = samples.iter().filter(|(pod, _)| !classes.is_left_out(pod));
    let mut values: Values<'_> = counted.map(|(pod, s)| (pod.as_str(), s.value)).collect();
    if values.is_empty() {
        return Err("did not receive metrics for targeted pods (pods might be unready)".to_owned());
    }
    let Measured { ratio, utilization, average } = measure(&values)?;
    let proposal = |replicas| Ok(Proposal { replicas, utilization, average });

    let starting = !classes.unready.is_empty() && ratio > 1.0;
    if !starting && classes.missing.is_empty() {
        return match scaled.tolerance.holds(ratio) {
            true => proposal(scaled.current),
            false => proposal(ceil(ratio, classes.ready)),
        };
    }
    for pod in &classes.missing {
        match ratio {
            _ if ratio < 1.0 => values.insert(pod, busy(pod)),
            _ if ratio > 1.0 => values.insert(pod, 0),
            _ => None,
        };
    }
    if starting {
        values.extend(classes.unready.iter().map(|pod| (*pod, 0)));
    }
    let corrected = measure(&values)?.ratio;
    let turned = (ratio < 1.0 && corrected > 1.0) || (ratio > 1.0 && corrected < 1.0);
    if scaled.tolerance.holds(corrected) || turned {
        return proposal(scaled.current);
    }
    let replicas = ceil(corrected, values.len());
    let turned = (corrected < 1.0 && replicas > scaled.current)
        || (corrected > 1.0 && replicas < scaled.current);
    proposal(if turned { scaled.current } else { replicas })
}

fn ceil(ratio: f64, count: usize) -> i32 {
    (ratio * count as f64).ceil() as i32
}

/// The pods by how they count.
#[derive(Default)]
struct Classes<'a> {
    ready: usize,
    /// Their usage is not that of a working pod.
    unready: BTreeSet<&'a str>,
    /// They have no sample.
    missing: BTreeSet<&'a str>,
    /// Terminating or failed.
    gone: BTreeSet<&'a str>,
}

impl<'a> Classes<'a> {
    fn of(scaled: &ScaleTarget<'a>, samples: &Samples, resource: &str) -> Self {
        let mut classes = Classes::default();
        for pod in scaled.pods {
            let name = name(pod);
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            if pods::is_being_deleted(pod) || phase == Some("Failed") {
                classes.gone.insert(name);
            } else if phase == Some("Pending") {
                classes.unready.insert(name);
            } else {
                match samples.get(name) {
                    None => classes.missing.insert(name),
                    Some(sample) if resource == "cpu" && is_starting(pod, sample, scaled.now) => {
                        classes.unready.insert(name)
                    }
                    Some(_) => {
                        classes.ready += 1;
                        continue;
                    }
                };
            }
        }
        classes
    }

    fn is_left_out(&self, pod: &str) -> bool {
        self.unready.contains(pod) || self.gone.contains(pod)
    }
}

/// Whether the CPU usage of a pod is that of its startup, which does not reflect its load.
fn is_starting(pod: &Pod, sample: &Sample, now: Timestamp) -> bool {
    let started = pod.status.as_ref().and_then(|status| status.start_time.as_ref());
    let (Some(ready), Some(started)) = (pods::condition(pod, "Ready"), started) else {
        return true;
    };
    let not_ready = ready.status == "False";
    let turned = ready.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
    match after(started.0, INITIALIZATION) > now {
        true => not_ready || sample.at < after(turned, sample.window),
        // The pod has never been ready.
        false => not_ready && after(started.0, FIRST_READINESS) > turned,
    }
}

/// Saturates, because times in a status or sample can be arbitrarily late.
fn after(time: Timestamp, more: SignedDuration) -> Timestamp {
    time.saturating_add(more).unwrap_or(time)
}

fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// Requests in thousandths, by pod.
fn requests<'a>(
    pods: &'a [Arc<Pod>],
    resource: &str,
    container: Option<&str>,
) -> Result<BTreeMap<&'a str, i64>, String> {
    let mut requests = BTreeMap::new();
    for pod in pods {
        requests.insert(name(pod), request(pod, resource, container)?);
    }
    Ok(requests)
}

fn request(pod: &Pod, resource: &str, container: Option<&str>) -> Result<i64, String> {
    let Some(spec) = &pod.spec else { return Ok(0) };
    let whole = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    if let Some(amount) = whole.and_then(|whole| whole.get(resource))
        && container.is_none()
    {
        return Ok(milli(&amount.0));
    }
    let sidecars = spec.init_containers.iter().flatten();
    let sidecars = sidecars.filter(|one| one.restart_policy.as_deref() == Some("Always"));
    let wanted = |one: &&Container| container.is_none_or(|name| name == one.name);
    let mut sum = 0_i64;
    for one in spec.containers.iter().chain(sidecars).filter(wanted) {
        let requests = one.resources.as_ref().and_then(|resources| resources.requests.as_ref());
        let Some(amount) = requests.and_then(|requests| requests.get(resource)) else {
            let (container, pod) = (&one.name, name(pod));
            return Err(format!(
                "missing request for {resource} in container {container} of Pod {pod}"
            ));
        };
        sum = sum.saturating_add(milli(&amount.0));
    }
    Ok(sum)
}

/// Zero if it cannot be parsed; the server rejects such amounts.
pub(super) fn milli(amount: &str) -> i64 {
    Quantity::parse(amount).map_or(0, |amount| amount.milli_value())
}

#[cfg(test)]
mod tests;
