//! One life of a process: it may end at any step, and after that nothing of it happens any more.
//!
//! A process that is killed does not come to its next line. Its tasks here would, so everything that
//! reaches outside (a request, a call of the runtime) first asks its life, and waits for ever if there
//! is none.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use tokio::sync::Notify;

#[derive(Debug)]
pub(crate) struct Life {
    dead: AtomicBool,
    died: Notify,
    steps: AtomicU64,
    /// The step at which it ends by itself; 0: never.
    last: AtomicU64,
    /// It ends when it next stops a container.
    last_stop: AtomicBool,
}

impl Life {
    pub(crate) fn new() -> Arc<Life> {
        Arc::new(Life {
            dead: AtomicBool::new(false),
            died: Notify::new(),
            steps: AtomicU64::new(0),
            last: AtomicU64::new(0),
            last_stop: AtomicBool::new(false),
        })
    }

    /// Before and after everything that has an effect. Does not return to the dead.
    pub(crate) async fn step(&self) {
        let step = self.steps.fetch_add(1, Relaxed) + 1;
        if step == self.last.load(Relaxed) {
            self.end();
        }
        if self.dead.load(Relaxed) {
            std::future::pending::<()>().await;
        }
    }

    pub(crate) fn end(&self) {
        if !self.dead.swap(true, Relaxed) {
            self.died.notify_one();
        }
    }

    /// It ends so many steps from now, in the middle of whatever that is.
    pub(crate) fn end_after(&self, steps: u64) {
        self.last.store(self.steps.load(Relaxed) + steps.max(1), Relaxed);
    }

    /// It ends when it next stops a container.
    pub(crate) fn end_at_stop(&self) {
        self.last_stop.store(true, Relaxed);
    }

    /// A container is about to be stopped.
    pub(crate) fn stops(&self) {
        if self.last_stop.load(Relaxed) {
            self.end();
        }
    }

    /// It does not end by itself.
    pub(crate) fn spare(&self) {
        self.last.store(0, Relaxed);
        self.last_stop.store(false, Relaxed);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.dead.load(Relaxed)
    }

    /// Resolves once, when it has ended.
    pub(crate) async fn died(&self) {
        self.died.notified().await;
    }
}
