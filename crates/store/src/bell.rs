//! Wakes a collection's watchers: a few at once, a crowd in a wave.
//!
//! Waking a thousand watchers together keeps every core busy for a while, and whatever comes in
//! meanwhile, the next write above all, waits until the last of them was served. So watchers stand
//! in groups, and a wave goes from group to group, letting others run in between. It is paced by the
//! work it causes, and a group that is reached late finds all events there are by
//! then: the more happens, the more is told at a time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::watch;

/// Watchers that stand together.
const GROUP: usize = 8;
/// Between two steps of a wave others have their turn, so small steps let many writes in between, and
/// the events they make are told together. But the last in the crowd waits for all steps: the larger
/// the crowd, the fewer there should be. With this divisor a hundred groups take about ten.
const STRIDE_DIVISOR: usize = 1000;
/// After a wave through more groups than this, the next one lets a moment pass: a write that has the
/// machine for itself is done by then, and two events are told for the price of one.
const CROWD: usize = 12;
const MOMENT: Duration = Duration::from_millis(1);

pub(crate) struct Bell {
    groups: RwLock<Vec<watch::Sender<u64>>>,
    /// There are events up to this revision.
    latest: AtomicU64,
    /// A wave is on its way.
    rolling: AtomicBool,
}

impl Bell {
    pub(crate) fn new(revision: u64) -> Arc<Bell> {
        Arc::new(Bell {
            groups: RwLock::new(vec![watch::Sender::new(revision)]),
            latest: AtomicU64::new(revision),
            rolling: AtomicBool::new(false),
        })
    }

    /// A place in the first group that has room.
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

    /// Everybody has to look, whatever the revision.
    pub(crate) fn ring_now(&self) {
        for group in self.groups() {
            group.send_modify(|_| ());
        }
    }

    /// There are events up to `revision`.
    pub(crate) fn ring(self: &Arc<Self>, revision: u64) {
        self.latest.fetch_max(revision, SeqCst);
        let groups = self.groups();
        let [first, others @ ..] = groups.as_slice() else { return };
        first.send_replace(revision);
        if others.iter().all(|group| group.receiver_count() == 0) {
            return;
        }
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) if !self.rolling.swap(true, SeqCst) => {
                runtime.spawn(self.clone().roll());
            }
            Ok(_) => {} // The wave that is on its way will come by again.
            Err(_) => {
                for group in others {
                    group.send_replace(revision);
                }
            }
        }
    }

    /// Goes from group to group until all have been told of the latest revision.
    async fn roll(self: Arc<Self>) {
        loop {
            let mut told = false;
            // Groups that a former crowd has left empty do not count.
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
                    told = true;
                    // Behind those just woken, and behind everybody else who has work to do.
                    tokio::task::yield_now().await;
                }
            }
            if told {
                if groups.len() > CROWD {
                    tokio::time::sleep(MOMENT).await;
                }
                continue;
            }
            self.rolling.store(false, SeqCst);
            // A ring between the last look and the line above found a wave and left it to that.
            let latest = self.latest.load(SeqCst);
            let behind =
                |group: &watch::Sender<u64>| group.receiver_count() > 0 && *group.borrow() < latest;
            let missed = self.groups().iter().any(behind);
            if !missed || self.rolling.swap(true, SeqCst) {
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
    async fn a_few_watchers_are_told_of_every_event_at_once() {
        let bell = Bell::new(0);
        let mut some: Vec<_> = (0..GROUP).map(|_| bell.subscribe()).collect();
        for revision in 1..=3 {
            bell.ring(revision);
            for watcher in &mut some {
                assert!(watcher.has_changed().unwrap());
                assert_eq!(*watcher.borrow_and_update(), revision);
            }
        }
    }

    #[tokio::test]
    async fn a_crowd_is_told_in_a_wave_and_the_last_hear_all_there_is() {
        let bell = Bell::new(0);
        let mut crowd: Vec<_> = (0..10 * GROUP).map(|_| bell.subscribe()).collect();
        bell.ring(1);
        assert_eq!(*crowd[0].borrow_and_update(), 1, "the first group does not wait");
        assert!(!crowd[9 * GROUP].has_changed().unwrap(), "the last has not been reached");
        bell.ring(2);
        for watcher in &mut crowd {
            watcher.wait_for(|revision| *revision >= 2).await.unwrap();
        }
        assert_eq!(*crowd[9 * GROUP].borrow(), 2, "told once, of both");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nobody_is_forgotten_however_rings_and_waves_meet() {
        let bell = Bell::new(0);
        let crowd: Vec<_> = (0..5 * GROUP).map(|_| bell.subscribe()).collect();
        let last = 2_000;
        let waiting: Vec<_> = crowd
            .into_iter()
            .map(|mut watcher| {
                tokio::spawn(
                    async move { drop(watcher.wait_for(|seen| *seen >= last).await.unwrap()) },
                )
            })
            .collect();
        for revision in 1..=last {
            bell.ring(revision);
            if revision % 7 == 0 {
                tokio::task::yield_now().await;
            }
        }
        for watcher in waiting {
            watcher.await.unwrap();
        }
    }

    #[tokio::test]
    async fn room_that_watchers_leave_is_used_again() {
        let bell = Bell::new(0);
        for _ in 0..100 {
            let crowd: Vec<_> = (0..3 * GROUP).map(|_| bell.subscribe()).collect();
            drop(crowd);
        }
        assert_eq!(bell.groups().len(), 3);
    }
}
