//! The work queue: which keys want work, each of them once, and one at a time per key.
//!
//!     add, add_after ──▶ waiting ──▶ ready ──▶ get … done
//!                           ▲                      │ retry
//!                           └──────────────────────┘
//!
//! What happens is decided in `queue/state.rs`, which knows no clock; here is the waiting. There is
//! no limit on the number of keys: each is there once, so there are never more than objects.

mod state;

use state::State;
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The wait after the first failure; it doubles. Upstream: `DefaultTypedControllerRateLimiter`.
pub const RETRY_FIRST: Duration = Duration::from_millis(5);

/// The longest wait between two tries. Upstream waits up to 1000 s; after an outage of any length a
/// cluster should be itself again within a minute.
pub const RETRY_MAX: Duration = Duration::from_secs(60);

/// What may be queued.
pub trait Key: Clone + Ord + Hash + fmt::Debug + Send + Sync + 'static {}

impl<K: Clone + Ord + Hash + fmt::Debug + Send + Sync + 'static> Key for K {}

/// A handle on a queue. Cheap to clone; all clones are the same queue.
pub struct Queue<K> {
    shared: Arc<Shared<K>>,
}

struct Shared<K> {
    state: Mutex<State<K>>,
    /// Something changed that somebody may wait for.
    changed: Notify,
}

/// How a queue is doing, for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Could be worked on now.
    pub ready: usize,
    /// Will be ready at a later time.
    pub waiting: usize,
    /// Being worked on.
    pub working: usize,
    /// Since the start: handed out, and handed back for a retry.
    pub handed_out: u64,
    pub retried: u64,
}

impl<K: Key> Queue<K> {
    pub fn new() -> Self {
        Queue::with_backoff(RETRY_FIRST, RETRY_MAX)
    }

    pub fn with_backoff(first: Duration, max: Duration) -> Self {
        let state = Mutex::new(State::new(first, max));
        Queue { shared: Arc::new(Shared { state, changed: Notify::new() }) }
    }

    /// Wants `key` worked on. If it is being worked on now, then once more after that.
    pub fn add(&self, key: K) {
        self.state().add(key);
        self.shared.changed.notify_waiters();
    }

    /// Wants `key` worked on after `delay`. Of several such wishes the earliest counts.
    pub fn add_after(&self, key: K, delay: Duration) {
        self.state().add_at(key, Instant::now() + delay);
        self.shared.changed.notify_waiters();
    }

    /// The next key, as soon as there is one; `None` once the queue is shut down. Whoever gets a
    /// key must call [`Queue::done`] for it.
    pub async fn get(&self) -> Option<K> {
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable(); // From here on no change is missed.
            let due = {
                let mut state = self.state();
                if state.is_shut_down() {
                    return None;
                }
                if let Some(key) = state.take(Instant::now()) {
                    return Some(key);
                }
                state.next_due()
            };
            match due {
                Some(due) => tokio::select! {
                    biased;
                    () = changed => (),
                    () = tokio::time::sleep_until(due) => (),
                },
                None => changed.await,
            }
        }
    }

    /// The work on `key` is over, well or badly.
    pub fn done(&self, key: &K) {
        self.state().done(key);
        self.shared.changed.notify_waiters();
    }

    /// Wants `key` worked on again, later each time until it is forgotten. Returns how much later.
    pub fn retry(&self, key: K) -> Duration {
        let delay = self.state().retry(key, Instant::now());
        self.shared.changed.notify_waiters();
        delay
    }

    /// `key` went well: its next failure is a first one.
    pub fn forget(&self, key: &K) {
        self.state().forget(key);
    }

    /// How often `key` was retried since it was last forgotten.
    pub fn failures(&self, key: &K) -> u32 {
        self.state().failures(key)
    }

    /// Hands out nothing more and takes nothing more. What is being worked on may finish.
    pub fn shut_down(&self) {
        self.state().shut_down();
        self.shared.changed.notify_waiters();
    }

    pub fn counts(&self) -> Counts {
        self.state().counts()
    }

    fn state(&self) -> MutexGuard<'_, State<K>> {
        // No user code runs under this lock, so a panic cannot have left it half-changed.
        self.shared.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl<K: Key> Default for Queue<K> {
    fn default() -> Self {
        Queue::new()
    }
}

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Queue { shared: self.shared.clone() }
    }
}

impl<K: Key> fmt::Debug for Queue<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Queue").field(&self.counts()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_comes_when_it_is_due_and_not_before() {
        let queue = Queue::new();
        let start = Instant::now();
        queue.add_after("late", seconds(30));
        queue.add_after("soon", seconds(10));
        assert_eq!(queue.get().await, Some("soon"));
        assert_eq!(start.elapsed(), seconds(10));
        assert_eq!(queue.get().await, Some("late"));
        assert_eq!(start.elapsed(), seconds(30));
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_worker_hears_of_an_earlier_time() {
        let queue = Queue::new();
        let start = Instant::now();
        queue.add_after("late", seconds(30));
        let worker = tokio::spawn({
            let queue = queue.clone();
            async move { queue.get().await }
        });
        tokio::time::sleep(seconds(1)).await;
        queue.add_after("hurry", seconds(2));
        assert_eq!(worker.await.unwrap(), Some("hurry"));
        assert_eq!(start.elapsed(), seconds(3));
    }

    #[tokio::test(start_paused = true)]
    async fn one_key_wakes_one_worker_and_two_keys_wake_two() {
        let queue = Queue::new();
        let workers: Vec<_> = (0..2)
            .map(|_| {
                let queue = queue.clone();
                tokio::spawn(async move { queue.get().await })
            })
            .collect();
        tokio::task::yield_now().await;
        queue.add(1);
        queue.add(2);
        let mut got = Vec::new();
        for worker in workers {
            got.push(worker.await.unwrap().unwrap());
        }
        got.sort();
        assert_eq!(got, [1, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn retries_wait_longer_and_longer_up_to_the_bound() {
        let queue = Queue::new();
        let mut waits = Vec::new();
        queue.add("sad");
        for _ in 0..20 {
            let key = queue.get().await.unwrap();
            let start = Instant::now();
            queue.retry(key);
            queue.done(&key);
            assert_eq!(queue.get().await, Some("sad"));
            waits.push(start.elapsed());
            queue.done(&key);
            queue.add(key);
        }
        assert_eq!(waits[..4], [5, 10, 20, 40].map(Duration::from_millis));
        assert_eq!(waits[19], RETRY_MAX);
        queue.forget(&"sad");
        assert_eq!(queue.retry("sad"), RETRY_FIRST);
    }

    #[tokio::test(start_paused = true)]
    async fn shutting_down_wakes_everybody_and_lets_work_finish() {
        let queue = Queue::new();
        queue.add("busy");
        assert_eq!(queue.get().await, Some("busy"));
        let worker = tokio::spawn({
            let queue = queue.clone();
            async move { queue.get().await }
        });
        tokio::task::yield_now().await;
        queue.shut_down();
        assert_eq!(worker.await.unwrap(), None);
        queue.add("too late");
        queue.retry("busy");
        queue.done(&"busy");
        assert_eq!(queue.get().await, None);
        assert_eq!(queue.counts().working + queue.counts().waiting, 0);
    }
}
