//! What a rollout will be like, from the manifest alone: peak number of pods, duration, worst-case kill times.
//!
//! Pure. It replays the decisions of the Deployment and StatefulSet controllers on assumed times: how long a pod takes
//! to start, and whether containers exit at their stop signal (best case) or have to be killed (worst case).

use crate::hook::Hook;
use crate::workload::{Strategy, Workload};
use k8s_openapi::api::core::v1::{Container, Probe};
use serde::Serialize;

/// How long a pod takes from its creation until its server listens, if nothing else is known.
pub const STARTUP_ASSUMED: f64 = 1.0;
/// How long a pod takes from its creation until its node begins to start it. Probes are due at multiples of their period
/// after that.
const PLACED_ASSUMED: f64 = 0.2;
/// How long a controller takes to act on a change.
const REACTION_ASSUMED: f64 = 0.1;
/// A stop signal gets at least this long, even if the hook used up the grace period.
const STOP_WINDOW: f64 = 2.0;
/// Pods that a forecast covers at most.
const REPLICAS_MAX: i32 = 10_000;

/// The parts of a manifest that decide how a rollout proceeds, in seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct RolloutModel {
    pub replicas: i32,
    pub strategy: Strategy,
    /// From the creation of a pod until it is ready.
    pub ready: f64,
    /// From a change until the controller has acted on it.
    pub reaction: f64,
    pub min_ready: f64,
    pub pre_stop: f64,
    /// From the stop signal until the exit, in the best case.
    pub shutdown: f64,
    pub grace: f64,
    /// What is not in the manifest and was assumed.
    pub assumptions: Vec<String>,
}

/// What happens to one replaced pod, in seconds since the rollout began.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Replaced {
    pub deleted: f64,
    pub stop_signal: f64,
    /// When it is killed if it has not exited by then.
    pub killed_at_latest: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Forecast {
    /// Pods that exist at the same time, terminating ones included: if they exit at once, and at worst.
    pub peak_pods_best: i32,
    pub peak_pods_worst: i32,
    /// Until `kubectl rollout status` returns.
    pub duration_best: f64,
    pub duration_worst: f64,
    /// Until the last replaced pod is gone.
    pub gone_best: f64,
    pub gone_worst: f64,
    /// By time, in the best case.
    pub replaced: Vec<Replaced>,
    pub assumptions: Vec<String>,
}

impl RolloutModel {
    /// `startup` is the time from a pod's creation until its server listens. Errors: why it cannot be forecast.
    pub fn of(workload: &Workload, startup: Option<f64>) -> Result<RolloutModel, String> {
        let strategy = workload.strategy.clone()?;
        if workload.replicas > REPLICAS_MAX {
            return Err(format!("it has more than {REPLICAS_MAX} replicas"));
        }
        let mut assumptions = Vec::new();
        let startup = startup.unwrap_or_else(|| {
            assumptions.push(format!(
                "a pod's server listens {STARTUP_ASSUMED} s after the pod was created (--startup)"
            ));
            STARTUP_ASSUMED
        });
        let hooks: Vec<Hook> = workload.containers().iter().map(Hook::of).collect();
        if hooks.iter().any(|hook| matches!(hook, Hook::Other(_))) {
            assumptions.push("the preStop hook takes no time in the best case".to_owned());
        }
        assumptions.push("containers exit at their stop signal in the best case".to_owned());
        let pre_stop = hooks.iter().map(Hook::seconds).max().unwrap_or(0);
        let grace = workload.grace() as f64;
        let ready = workload.containers().iter().map(|one| ready_after(one, startup));
        Ok(RolloutModel {
            replicas: workload.replicas,
            strategy,
            ready: ready.fold(startup, f64::max),
            reaction: REACTION_ASSUMED,
            min_ready: f64::from(workload.min_ready),
            pre_stop: f64::from(pre_stop).min(grace),
            shutdown: 0.0,
            grace,
            assumptions,
        })
    }

    pub fn forecast(&self) -> Forecast {
        let best = self.simulate(self.exit_best());
        let worst = self.simulate(self.exit_worst());
        let mut assumptions = self.assumptions.clone();
        assumptions
            .push("new pods find room at once, and their images are on the nodes".to_owned());
        assumptions.push(format!("controllers act within {REACTION_ASSUMED} s"));
        let replaced = |at: &f64| Replaced {
            deleted: *at,
            stop_signal: at + self.pre_stop,
            killed_at_latest: at + self.exit_worst(),
        };
        Forecast {
            peak_pods_best: best.peak,
            peak_pods_worst: worst.peak,
            duration_best: best.complete,
            duration_worst: worst.complete,
            gone_best: best.gone,
            gone_worst: worst.gone,
            replaced: best.deletions.iter().map(replaced).collect(),
            assumptions,
        }
    }

