//! Wakes a collection's watchers: at once when it is quiet, together when much happens.
//!
//! Waking a watcher costs the same whether it finds one event or ten. With many watchers and a
//! stream of events, waking all of them for each event would take all the time there is, and the
//! writes behind the events would wait for it. So the pause between two wake-ups grows with the
//! number of watchers. The first event after a pause is told at once; a few watchers never wait.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// What telling one watcher costs, roughly.
const PER_WATCHER: Duration = Duration::from_micros(16);
/// Pauses shorter than a timer can measure are none.
const PAUSE_MIN: Duration = Duration::from_millis(2);
/// However many watchers there are, none waits for longer.
const PAUSE_MAX: Duration = Duration::from_millis(16);

pub(crate) struct Bell {
    changed: watch::Sender<u64>,
    rung: Mutex<Rung>,
}

#[derive(Default)]
struct Rung {
    last: Option<Instant>,
    /// A wake-up is on its way, up to this revision.
    coming: Option<u64>,
}

impl Bell {
    pub(crate) fn new(revision: u64) -> Arc<Bell> {
        let (changed, _) = watch::channel(revision);
        Arc::new(Bell { changed, rung: Mutex::default() })
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Everybody has to look, whatever the revision.
    pub(crate) fn ring_now(&self) {
        self.changed.send_modify(|_| ());
    }

    /// There are events up to `revision`.
    pub(crate) fn ring(self: &Arc<Self>, revision: u64) {
        let pause = pause(self.changed.receiver_count());
        let now = Instant::now();
        let mut rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(coming) = &mut rung.coming {
            *coming = revision;
            return;
        }
        let due = rung.last.map_or(now, |last| last + pause);
        if due > now
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            rung.coming = Some(revision);
            let bell = self.clone();
            runtime.spawn(async move {
                tokio::time::sleep_until(due).await;
                bell.ring_coming();
            });
            return;
        }
        rung.last = Some(now);
        drop(rung);
        self.changed.send_replace(revision);
    }

    fn ring_coming(&self) {
        let mut rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        rung.last = Some(Instant::now());
        let coming = rung.coming.take();
        drop(rung);
        if let Some(revision) = coming {
            self.changed.send_replace(revision);
        }
    }
}

fn pause(watchers: usize) -> Duration {
    let pause = PER_WATCHER.saturating_mul(u32::try_from(watchers).unwrap_or(u32::MAX));
    if pause < PAUSE_MIN { Duration::ZERO } else { pause.min(PAUSE_MAX) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn few_watchers_are_told_of_every_event_at_once() {
        let bell = Bell::new(0);
        let mut one = bell.subscribe();
        for revision in 1..=3 {
            bell.ring(revision);
            assert!(one.has_changed().unwrap());
            assert_eq!(*one.borrow_and_update(), revision);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn many_watchers_are_told_of_many_events_together() {
        let bell = Bell::new(0);
        let mut crowd: Vec<_> = (0..1000).map(|_| bell.subscribe()).collect();
        let start = Instant::now();
        bell.ring(1);
        assert_eq!(*crowd[0].borrow_and_update(), 1, "the first event does not wait");
        bell.ring(2);
        bell.ring(3);
        assert!(!crowd[0].has_changed().unwrap());
        crowd[0].changed().await.unwrap();
        assert_eq!(*crowd[0].borrow_and_update(), 3);
        assert!(start.elapsed() <= PAUSE_MAX + Duration::from_millis(1));
    }
}
