//! Time that cannot be set, to measure the difference between two moments on one machine.
//!
//! tokio's `Instant` does not fit: these times are stored and compared between processes, so they must be numbers.

/// Nanoseconds of this machine's monotonic clock, or since the start of the simulation.
pub fn monotonic() -> i64 {
    match crate::wall::simulated() {
        Some(passed) => i64::try_from(passed.as_nanos()).unwrap_or(i64::MAX),
        None => kernel_monotonic(),
    }
}

/// Identifies the current boot of the machine. [`monotonic`] values of different boots cannot be compared.
pub fn boot_id() -> String {
    match crate::wall::is_simulated() {
        true => "simulated".to_owned(),
        // Every Linux has this file. If it cannot be read, all boots look the same.
        false => std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default(),
    }
    .trim()
    .to_owned()
}

#[allow(unsafe_code, reason = "clock_gettime writes into the struct it is given")]
fn kernel_monotonic() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec that lives until the call returns.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    if failed != 0 {
        return 0; // Cannot happen on Linux; 0 means unknown.
    }
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn monotonic_time_never_decreases() {
        let before = kernel_monotonic();
        assert!(before > 0);
        assert!(kernel_monotonic() >= before);
    }

    #[test]
    fn boot_id_is_stable() {
        assert!(!boot_id().is_empty());
        assert_eq!(boot_id(), boot_id());
    }
}
