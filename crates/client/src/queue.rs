//! The work queue: holds each key at most once, and gives a key to only one worker at a time.
//!
//!     add, add_after ──▶ waiting ──▶ ready ──▶ get … done
//!                           ▲                      │ retry
//!                           └──────────────────────┘
//!
//! `queue/state.rs` makes the decisions and has no clock; this file does the waiting. The number of keys needs no
//! limit: each key is in the queue once, so there are never more keys than objects.

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

/// The longest wait between two tries. Upstream waits up to 1000 s; landfall should recover from any outage within a
/// minute.
pub const RETRY_MAX: Duration = Duration::from_secs(60);

/// The requirements on keys.
pub trait Key: Clone + Ord + Hash + fmt::Debug + Send + Sync + 'static {}

impl<K: Clone + Ord + Hash + fmt::Debug + Send + Sync + 'static> Key for K {}

/// A handle on a queue. Cheap to clone; all clones share one queue.
pub struct Queue<K> {
    shared: Arc<Shared<K>>,
}

struct Shared<K> {
    state: Mutex<State<K>>,
    /// Wakes workers when the state changes.
    changed: Notify,
}

/// Numbers about a queue, for metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// Keys that a worker could take now.
    pub ready: usize,
    /// Keys that become ready later.
    pub waiting: usize,
    /// Keys that a worker has taken.
    pub in_progress: usize,
    /// Keys taken since the start.
    pub handed_out: u64,
    /// Retries since the start.
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

    /// Adds `key`. If a worker has it now, it becomes ready again after that.
    pub fn add(&self, key: K) {
        self.state().add(key);
        self.shared.changed.notify_waiters();
    }

    /// Adds `key` after `delay`. If this is called several times, the earliest time counts.
    pub fn add_after(&self, key: K, delay: Duration) {
        self.state().add_at(key, Instant::now() + delay);
        self.shared.changed.notify_waiters();
    }

    /// Waits for the next key; `None` once the queue is shut down. The caller must call [`Queue::done`] for the key.
    pub async fn get(&self) -> Option<K> {
        loop {
            let changed = self.shared.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable(); // No change after this line is missed.
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

    /// The work on `key` has ended, successfully or not.
    pub fn done(&self, key: &K) {
        self.state().done(key);
        self.shared.changed.notify_waiters();
    }

    /// Adds `key` again with exponential backoff, and returns the delay. [`Queue::forget`] resets the backoff.
    pub fn retry(&self, key: K) -> Duration {
        let delay = self.state().retry(key, Instant::now());
        self.shared.changed.notify_waiters();
        delay
    }

    /// Resets the backoff of `key` after a success.
    pub fn forget(&self, key: &K) {
        self.state().forget(key);
    }

    /// Retries of `key` since the last [`Queue::forget`].
    pub fn failures(&self, key: &K) -> u32 {
        self.state().failures(key)
    }

    /// Rejects new keys and hands out no more. Workers may finish the keys they have.
    pub fn shut_down(&self) {
        self.state().shut_down();
        self.shared.changed.notify_waiters();
    }

    pub fn counts(&self) -> QueueCounts {
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
    async fn delayed_keys_come_when_they_are_due() {
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
    async fn a_waiting_worker_wakes_for_an_earlier_key() {
        let queue = Queue::new();
        let start = Instant::now();
        queue.add_after("late", seconds(30));
        let worker = tokio::spawn({
            let queue = queue.clone();
            async move { queue.get().await }
        });
        tokio::time::sleep(seconds(1)).await;
        queue.add_after("early", seconds(2));
        assert_eq!(worker.await.unwrap(), Some("early"));
        assert_eq!(start.elapsed(), seconds(3));
    }

    #[tokio::test(start_paused = true)]
    async fn two_keys_go_to_two_workers() {
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
    async fn retry_delays_double_up_to_the_maximum() {
        let queue = Queue::new();
        let mut waits = Vec::new();
        queue.add("failing");
        for _ in 0..20 {
            let key = queue.get().await.unwrap();
            let start = Instant::now();
            queue.retry(key);
            queue.done(&key);
            assert_eq!(queue.get().await, Some("failing"));
            waits.push(start.elapsed());
            queue.done(&key);
            queue.add(key);
        }
        assert_eq!(waits[..4], [5, 10, 20, 40].map(Duration::from_millis));
        assert_eq!(waits[19], RETRY_MAX);
        queue.forget(&"failing");
        assert_eq!(queue.retry("failing"), RETRY_FIRST);
    }

    #[tokio::test(start_paused = true)]
    async fn shut_down_wakes_all_workers_and_lets_running_work_finish() {
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
        assert_eq!(queue.counts().in_progress + queue.counts().waiting, 0);
    }
}
