//! What the scheduler counts about itself, under upstream's names (N-182).

use metrics::{Family, Labels, Registry, counter, gauge, histogram};
use std::sync::Arc;
use std::time::Duration;

/// Bounds in seconds: of one attempt, and from a pod's first one to its node.
const ATTEMPT: &[f64] = &[
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096,
    8.192, 16.384,
];
const WHOLE: &[f64] = &[
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84,
    327.68, 655.36, 1310.72, 2621.44, 5242.88,
];
const ATTEMPTS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0];
const VICTIMS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0];

const CATALOGUE: &[Family] = &[
    gauge("scheduler_pending_pods", &["queue"], "Pods that have no node, by where they wait."),
    histogram(
        "scheduler_pod_scheduling_attempts",
        ATTEMPTS,
        &[],
        "Attempts until a pod had a node.",
    ),
    histogram(
        "scheduler_pod_scheduling_sli_duration_seconds",
        WHOLE,
        &["attempts"],
        "From when a pod came until it had a node.",
    ),
    counter("scheduler_preemption_attempts_total", &[], "Times that room was made for a pod."),
    histogram("scheduler_preemption_victims", VICTIMS, &[], "Pods ended to make room for one."),
    counter(
        "scheduler_queue_incoming_pods_total",
        &["event", "queue"],
        "Pods that came into a queue, by what brought them.",
    ),
    counter(
        "scheduler_schedule_attempts_total",
        &["profile", "result"],
        "Attempts to find a node, by how they ended.",
    ),
    histogram(
        "scheduler_scheduling_algorithm_duration_seconds",
        ATTEMPT,
        &[],
        "Time to decide upon a node.",
    ),
    histogram(
        "scheduler_scheduling_attempt_duration_seconds",
        ATTEMPT,
        &["profile", "result"],
        "Time of one attempt, the binding included.",
    ),
];

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    Scheduled,
    Unschedulable,
    Error,
}

#[derive(Clone)]
pub(crate) struct Figures(Arc<Registry>);

impl Figures {
    pub(crate) fn new() -> Figures {
        Figures(Arc::new(Registry::new(CATALOGUE)))
    }

    pub(crate) fn registry(&self) -> Arc<Registry> {
        self.0.clone()
    }

    /// One attempt.
    pub(crate) fn attempt(&self, ended: Ended, took: Duration) {
        let result = match ended {
            Ended::Scheduled => "scheduled",
            Ended::Unschedulable => "unschedulable",
            Ended::Error => "error",
        };
        let labels: Labels<'_> = &[("profile", crate::run::NAME), ("result", result)];
        self.0.add("scheduler_schedule_attempts_total", labels, 1);
        self.0.observe("scheduler_scheduling_attempt_duration_seconds", labels, took);
    }

    pub(crate) fn decided(&self, took: Duration) {
        self.0.observe("scheduler_scheduling_algorithm_duration_seconds", &[], took);
    }

    /// A pod has its node.
    pub(crate) fn bound(&self, attempts: u32, took: Duration) {
        self.0.observe_number("scheduler_pod_scheduling_attempts", &[], attempts.into());
        // As upstream: so many attempts are all alike.
        let label = if attempts >= 16 { "16+".to_owned() } else { attempts.to_string() };
        let labels: Labels<'_> = &[("attempts", &label)];
        self.0.observe("scheduler_pod_scheduling_sli_duration_seconds", labels, took);
    }

    pub(crate) fn made_room(&self, victims: usize) {
        self.0.add("scheduler_preemption_attempts_total", &[], 1);
        self.0.observe_number("scheduler_preemption_victims", &[], victims as f64);
    }

    pub(crate) fn came(&self, queue: &str, event: &str) {
        let labels: Labels<'_> = &[("event", event), ("queue", queue)];
        self.0.add("scheduler_queue_incoming_pods_total", labels, 1);
    }

    /// Active, backing off, waiting for something that helps.
    pub(crate) fn pending(&self, [active, backoff, unschedulable]: [usize; 3]) {
        let queues = [("active", active), ("backoff", backoff), ("unschedulable", unschedulable)];
        for (queue, count) in queues {
            self.0.set("scheduler_pending_pods", &[("queue", queue)], count as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// N-182
    #[test]
    fn n_182_the_figures_of_scheduling_have_upstreams_names() {
        let figures = Figures::new();
        figures.attempt(Ended::Scheduled, Duration::from_millis(3));
        figures.attempt(Ended::Unschedulable, Duration::from_millis(3));
        figures.attempt(Ended::Unschedulable, Duration::from_millis(3));
        figures.decided(Duration::from_millis(1));
        figures.bound(3, Duration::from_secs(2));
        figures.bound(99, Duration::from_secs(2));
        figures.made_room(2);
        figures.came("active", "PodAdd");
        figures.pending([1, 2, 3]);
        let mut page = metrics::Page::default();
        figures.registry().write(&mut page, |_| true);
        let text = page.into_text();
        metrics::check(&text).unwrap();
        for line in [
            "scheduler_schedule_attempts_total{profile=\"default-scheduler\",result=\"scheduled\"} 1",
            "scheduler_schedule_attempts_total{profile=\"default-scheduler\",result=\"unschedulable\"} 2",
            "scheduler_pending_pods{queue=\"backoff\"} 2",
            "scheduler_pod_scheduling_sli_duration_seconds_count{attempts=\"16+\"} 1",
            "scheduler_preemption_victims_sum 2",
            "scheduler_queue_incoming_pods_total{event=\"PodAdd\",queue=\"active\"} 1",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} is not in\n{text}");
        }
    }
}
