//! Wakes a collection's watchers: a few at once, many in groups.
//!
//! Waking a thousand watchers together would keep every core busy, and other work, above all the next write, would wait
//! until the last of them was served. So watchers are in groups, and a task wakes group after group and yields in
//! between. A group that is woken late finds all events up to then, so under load more events are delivered at a time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::watch;

/// Watchers per group.
const GROUP: usize = 8;
/// Other tasks run between two steps, so small steps let many writes happen in between, and their events are delivered
/// together. But the last group waits for all steps, so there should be fewer steps if there are more groups. With this
/// divisor a hundred groups take about ten steps.
const STRIDE_DIVISOR: usize = 1000;
/// After waking more groups than this, the task pauses: a write can complete meanwhile, and its event is delivered together
/// with the next one.
const MANY_GROUPS: usize = 12;
const PAUSE: Duration = Duration::from_millis(1);

pub(crate) struct WatcherWakeups {
    groups: RwLock<Vec<watch::Sender<u64>>>,
    /// There are events up to this revision.
    latest: AtomicU64,
    /// Whether the waking task runs.
    running: AtomicBool,
}

impl WatcherWakeups {
    pub(crate) fn new(revision: u64) -> Arc<WatcherWakeups> {
        Arc::new(WatcherWakeups {
            groups: RwLock::new(vec![watch::Sender::new(revision)]),
            latest: AtomicU64::new(revision),
            running: AtomicBool::new(false),
        })
    }

    /// Adds a watcher to the first group with a free place.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        let mut groups = self.groups.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(group) = groups.iter().find(|group| group.receiver_count() < GROUP) {
            return group.subscribe();
        }
        let group = watch::Sender::new(self.latest.load(SeqCst));
        let place = group.subscribe();
        groups.push(group);
        place
    }

    /// Wakes all watchers, whatever the revision.
    pub(crate) fn wake_all(&self) {
        for group in self.groups() {
            group.send_modify(|_| ());
        }
    }

    /// Wakes the watchers: there are events up to `revision`.
    pub(crate) fn wake(self: &Arc<Self>, revision: u64) {
        self.latest.fetch_max(revision, SeqCst);
        let groups = self.groups();
        let [first, others @ ..] = groups.as_slice() else { return };
        first.send_replace(revision);
        if others.iter().all(|group| group.receiver_count() == 0) {
            return;
        }
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) if !self.running.swap(true, SeqCst) => {
                runtime.spawn(self.clone().wake_groups());
            }
            Ok(_) => {} // The running task will handle it.
            Err(_) => {
                for group in others {
                    group.send_replace(revision);
                }
            }
        }
    }

    /// Wakes group after group until all have the latest revision.
    async fn wake_groups(self: Arc<Self>) {
        loop {
            let mut woke_any = false;
            // Ignores groups whose watchers are gone.
            let mut groups = self.groups();
            groups.retain(|group| group.receiver_count() > 0);
            let stride = (groups.len() * groups.len() / STRIDE_DIVISOR).max(1);
            for step in groups.chunks(stride) {
                let latest = self.latest.load(SeqCst);
                let mut woken = false;
                for group in step.iter().filter(|group| *group.borrow() < latest) {
                    group.send_replace(latest);
                    woken = true;
                }
                if woken {
                    woke_any = true;
                    // Runs again after the woken watchers and all other ready tasks.
                    tokio::task::yield_now().await;
                }
            }
            if woke_any {
                if groups.len() > MANY_GROUPS {
                    tokio::time::sleep(PAUSE).await;
                }
                continue;
            }
            self.running.store(false, SeqCst);
            // A call of `wake` before the line above has relied on this task.
            let latest = self.latest.load(SeqCst);
            let behind =
                |group: &watch::Sender<u64>| group.receiver_count() > 0 && *group.borrow() < latest;
            let missed = self.groups().iter().any(behind);
            if !missed || self.running.swap(true, SeqCst) {
                return;
            }
        }
    }

    fn groups(&self) -> Vec<watch::Sender<u64>> {
        self.groups.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_few_watchers_are_woken_at_once_for_every_event() {
        let wakeups = WatcherWakeups::new(0);
        let mut some: Vec<_> = (0..GROUP).map(|_| wakeups.subscribe()).collect();
        for revision in 1..=3 {
            wakeups.wake(revision);
            for watcher in &mut some {
                assert!(watcher.has_changed().unwrap());
                assert_eq!(*watcher.borrow_and_update(), revision);
            }
        }
    }

    #[tokio::test]
    async fn many_watchers_are_woken_in_groups_and_the_last_get_all_events() {
        let wakeups = WatcherWakeups::new(0);
        let mut watchers: Vec<_> = (0..10 * GROUP).map(|_| wakeups.subscribe()).collect();
        wakeups.wake(1);
        assert_eq!(*watchers[0].borrow_and_update(), 1, "the first group is woken at once");
        assert!(!watchers[9 * GROUP].has_changed().unwrap(), "the last group is not woken yet");
        wakeups.wake(2);
        for watcher in &mut watchers {
            watcher.wait_for(|revision| *revision >= 2).await.unwrap();
        }
        assert_eq!(*watchers[9 * GROUP].borrow(), 2, "woken once, for both");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_watcher_is_missed_under_concurrent_wakeups() {
        let wakeups = WatcherWakeups::new(0);
        let watchers: Vec<_> = (0..5 * GROUP).map(|_| wakeups.subscribe()).collect();
        let last = 2_000;
        let waiting: Vec<_> = watchers
            .into_iter()
            .map(|mut watcher| {
                tokio::spawn(
                    async move { drop(watcher.wait_for(|seen| *seen >= last).await.unwrap()) },
                )
            })
            .collect();
        for revision in 1..=last {
            wakeups.wake(revision);
            if revision % 7 == 0 {
                tokio::task::yield_now().await;
            }
        }
        for watcher in waiting {
            watcher.await.unwrap();
        }
    }

    #[tokio::test]
    async fn places_of_dropped_watchers_are_reused() {
        let wakeups = WatcherWakeups::new(0);
        for _ in 0..100 {
            let watchers: Vec<_> = (0..3 * GROUP).map(|_| wakeups.subscribe()).collect();
            drop(watchers);
        }
        assert_eq!(wakeups.groups().len(), 3);
    }
}
