//! Signing requests that are looked at again, and when.
//!
//! What a request says never changes, but who may make nodes does, and so does where nodes are; and a
//! write may fail. Not here: whether another look can help (`approval`).

use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// Upstream: `NewTypedItemExponentialFailureRateLimiter` in `certificate_controller.go`.
const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(1000);

/// As many as there are undecided requests in the store, at most.
#[derive(Default)]
pub(super) struct Pending {
    requests: BTreeMap<String, Look>,
}

struct Look {
    due: Instant,
    /// The time from the last look to this one.
    after: Duration,
}

impl Pending {
    /// After twice the time that was waited before.
    pub(super) fn look_again(&mut self, name: &str) {
        let before = self.requests.get(name);
        let after = before.map_or(FIRST, |look| LONGEST.min(look.after * 2));
        self.requests.insert(name.to_owned(), Look { due: Instant::now() + after, after });
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.requests.contains_key(name)
    }

    pub(super) fn forget(&mut self, name: &str) {
        self.requests.remove(name);
    }

    /// The request whose time comes first, when it has come. Cancel-safe.
    pub(super) async fn due(&self) -> String {
        match self.requests.iter().min_by_key(|(_, look)| look.due) {
            Some((name, look)) => {
                sleep_until(look.due).await;
                name.clone()
            }
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C-148, C-149
    #[tokio::test(start_paused = true)]
    async fn c_148_looks_come_from_a_fifth_of_a_second_to_a_thousand_seconds_apart() {
        let mut pending = Pending::default();
        let mut waited = Vec::new();
        for _ in 0..16 {
            pending.look_again("a");
            let before = Instant::now();
            assert_eq!(pending.due().await, "a");
            waited.push(before.elapsed().as_millis());
        }
        assert_eq!(waited[..4], [200, 400, 800, 1600]);
        assert_eq!(waited[14..], [1_000_000, 1_000_000]);
        pending.look_again("b");
        assert_eq!(pending.due().await, "b", "another one begins anew");
        pending.forget("a");
        pending.forget("b");
        assert!(tokio::time::timeout(10 * LONGEST, pending.due()).await.is_err());
    }
}
