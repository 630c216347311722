//! When undecided certificate signing requests are tried again.
//!
//! A request never changes, but roles and the addresses of nodes do, and a write may fail. Not here: whether another
//! attempt can help (`access::signing`).

use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// Upstream: `NewTypedItemExponentialFailureRateLimiter` in `certificate_controller.go`.
const FIRST_DELAY: Duration = Duration::from_millis(200);
const LONGEST_DELAY: Duration = Duration::from_secs(1000);

/// Bounded by the number of undecided requests in the store.
#[derive(Default)]
pub(super) struct Retries {
    requests: BTreeMap<String, Retry>,
}

struct Retry {
    due: Instant,
    /// The time from the last attempt to this one.
    delay: Duration,
}

impl Retries {
    /// After twice the delay of the last attempt.
    pub(super) fn schedule(&mut self, name: &str) {
        let before = self.requests.get(name);
        let delay = before.map_or(FIRST_DELAY, |retry| LONGEST_DELAY.min(retry.delay * 2));
        self.requests.insert(name.to_owned(), Retry { due: Instant::now() + delay, delay });
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.requests.contains_key(name)
    }

    pub(super) fn forget(&mut self, name: &str) {
        self.requests.remove(name);
    }

    /// Waits until the next request is due. Cancel-safe.
    pub(super) async fn due(&self) -> String {
        match self.requests.iter().min_by_key(|(_, retry)| retry.due) {
            Some((name, retry)) => {
                sleep_until(retry.due).await;
                name.clone()
            }
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C-148, C-149: undecided requests are tried again with a growing delay.
    #[tokio::test(start_paused = true)]
    async fn c_148_retries_come_after_200_milliseconds_to_1000_seconds() {
        let mut retries = Retries::default();
        let mut waited = Vec::new();
        for _ in 0..16 {
            retries.schedule("a");
            let before = Instant::now();
            assert_eq!(retries.due().await, "a");
            waited.push(before.elapsed().as_millis());
        }
        assert_eq!(waited[..4], [200, 400, 800, 1600]);
        assert_eq!(waited[14..], [1_000_000, 1_000_000]);
        retries.schedule("a");
        retries.schedule("b");
        assert_eq!(retries.due().await, "b", "another request starts with the first delay");
        retries.forget("a");
        retries.forget("b");
        assert!(tokio::time::timeout(10 * LONGEST_DELAY, retries.due()).await.is_err());
    }
}
