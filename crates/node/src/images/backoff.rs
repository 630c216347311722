//! Exponential back-off after failed pulls of an image (N-68).

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::Instant;

const FIRST: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(300);
/// A back-off without a failure for this long is removed.
const RESET_AFTER: Duration = Duration::from_secs(600);

/// The back-offs, by pod and image.
#[derive(Default)]
pub(super) struct BackOffs {
    known: Mutex<HashMap<String, BackOff>>,
}

struct BackOff {
    /// When the pull failed.
    failed_at: Instant,
    wait: Duration,
    /// The last error.
    error: String,
}

impl BackOffs {
    /// The last error, if it is too early to try again.
    pub(super) fn active(&self, key: &str) -> Option<String> {
        let known = self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let found = known.get(key)?;
        (found.failed_at.elapsed() < found.wait).then(|| found.error.clone())
    }

    pub(super) fn failed(&self, key: &str, error: String) {
        let now = Instant::now();
        let mut known = self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        known.retain(|_, found| now - found.failed_at < RESET_AFTER);
        let wait = known.get(key).map_or(FIRST, |found| (found.wait * 2).min(LONGEST));
        known.insert(key.to_owned(), BackOff { failed_at: now, wait, error });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds until the back-off of the key is over.
    async fn duration(backoffs: &BackOffs, key: &str) -> u64 {
        for seconds in 0..1000 {
            if backoffs.active(key).is_none() {
                return seconds;
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        panic!("the back-off does not end");
    }

    #[tokio::test(start_paused = true)]
    async fn n_68_the_back_off_doubles_up_to_five_minutes_and_is_reset_after_ten() {
        let backoffs = BackOffs::default();
        assert_eq!(backoffs.active("a"), None);
        for wait in [10, 20, 40, 80, 160, 300, 300] {
            backoffs.failed("a", "it failed".into());
            assert_eq!(backoffs.active("a").as_deref(), Some("it failed"));
            assert_eq!(backoffs.active("b"), None);
            assert_eq!(duration(&backoffs, "a").await, wait);
        }
        tokio::time::advance(RESET_AFTER).await;
        backoffs.failed("a", "again".into());
        assert_eq!(duration(&backoffs, "a").await, 10);
    }
}
