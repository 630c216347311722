//! After a failed pull the same image is left alone for a while, longer each time (N-68).

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::Instant;

const FIRST: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(300);
/// Without a failure for this long all is forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);

/// By pod and image.
#[derive(Default)]
pub(super) struct BackOffs {
    known: Mutex<HashMap<String, BackOff>>,
}

struct BackOff {
    /// Counted from here: the end of the failed pull.
    failed_at: Instant,
    wait: Duration,
    /// What went wrong, for whoever waits.
    last: String,
}

impl BackOffs {
    /// What went wrong, if it is too early to try again.
    pub(super) fn holds(&self, key: &str) -> Option<String> {
        let known = self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let found = known.get(key)?;
        (found.failed_at.elapsed() < found.wait).then(|| found.last.clone())
    }

    pub(super) fn failed(&self, key: &str, last: String) {
        let now = Instant::now();
        let mut known = self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        known.retain(|_, found| now - found.failed_at < FORGOTTEN_AFTER);
        let wait = known.get(key).map_or(FIRST, |found| (found.wait * 2).min(LONGEST));
        known.insert(key.to_owned(), BackOff { failed_at: now, wait, last });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long the key is held, to the second.
    async fn held(backoffs: &BackOffs, key: &str) -> u64 {
        for seconds in 0..1000 {
            if backoffs.holds(key).is_none() {
                return seconds;
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        panic!("held for ever");
    }

    #[tokio::test(start_paused = true)]
    async fn waits_double_up_to_five_minutes_and_are_forgotten_after_ten_n_68() {
        let backoffs = BackOffs::default();
        assert_eq!(backoffs.holds("a"), None);
        for wait in [10, 20, 40, 80, 160, 300, 300] {
            backoffs.failed("a", "it failed".into());
            assert_eq!(backoffs.holds("a").as_deref(), Some("it failed"));
            assert_eq!(backoffs.holds("b"), None);
            assert_eq!(held(&backoffs, "a").await, wait);
        }
        tokio::time::advance(FORGOTTEN_AFTER).await;
        backoffs.failed("a", "again".into());
        assert_eq!(held(&backoffs, "a").await, 10);
    }
}