    /// From the deletion until the exit.
    fn exit_best(&self) -> f64 {
        (self.pre_stop + self.shutdown).min(self.exit_worst())
    }

    /// From the change that makes room for a new pod until that pod is available.
    fn successor(&self) -> f64 {
        self.reaction + self.ready + self.min_ready
    }

    fn exit_worst(&self) -> f64 {
        self.grace.max(self.pre_stop + STOP_WINDOW)
    }

    fn simulate(&self, exit: f64) -> Simulated {
        match self.strategy {
            Strategy::Rolling { surge, unavailable } => self.rolling(surge, unavailable, exit),
            Strategy::Recreate => self.recreate(exit),
            Strategy::Ordered { unavailable } => self.ordered(unavailable, exit),
        }
    }

    /// As the Deployment controller: grow the new set within the surge, shrink the old one while enough is available.
    fn rolling(&self, surge: i32, unavailable: i32, exit: f64) -> Simulated {
        let wanted = self.replicas;
        let min_available = wanted - unavailable;
        let (mut old, mut available) = (wanted, 0);
        // When each new pod becomes available.
        let mut coming: Vec<f64> = Vec::new();
        let mut deletions: Vec<f64> = Vec::new();
        let (mut now, mut peak) = (0.0, wanted);
        loop {
            // The controller acts again after each of its own changes, until there is nothing to do.
            loop {
                let created = available + coming.len() as i32;
                let more = (wanted + surge - old - created).min(wanted - created).max(0);
                coming.extend((0..more).map(|_| now + self.successor()));
                let fewer = (old + available - min_available).clamp(0, old);
                old -= fewer;
                deletions.extend((0..fewer).map(|_| now));
                if more == 0 && fewer == 0 {
                    break;
                }
            }
            let terminating = deletions.iter().filter(|at| now < **at + exit).count() as i32;
            peak = peak.max(old + available + coming.len() as i32 + terminating);
            if available >= wanted && old == 0 {
                return Simulated::new(now, exit, peak, deletions);
            }
            let Some(next) = coming.iter().copied().reduce(f64::min) else {
                return Simulated::new(now, exit, peak, deletions); // Nothing left to wait for.
            };
            now = next;
            let before = coming.len();
            coming.retain(|at| *at > now);
            available += (before - coming.len()) as i32;
        }
    }

    fn recreate(&self, exit: f64) -> Simulated {
        let deletions = vec![0.0; usize::try_from(self.replicas).unwrap_or(0)];
        let complete = exit + self.successor();
        Simulated::new(complete, exit, self.replicas, deletions)
    }

    /// As the StatefulSet controller: a pod is gone before its successor is created.
    fn ordered(&self, unavailable: i32, exit: f64) -> Simulated {
        let mut deletions = Vec::new();
        let mut now = 0.0;
        let mut left = self.replicas;
        while left > 0 {
            let batch = left.min(unavailable.max(1));
            deletions.extend((0..batch).map(|_| now));
            now += exit + self.successor();
            left -= batch;
        }
        Simulated::new(now, exit, self.replicas, deletions)
    }
}

struct Simulated {
    complete: f64,
    gone: f64,
    peak: i32,
    deletions: Vec<f64>,
}

impl Simulated {
    fn new(complete: f64, exit: f64, peak: i32, deletions: Vec<f64>) -> Simulated {
        let gone = deletions.iter().map(|at| at + exit).fold(complete, f64::max);
        Simulated { complete, gone, peak, deletions }
    }
}

