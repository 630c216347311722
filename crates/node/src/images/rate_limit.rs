//! Limits how many pulls may start per second; further ones fail (N-69).

use std::sync::Mutex;
use tokio::time::Instant;

pub(super) struct RateLimit {
    per_second: f64,
    burst: f64,
    /// Tokens left, and when that was computed.
    left: Mutex<Option<(f64, Instant)>>,
}

impl RateLimit {
    pub(super) fn new(per_second: f64, burst: f64) -> RateLimit {
        RateLimit { per_second, burst, left: Mutex::new(None) }
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
    async fn n_69_a_burst_is_allowed_and_then_five_pulls_per_second() {
        let rate = RateLimit::new(5.0, 10.0);
        assert_eq!((0..20).filter(|_| rate.allows()).count(), 10);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!((0..20).filter(|_| rate.allows()).count(), 5);
        tokio::time::advance(Duration::from_secs(100)).await;
        assert_eq!((0..20).filter(|_| rate.allows()).count(), 10);
    }
}
