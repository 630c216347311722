//! How many pulls may begin in a while; what is more fails (N-69).

use std::sync::Mutex;
use tokio::time::Instant;

pub(super) struct Rate {
    per_second: f64,
    burst: f64,
    /// What is left, and when that was so.
    left: Mutex<Option<(f64, Instant)>>,
}

impl Rate {
    pub(super) fn new(per_second: f64, burst: f64) -> Rate {
        Rate { per_second, burst, left: Mutex::new(None) }
    }

    pub(super) fn allows(&self) -> bool {
        let now = Instant::now();
        let mut left = self.left.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (tokens, at) = left.unwrap_or((self.burst, now));
        let tokens = (tokens + (now - at).as_secs_f64() * self.per_second).min(self.burst);
        let allowed = tokens >= 1.0;
        *left = Some((if allowed { tokens - 1.0 } else { tokens }, now));
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn a_burst_is_followed_by_a_trickle_n_69() {
        let rate = Rate::new(5.0, 10.0);
        assert_eq!((0..20).filter(|_| rate.allows()).count(), 10);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!((0..20).filter(|_| rate.allows()).count(), 5);
        tokio::time::advance(Duration::from_secs(100)).await;
        assert_eq!((0..20).filter(|_| rate.allows()).count(), 10);
    }
}
