//! How far and how fast a target may be scaled (C-135), and what must be remembered for it. Pure.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::autoscaling::v2::{HPAScalingRules, HorizontalPodAutoscalerBehavior};

/// Upstream: `--horizontal-pod-autoscaler-downscale-stabilization`.
const DOWN_WINDOW: SignedDuration = SignedDuration::from_mins(5);
/// What older looks said is of no use to any window or period that the API allows.
const KEPT: SignedDuration = SignedDuration::from_hours(1);
/// An hour of looks, and some more because of changes.
const REMEMBERED_MAX: usize = 512;

/// Without a behavior, at one look: twice as many, and four in any case.
const UP_FACTOR: i32 = 2;
const UP_MIN: i32 = 4;

/// Of one autoscaler. It is not stored: after a restart the current size counts as recommended, so
/// that nothing shrinks before a whole window was seen.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Memory {
    /// What was recommended when, before any limit.
    recommended: Vec<(Timestamp, i32)>,
    /// By how much the target was scaled when.
    scaled: Vec<(Timestamp, i32)>,
}

impl Memory {
    pub(super) fn starting_at(current: i32, now: Timestamp) -> Memory {
        Memory { recommended: vec![(now, current)], scaled: Vec::new() }
    }

    pub(super) fn scaled(&mut self, from: i32, to: i32, now: Timestamp) {
        remember(&mut self.scaled, to - from, now);
    }

    /// By how much it was scaled within that time.
    fn change_within(&self, seconds: i32, now: Timestamp) -> i32 {
        let since = now - SignedDuration::from_secs(seconds.into());
        self.scaled.iter().filter(|(at, _)| *at > since).map(|(_, by)| by).sum()
    }
}

fn remember(all: &mut Vec<(Timestamp, i32)>, value: i32, now: Timestamp) {
    all.retain(|(at, _)| *at >= now - KEPT);
    if all.len() >= REMEMBERED_MAX {
        all.remove(0);
    }
    all.push((now, value));
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) current: i32,
    pub(super) min: i32,
    pub(super) max: i32,
}

/// Reason and message of a condition.
pub(super) type Why = (&'static str, &'static str);

#[derive(Debug, PartialEq)]
pub(super) struct Limited {
    pub(super) replicas: i32,
    /// Of AbleToScale, which is True.
    pub(super) able: Why,
    /// Of ScalingLimited, and whether it is.
    pub(super) limited: (bool, Why),
}

const READY: Why = ("ReadyForNewScale", "recommended size matches current size");
const UP_STABILIZED: Why = (
    "ScaleUpStabilized",
    "recent recommendations were lower than current one, applying the lowest recent recommendation",
);
const DOWN_STABILIZED: Why = (
    "ScaleDownStabilized",
    "recent recommendations were higher than current one, applying the highest recent recommendation",
);
const WITHIN: Why = ("DesiredWithinRange", "the desired count is within the acceptable range");
const TOO_MANY: Why =
    ("TooManyReplicas", "the desired replica count is more than the maximum replica count");
const TOO_FEW: Why =
    ("TooFewReplicas", "the desired replica count is less than the minimum replica count");
const UP_LIMIT: Why =
    ("ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate");
const DOWN_LIMIT: Why = (
    "ScaleDownLimit",
    "the desired replica count is decreasing faster than the maximum scale rate",
);

/// What becomes of a recommendation.
pub(super) fn apply(
    memory: &mut Memory,
    behavior: Option<&HorizontalPodAutoscalerBehavior>,
    bounds: Bounds,
    wanted: i32,
    now: Timestamp,
) -> Limited {
    let rules = behavior.map(|behavior| {
        let rules = |rules: &Option<HPAScalingRules>| rules.clone().unwrap_or_default();
        (rules(&behavior.scale_up), rules(&behavior.scale_down))
    });
    let (stable, stabilized) = match &rules {
        None => (highest(memory, DOWN_WINDOW, wanted, now), DOWN_STABILIZED),
        Some((up, down)) => stabilize(memory, up, down, bounds.current, wanted, now),
    };
    remember(&mut memory.recommended, wanted, now);
    let (replicas, why) = match &rules {
        None => plainly(bounds, stable),
        Some((up, down)) => by_rules(memory, up, down, bounds, stable, now),
    };
    Limited {
        replicas,
        able: if stable == wanted { READY } else { stabilized },
        limited: (replicas != stable, why),
    }
}

