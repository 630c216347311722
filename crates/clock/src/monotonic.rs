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

/// Which run of the machine this is: [`monotonic`] counts from another point in each.
pub fn boot() -> String {
    match crate::wall::is_simulated() {
        true => "simulated".to_owned(),
        // Every Linux has it; where it cannot be read, every run looks like the same one.
        false => std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default(),
    }
    .trim()
    .to_owned()
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

    #[test]
    fn a_run_of_the_machine_has_a_name_that_stays() {
        assert!(!boot().is_empty());
        assert_eq!(boot(), boot());
    }
}
