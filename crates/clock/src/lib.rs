#![doc = include_str!("../README.md")]

mod crash;
mod monotonic;
mod random;
mod wall;

pub use crash::{CRASH_AFTER, crash_point};
pub use monotonic::{boot_id, monotonic};
pub use random::{random_bytes, random_fraction, random_name_suffix, random_u64, uuid};
pub use wall::{jump, now, now_rfc3339, rfc3339, rfc3339_micros};

/// Switches this thread to simulated time and seeded random numbers. Each thread can run its own simulation.
///
/// Must be called inside a tokio runtime, whose clock becomes the source of time.
pub fn simulate(epoch: jiff::Timestamp, seed: u64) {
    wall::simulate(epoch);
    random::seed(seed);
}

/// Switches this thread back to the system's clock and random numbers.
pub fn stop_simulating() {
    wall::stop();
    random::stop();
}

/// Runs blocking work (mostly disk I/O) on a thread pool, so that it does not block async tasks. In a simulation
/// it runs on the current thread, because the seed cannot decide when another thread finishes.
///
/// Returns an error if the work panics or the runtime is being shut down.
pub async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, tokio::task::JoinError> {
    if wall::is_simulated() {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await
}