fn highest(memory: &Memory, window: SignedDuration, wanted: i32, now: Timestamp) -> i32 {
    let recent = memory.recommended.iter().filter(|(at, _)| *at >= now - window);
    recent.map(|(_, replicas)| *replicas).fold(wanted, i32::max)
}

/// Not above the lowest of one window, not below the highest of the other.
fn stabilize(
    memory: &Memory,
    up: &HPAScalingRules,
    down: &HPAScalingRules,
    current: i32,
    wanted: i32,
    now: Timestamp,
) -> (i32, Why) {
    let window = |rules: &HPAScalingRules, default: SignedDuration| {
        let seconds = rules.stabilization_window_seconds.map(i64::from);
        seconds.map_or(default, SignedDuration::from_secs)
    };
    let recent = |window: SignedDuration| {
        let recent = memory.recommended.iter().filter(move |(at, _)| *at > now - window);
        recent.map(|(_, replicas)| *replicas)
    };
    let lowest = recent(window(up, SignedDuration::ZERO)).fold(wanted, i32::min);
    let highest = recent(window(down, DOWN_WINDOW)).fold(wanted, i32::max);
    let why = if wanted >= current { UP_STABILIZED } else { DOWN_STABILIZED };
    (current.max(lowest).min(highest), why)
}

fn plainly(bounds: Bounds, wanted: i32) -> (i32, Why) {
    let rate = bounds.current.saturating_mul(UP_FACTOR).max(UP_MIN);
    let (most, why) = if bounds.max > rate { (rate, UP_LIMIT) } else { (bounds.max, TOO_MANY) };
    match wanted {
        _ if wanted < bounds.min => (bounds.min, TOO_FEW),
        _ if wanted > most => (most, why),
        _ => (wanted, WITHIN),
    }
}

fn by_rules(
    memory: &Memory,
    up: &HPAScalingRules,
    down: &HPAScalingRules,
    bounds: Bounds,
    wanted: i32,
    now: Timestamp,
) -> (i32, Why) {
    let Bounds { current, min, max } = bounds;
    if wanted > current {
        let rate = up_limit(memory, up, current, now).max(current);
        let (most, why) = if max > rate { (rate, UP_LIMIT) } else { (max, TOO_MANY) };
        if wanted > most {
            return (most, why);
        }
    } else if wanted < current {
        let rate = down_limit(memory, down, current, now).min(current);
        let (least, why) = if min < rate { (rate, DOWN_LIMIT) } else { (min, TOO_FEW) };
        if wanted < least {
            return (least, why);
        }
    }
    (wanted, WITHIN)
}

/// Of each policy, how many there may be. The size at the start of its period counts.
fn proposals<'a>(
    memory: &'a Memory,
    rules: &'a HPAScalingRules,
    current: i32,
    now: Timestamp,
    of: impl Fn(i32, &str, i32) -> i32 + 'a,
) -> impl Iterator<Item = i32> + 'a {
    rules.policies.iter().flatten().map(move |policy| {
        let start = current - memory.change_within(policy.period_seconds, now);
        of(start, &policy.type_, policy.value)
    })
}

fn up_limit(memory: &Memory, rules: &HPAScalingRules, current: i32, now: Timestamp) -> i32 {
    // Rounded up: a share of few pods would be none at all.
    let all = proposals(memory, rules, current, now, |start, kind, value| match kind {
        "Pods" => start.saturating_add(value),
        _ => (f64::from(start) * (1.0 + f64::from(value) / 100.0)).ceil() as i32,
    });
    match rules.select_policy.as_deref() {
        Some("Disabled") => current,
        Some("Min") => all.min().unwrap_or(i32::MAX),
        _ => all.max().unwrap_or(i32::MIN),
    }
}

fn down_limit(memory: &Memory, rules: &HPAScalingRules, current: i32, now: Timestamp) -> i32 {
    let all = proposals(memory, rules, current, now, |start, kind, value| match kind {
        "Pods" => start.saturating_sub(value),
        _ => (f64::from(start) * (1.0 - f64::from(value) / 100.0)) as i32,
    });
    // The smallest change is to the largest size.
    match rules.select_policy.as_deref() {
        Some("Disabled") => current,
        Some("Min") => all.max().unwrap_or(i32::MIN),
        _ => all.min().unwrap_or(i32::MAX),
    }
}

#[cfg(test)]
mod tests;
