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
pub use monotonic::{boot, monotonic};
pub use wall::{jump, now, now_rfc3339, rfc3339, rfc3339_micros};

/// Puts this thread on simulated time and seeded chance, from the beginning. A simulated world lives
/// on one thread, so that each thread of a process can have its own.
///
/// Must be called inside a tokio runtime, whose clock becomes the source of time.
pub fn simulate(epoch: jiff::Timestamp, seed: u64) {
    wall::simulate(epoch);
    chance::seed(seed);
}

/// Puts this thread back on the system's time and chance.
pub fn stop_simulating() {
    wall::stop();
    chance::stop();
}

/// Does work that blocks (the disk, mostly) away from the runtime's tasks. A simulated world waits
/// for it right here: when another thread is done is nothing that a seed decides.
///
/// Err: the work panicked, or the runtime is being shut down.
pub async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, tokio::task::JoinError> {
    if wall::is_simulated() {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await
}
