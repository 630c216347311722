//! Limits how far and how fast a target is scaled (C-135), and keeps the history for that. Pure.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::autoscaling::v2::{HPAScalingRules, HorizontalPodAutoscalerBehavior};

/// Upstream: `--horizontal-pod-autoscaler-downscale-stabilization`.
const DOWN_WINDOW: SignedDuration = SignedDuration::from_mins(5);
/// The API allows no longer windows or periods.
const HISTORY_AGE_MAX: SignedDuration = SignedDuration::from_hours(1);
/// One entry per 15 s for an hour, and some more after changes of the spec.
const HISTORY_MAX: usize = 512;

/// Without a behavior one step may double the size, and may go to four in any case.
const UP_FACTOR: i32 = 2;
const UP_MIN: i32 = 4;

/// The history of one autoscaler. It is not stored: after a restart the current size counts as recommended, so that
/// the target is not scaled down within the first window.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct History {
    /// Recommendations before limits.
    recommended: Vec<(Timestamp, i32)>,
    /// Changes of the size.
    scaled: Vec<(Timestamp, i32)>,
}

impl History {
    pub(super) fn starting_at(current: i32, now: Timestamp) -> History {
        History { recommended: vec![(now, current)], scaled: Vec::new() }
    }

    pub(super) fn scaled(&mut self, from: i32, to: i32, now: Timestamp) {
        append(&mut self.scaled, to - from, now);
    }

    /// The change of the size within the last `seconds`.
    fn change_within(&self, seconds: i32, now: Timestamp) -> i32 {
        let since = now - SignedDuration::from_secs(seconds.into());
        self.scaled.iter().filter(|(at, _)| *at > since).map(|(_, by)| by).sum()
    }
}

fn append(all: &mut Vec<(Timestamp, i32)>, value: i32, now: Timestamp) {
    all.retain(|(at, _)| *at >= now - HISTORY_AGE_MAX);
    if all.len() >= HISTORY_MAX {
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
    /// For the condition AbleToScale, which is True.
    pub(super) able: Why,
    /// For the condition ScalingLimited: its status, reason and message.
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

/// Applies windows and policies to a recommendation.
pub(super) fn apply(
    history: &mut History,
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
        None => (highest(history, DOWN_WINDOW, wanted, now), DOWN_STABILIZED),
        Some((up, down)) => stabilize(history, up, down, bounds.current, wanted, now),
    };
    append(&mut history.recommended, wanted, now);
    let (replicas, why) = match &rules {
        None => by_default_rate(bounds, stable),
        Some((up, down)) => by_rules(history, up, down, bounds, stable, now),
    };
    Limited {
        replicas,
        able: if stable == wanted { READY } else { stabilized },
        limited: (replicas != stable, why),
    }
}

fn highest(history: &History, window: SignedDuration, wanted: i32, now: Timestamp) -> i32 {
    let recent = history.recommended.iter().filter(|(at, _)| *at >= now - window);
    recent.map(|(_, replicas)| *replicas).fold(wanted, i32::max)
}

/// Not above the lowest recommendation of the scale-up window, not below the highest of the scale-down window.
fn stabilize(
    history: &History,
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
        let recent = history.recommended.iter().filter(move |(at, _)| *at > now - window);
        recent.map(|(_, replicas)| *replicas)
    };
    let lowest = recent(window(up, SignedDuration::ZERO)).fold(wanted, i32::min);
    let highest = recent(window(down, DOWN_WINDOW)).fold(wanted, i32::max);
    let why = if wanted >= current { UP_STABILIZED } else { DOWN_STABILIZED };
    (current.max(lowest).min(highest), why)
}

fn by_default_rate(bounds: Bounds, wanted: i32) -> (i32, Why) {
    let rate = bounds.current.saturating_mul(UP_FACTOR).max(UP_MIN);
    let (most, why) = if bounds.max > rate { (rate, UP_LIMIT) } else { (bounds.max, TOO_MANY) };
    match wanted {
        _ if wanted < bounds.min => (bounds.min, TOO_FEW),
        _ if wanted > most => (most, why),
        _ => (wanted, WITHIN),
    }
}

fn by_rules(
    history: &History,
    up: &HPAScalingRules,
    down: &HPAScalingRules,
    bounds: Bounds,
    wanted: i32,
    now: Timestamp,
) -> (i32, Why) {
    let Bounds { current, min, max } = bounds;
    if wanted > current {
        let rate = up_limit(history, up, current, now).max(current);
        let (most, why) = if max > rate { (rate, UP_LIMIT) } else { (max, TOO_MANY) };
        if wanted > most {
            return (most, why);
        }
    } else if wanted < current {
        let rate = down_limit(history, down, current, now).min(current);
        let (least, why) = if min < rate { (rate, DOWN_LIMIT) } else { (min, TOO_FEW) };
        if wanted < least {
            return (least, why);
        }
    }
    (wanted, WITHIN)
}

/// The size that each policy allows, based on the size at the start of its period.
fn proposals<'a>(
    history: &'a History,
    rules: &'a HPAScalingRules,
    current: i32,
    now: Timestamp,
    of: impl Fn(i32, &str, i32) -> i32 + 'a,
) -> impl Iterator<Item = i32> + 'a {
    rules.policies.iter().flatten().map(move |policy| {
        let start = current - history.change_within(policy.period_seconds, now);
        of(start, &policy.type_, policy.value)
    })
}

fn up_limit(history: &History, rules: &HPAScalingRules, current: i32, now: Timestamp) -> i32 {
    // Rounded up, because a percentage of few pods could be zero.
    let all = proposals(history, rules, current, now, |start, kind, value| match kind {
        "Pods" => start.saturating_add(value),
        _ => (f64::from(start) * (1.0 + f64::from(value) / 100.0)).ceil() as i32,
    });
    match rules.select_policy.as_deref() {
        Some("Disabled") => current,
        Some("Min") => all.min().unwrap_or(i32::MAX),
        _ => all.max().unwrap_or(i32::MIN),
    }
}

fn down_limit(history: &History, rules: &HPAScalingRules, current: i32, now: Timestamp) -> i32 {
    let all = proposals(history, rules, current, now, |start, kind, value| match kind {
        "Pods" => start.saturating_sub(value),
        _ => (f64::from(start) * (1.0 - f64::from(value) / 100.0)) as i32,
    });
    // The largest size is the smallest change.
    match rules.select_policy.as_deref() {
        Some("Disabled") => current,
        Some("Min") => all.max().unwrap_or(i32::MIN),
        _ => all.min().unwrap_or(i32::MAX),
    }
}

#[cfg(test)]
mod tests;