/// When a container is ready, since the creation of its pod: at the first tick of its probe after its server listens and
/// the initial delay has passed.
fn ready_after(container: &Container, startup: f64) -> f64 {
    let after = |from: f64, probe: Option<&Probe>| {
        let Some(probe) = probe else { return from };
        let period = f64::from(probe.period_seconds.unwrap_or(10).max(1));
        let delay = f64::from(probe.initial_delay_seconds.unwrap_or(0).max(0));
        let more = f64::from(probe.success_threshold.unwrap_or(1).max(1) - 1) * period;
        ((from + delay) / period).ceil() * period + more
    };
    let listens = (startup - PLACED_ASSUMED).max(0.0);
    let started = after(listens, container.startup_probe.as_ref());
    PLACED_ASSUMED + after(started, container.readiness_probe.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::tests::deployment;
    use proptest::{prop_assert, prop_assert_eq, proptest};
    use serde_json::json;

    fn model(replicas: i32, strategy: Strategy) -> RolloutModel {
        RolloutModel {
            replicas,
            strategy,
            ready: 2.0,
            reaction: 0.0,
            min_ready: 1.0,
            pre_stop: 5.0,
            shutdown: 1.0,
            grace: 30.0,
            assumptions: Vec::new(),
        }
    }

    /// Computed by hand: a new pod is available after 3 s; an old one is gone after 6 s, at worst after 30 s.
    #[test]
    fn rollouts_proceed_as_the_controllers_decide() {
        use Strategy::*;
        for (replicas, strategy, duration, gone, peak, peak_worst) in [
            // One more, then one fewer, three times.
            (3, Rolling { surge: 1, unavailable: 0 }, (9.0, 9.0), (15.0, 39.0), 6, 6),
            // All at once.
            (3, Rolling { surge: 3, unavailable: 0 }, (3.0, 3.0), (9.0, 33.0), 6, 6),
            // One fewer, then one more.
            (3, Rolling { surge: 0, unavailable: 1 }, (9.0, 9.0), (12.0, 36.0), 5, 6),
            (2, Rolling { surge: 1, unavailable: 1 }, (3.0, 3.0), (9.0, 33.0), 4, 4),
            (3, Recreate, (9.0, 33.0), (9.0, 33.0), 3, 3),
            (3, Ordered { unavailable: 1 }, (27.0, 99.0), (27.0, 99.0), 3, 3),
            (3, Ordered { unavailable: 2 }, (18.0, 66.0), (18.0, 66.0), 3, 3),
        ] {
            let got = model(replicas, strategy).forecast();
            let name = format!("{replicas} {strategy:?}");
            assert_eq!((got.duration_best, got.duration_worst), duration, "{name}");
            assert_eq!((got.gone_best, got.gone_worst), gone, "{name}");
            assert_eq!((got.peak_pods_best, got.peak_pods_worst), (peak, peak_worst), "{name}");
            assert_eq!(got.replaced.len(), replicas as usize, "{name}");
        }
    }

    #[test]
    fn kill_times_follow_from_deletion_and_grace_period() {
        let got = model(2, Strategy::Rolling { surge: 1, unavailable: 0 }).forecast();
        let times: Vec<_> = got
            .replaced
            .iter()
            .map(|one| (one.deleted, one.stop_signal, one.killed_at_latest))
            .collect();
        assert_eq!(times, [(3.0, 8.0, 33.0), (6.0, 11.0, 36.0)]);
        let mut short = model(1, Strategy::Recreate);
        short.grace = 3.0;
        short.pre_stop = 3.0;
        let killed = short.forecast().replaced[0].killed_at_latest;
        assert_eq!(killed, 5.0, "the stop signal gets two seconds after a hook that used all");
    }

    #[test]
    fn manifests_give_the_model() {
        let workload =
            deployment(json!({"replicas": 2, "minReadySeconds": 4, "template": {"spec": {
            "terminationGracePeriodSeconds": 20, "containers": [{"name": "server",
                "lifecycle": {"preStop": {"sleep": {"seconds": 5}}},
                "readinessProbe": {"initialDelaySeconds": 3, "periodSeconds": 2}}]}}}));
        let model = RolloutModel::of(&workload, Some(0.5)).unwrap();
        assert_eq!(model.ready, 4.2, "at the next tick of two seconds after the node has the pod");
        assert_eq!((model.min_ready, model.pre_stop, model.grace), (4.0, 5.0, 20.0));
        assert_eq!(model.strategy, Strategy::Rolling { surge: 1, unavailable: 0 });
        let without = RolloutModel::of(&deployment(json!({})), None).unwrap();
        assert_eq!(without.ready, STARTUP_ASSUMED);
        assert!(without.assumptions[0].contains("--startup"));
        assert!(RolloutModel::of(&deployment(json!({"paused": true})), None).is_err());
    }

    proptest! {
        /// Every old pod is deleted exactly once, the worst case is never better than the best one, and the number of pods
        /// that do not terminate stays within the surge.
        #[test]
        fn every_rollout_ends(replicas in 0i32..40, surge in 0i32..10, unavailable in 0i32..10) {
            let unavailable = if surge == 0 { unavailable.max(1) } else { unavailable };
            let strategy = Strategy::Rolling { surge, unavailable: unavailable.min(replicas.max(1)) };
            let got = model(replicas, strategy).forecast();
            prop_assert_eq!(got.replaced.len(), replicas as usize);
            prop_assert!(got.peak_pods_best <= got.peak_pods_worst);
            prop_assert!(got.peak_pods_worst <= 2 * replicas + surge.min(replicas));
            prop_assert!(got.gone_best <= got.gone_worst);
        }
    }
}
