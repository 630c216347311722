//! The one clock and the one source of chance (decision 1 of the design).
//!
//! Everything that asks "what time is it" or wants a random number asks here, so that a whole
//! cluster can run on a paused clock from one seed. In an ordinary process the answers are the
//! system's. After [`simulate`], wall time is the given epoch plus the time that tokio's (paused)
//! clock says has passed, and chance is a sequence that the seed decides.
//!
//! Not here: waiting. Every wait is `tokio::time`, which a paused runtime already controls.

mod chance;
mod monotonic;
mod wall;

pub use chance::{fraction, random_bytes, random_name_suffix, random_u64, uuid};
pub use monotonic::monotonic;
pub use wall::{now, now_rfc3339, rfc3339, rfc3339_micros};

/// Puts this process on simulated time and seeded chance. Only the first call counts.
///
/// Must be called inside a tokio runtime, whose clock becomes the source of time.
pub fn simulate(epoch: jiff::Timestamp, seed: u64) {
    wall::simulate(epoch);
    chance::seed(seed);
}
