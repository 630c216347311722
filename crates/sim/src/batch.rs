//! Runs many seeds on as many threads as there are cores. Each thread simulates its own cluster.

use crate::checker::Requests;
use crate::run::{Error, Options, Outcome, SimulationSetup, run};
use crate::scenario::Scenario;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

#[derive(Debug, Default)]
pub struct Summary {
    pub seeds: u64,
    /// The first seed that was found to break a rule; the search ends there.
    pub failure: Option<Outcome>,
    pub simulated: Duration,
    pub pods: usize,
    pub containers: usize,
    pub requests: Requests,
}

/// Stops at the first seed that breaks a rule, or when `go_on`, which is called with the number of finished seeds,
/// returns false.
pub fn run_many(
    setup: &SimulationSetup,
    scenario: &'static Scenario,
    seeds: Range<u64>,
    options: &Options,
    go_on: &(dyn Fn(u64) -> bool + Sync),
) -> Result<Summary, Error> {
    let next = AtomicU64::new(seeds.start);
    let stop = AtomicBool::new(false);
    let summary = Mutex::new(Summary::default());
    let work = || -> Result<(), Error> {
        while !stop.load(Relaxed) {
            let seed = next.fetch_add(1, Relaxed);
            if seed >= seeds.end {
                break;
            }
            let outcome = run(setup, scenario, seed, options)?;
            let mut summary = summary.lock().unwrap_or_else(PoisonError::into_inner);
            summary.add(outcome);
            if summary.failure.is_some() || !go_on(summary.seeds) {
                stop.store(true, Relaxed);
            }
        }
        Ok(())
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let done: Vec<Result<(), Error>> = std::thread::scope(|scope| {
        let working: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let joined = working.into_iter().map(|thread| thread.join());
        joined.map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    done.into_iter().collect::<Result<(), Error>>()?;
    Ok(summary.into_inner().unwrap_or_else(PoisonError::into_inner))
}

impl Summary {
    fn add(&mut self, outcome: Outcome) {
        self.seeds += 1;
        self.simulated += outcome.simulated;
        self.pods += outcome.pods;
        self.containers += outcome.containers;
        self.requests += outcome.requests;
        // Threads finish in any order; the smallest seed is reported.
        let smaller = self.failure.as_ref().is_none_or(|known| outcome.seed < known.seed);
        if outcome.violation.is_some() && smaller {
            self.failure = Some(outcome);
        }
    }
}
