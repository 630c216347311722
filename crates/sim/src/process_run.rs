//! One run of a process, from its start to its crash. It may crash at any step, and has no effect after that.
//!
//! A killed process executes nothing more. Its tasks in this simulation would, so everything with an effect outside
//! (a request, a call of the runtime) first calls [`ProcessRun::step`], which never returns after a crash.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use tokio::sync::Notify;

#[derive(Debug)]
pub(crate) struct ProcessRun {
    crashed: AtomicBool,
    notify: Notify,
    steps: AtomicU64,
    /// The step at which it crashes; 0: never.
    crash_step: AtomicU64,
    /// It crashes when it next stops a container.
    crash_at_stop: AtomicBool,
}

impl ProcessRun {
    pub(crate) fn new() -> Arc<ProcessRun> {
        Arc::new(ProcessRun {
            crashed: AtomicBool::new(false),
            notify: Notify::new(),
            steps: AtomicU64::new(0),
            crash_step: AtomicU64::new(0),
            crash_at_stop: AtomicBool::new(false),
        })
    }

    /// To be called before and after everything that has an effect. Does not return after a crash.
    pub(crate) async fn step(&self) {
        if !self.step_in_place() {
            std::future::pending::<()>().await;
        }
    }

    /// As [`ProcessRun::step`], for effects in code that cannot wait: false if the process has crashed.
    pub(crate) fn step_in_place(&self) -> bool {
        let step = self.steps.fetch_add(1, Relaxed) + 1;
        if step == self.crash_step.load(Relaxed) {
            self.crash_now();
        }
        !self.has_crashed()
    }

    pub(crate) fn crash_now(&self) {
        if !self.crashed.swap(true, Relaxed) {
            self.notify.notify_one();
        }
    }

    /// Crashes after this many steps.
    pub(crate) fn crash_after(&self, steps: u64) {
        self.crash_step.store(self.steps.load(Relaxed) + steps.max(1), Relaxed);
    }

    /// Crashes when the process next stops a container.
    pub(crate) fn crash_at_next_stop(&self) {
        self.crash_at_stop.store(true, Relaxed);
    }

    /// To be called before a container is stopped.
    pub(crate) fn before_stop(&self) {
        if self.crash_at_stop.load(Relaxed) {
            self.crash_now();
        }
    }

    /// Cancels a planned crash.
    pub(crate) fn cancel_crash(&self) {
        self.crash_step.store(0, Relaxed);
        self.crash_at_stop.store(false, Relaxed);
    }

    pub(crate) fn has_crashed(&self) -> bool {
        self.crashed.load(Relaxed)
    }

    /// Resolves once, when the process has crashed.
    pub(crate) async fn crashed(&self) {
        self.notify.notified().await;
    }
}
