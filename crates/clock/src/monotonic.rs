//! Time that nobody can set: for differences between two things on one machine.
//!
//! Not tokio's `Instant`, which has no number: these are compared between processes, and kept.

/// Nanoseconds of this machine's monotonic clock; of the simulation, if this is one.
pub fn monotonic() -> i64 {
    match crate::wall::simulated() {
        Some(passed) => i64::try_from(passed.as_nanos()).unwrap_or(i64::MAX),
        None => of_the_kernel(),
    }
}

#[allow(unsafe_code, reason = "clock_gettime writes into the struct it is given")]
fn of_the_kernel() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec that lives until the call returns.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    if failed != 0 {
        return 0; // Not possible on Linux; 0 is "not known".
    }
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_only_goes_forward() {
        let before = of_the_kernel();
        assert!(before > 0);
        assert!(of_the_kernel() >= before);
    }
}
