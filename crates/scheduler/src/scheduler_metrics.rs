//! Metrics of the scheduler, with upstream's names (N-182).

use metrics::{Family, Labels, Registry, counter, gauge, histogram};
use std::sync::Arc;
use std::time::Duration;

/// Buckets in seconds: for one attempt, and for the time from a pod's creation to its binding.
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
    gauge("scheduler_pending_pods", &["queue"], "Pods without a node, by queue."),
    histogram(
        "scheduler_pod_scheduling_attempts",
        ATTEMPTS,
        &[],
        "Attempts until a pod was scheduled.",
    ),
    histogram(
        "scheduler_pod_scheduling_sli_duration_seconds",
        WHOLE,
        &["attempts"],
        "Time from the creation of a pod until it was scheduled.",
    ),
    counter("scheduler_preemption_attempts_total", &[], "Preemptions."),
    histogram("scheduler_preemption_victims", VICTIMS, &[], "Pods deleted by one preemption."),
    counter(
        "scheduler_queue_incoming_pods_total",
        &["event", "queue"],
        "Pods added to a queue, by event and queue.",
    ),
    counter(
        "scheduler_schedule_attempts_total",
        &["profile", "result"],
        "Scheduling attempts, by result.",
    ),
    histogram(
        "scheduler_scheduling_algorithm_duration_seconds",
        ATTEMPT,
        &[],
        "Time to choose a node.",
    ),
    histogram(
        "scheduler_scheduling_attempt_duration_seconds",
        ATTEMPT,
        &["profile", "result"],
        "Time of one attempt, including the binding.",
    ),
];

/// The result of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttemptResult {
    Scheduled,
    Unschedulable,
    Error,
}

#[derive(Clone)]
pub(crate) struct SchedulerMetrics(Arc<Registry>);

impl SchedulerMetrics {
    pub(crate) fn new() -> SchedulerMetrics {
        SchedulerMetrics(Arc::new(Registry::new(CATALOGUE)))
    }

    pub(crate) fn registry(&self) -> Arc<Registry> {
        self.0.clone()
    }

    pub(crate) fn attempt(&self, result: AttemptResult, took: Duration) {
        let result = match result {
            AttemptResult::Scheduled => "scheduled",
            AttemptResult::Unschedulable => "unschedulable",
            AttemptResult::Error => "error",
        };
        let labels: Labels<'_> = &[("profile", crate::run::NAME), ("result", result)];
        self.0.add("scheduler_schedule_attempts_total", labels, 1);
        self.0.observe("scheduler_scheduling_attempt_duration_seconds", labels, took);
    }

    pub(crate) fn decided(&self, took: Duration) {
        self.0.observe("scheduler_scheduling_algorithm_duration_seconds", &[], took);
    }

    pub(crate) fn bound(&self, attempts: u32, took: Duration) {
        self.0.observe_number("scheduler_pod_scheduling_attempts", &[], attempts.into());
        // As in upstream, higher numbers share one label.
        let label = if attempts >= 16 { "16+".to_owned() } else { attempts.to_string() };
        let labels: Labels<'_> = &[("attempts", &label)];
        self.0.observe("scheduler_pod_scheduling_sli_duration_seconds", labels, took);
    }

    pub(crate) fn preempted(&self, victims: usize) {
        self.0.add("scheduler_preemption_attempts_total", &[], 1);
        self.0.observe_number("scheduler_preemption_victims", &[], victims as f64);
    }

    pub(crate) fn queued(&self, queue: &str, event: &str) {
        let labels: Labels<'_> = &[("event", event), ("queue", queue)];
        self.0.add("scheduler_queue_incoming_pods_total", labels, 1);
    }

    /// The lengths of the queues: active, backing off, unschedulable.
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

    /// N-182: metric names are an interface.
    #[test]
    fn n_182_metrics_of_the_scheduler_have_upstreams_names() {
        let recorded = SchedulerMetrics::new();
        recorded.attempt(AttemptResult::Scheduled, Duration::from_millis(3));
        recorded.attempt(AttemptResult::Unschedulable, Duration::from_millis(3));
        recorded.attempt(AttemptResult::Unschedulable, Duration::from_millis(3));
        recorded.decided(Duration::from_millis(1));
        recorded.bound(3, Duration::from_secs(2));
        recorded.bound(99, Duration::from_secs(2));
        recorded.preempted(2);
        recorded.queued("active", "PodAdd");
        recorded.pending([1, 2, 3]);
        let mut page = metrics::Page::default();
        recorded.registry().write(&mut page, |_| true);
        let text = page.into_text();
        metrics::parse(&text).unwrap();
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
