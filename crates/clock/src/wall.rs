//! The time of day: from the system, or derived from tokio's clock in a simulation.

use jiff::{SignedDuration, Timestamp};
use std::cell::Cell;
use tokio::time::Instant;

thread_local! {
    /// The simulated time of day at a moment of tokio's clock.
    static SIMULATED: Cell<Option<(Timestamp, Instant)>> = const { Cell::new(None) };
}

pub(crate) fn simulate(epoch: Timestamp) {
    SIMULATED.set(Some((epoch, Instant::now())));
}

pub(crate) fn stop() {
    SIMULATED.set(None);
}

pub(crate) fn is_simulated() -> bool {
    SIMULATED.get().is_some()
}

/// Simulates that a user sets the clock: the time of day jumps, timers are not affected. Has no effect on real
/// time.
pub fn jump(by: SignedDuration) {
    if let Some((epoch, start)) = SIMULATED.get() {
        SIMULATED.set(Some((epoch.saturating_add(by).unwrap_or(epoch), start)));
    }
}

/// Time since the simulation began; `None` outside a simulation.
pub(crate) fn simulated() -> Option<std::time::Duration> {
    SIMULATED.get().map(|(_, start)| start.elapsed())
}

/// The time of day.
///
/// Outside a simulation every call asks the system. A monotonic clock stops while a laptop sleeps, but certificates
/// and tokens expire meanwhile.
pub fn now() -> Timestamp {
    match SIMULATED.get() {
        Some((epoch, start)) => {
            let passed = SignedDuration::try_from(start.elapsed()).unwrap_or_default();
            epoch + passed
        }
        None => Timestamp::now(),
    }
}

/// The current time as Kubernetes writes it: UTC, whole seconds.
pub fn now_rfc3339() -> String {
    rfc3339(now())
}

/// `2026-01-02T03:04:05Z`: `metav1.Time`.
pub fn rfc3339(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// `2026-01-02T03:04:05.000006Z`: `metav1.MicroTime`.
pub fn rfc3339_micros(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_formatted_as_kubernetes_does() {
        let at = Timestamp::new(1_767_323_045, 6_789).unwrap();
        assert_eq!(rfc3339(at), "2026-01-02T03:04:05Z");
        assert_eq!(rfc3339_micros(at), "2026-01-02T03:04:05.000006Z");
    }

    #[tokio::test(start_paused = true)]
    async fn simulated_time_advances_only_with_the_runtime() {
        simulate(Timestamp::new(1_000, 0).unwrap());
        let before = now();
        tokio::time::sleep(std::time::Duration::from_secs(30)).await;
        assert_eq!(now().as_second() - before.as_second(), 30);
    }

    #[tokio::test(start_paused = true)]
    async fn clock_runs_on_after_a_jump() {
        simulate(Timestamp::new(1_000, 0).unwrap());
        jump(SignedDuration::from_secs(-100));
        tokio::time::sleep(std::time::Duration::from_secs(30)).await;
        assert_eq!(now().as_second(), 930);
    }
}
