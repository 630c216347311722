//! Points at which tests kill the process.

/// Environment variable with the name of the crash point at which the process aborts. Only builds with debug
/// assertions read it.
pub const CRASH_AFTER: &str = "LANDFALL_TEST_CRASH_AFTER";

/// Marks a point at which a crash would leave a file, a process or a device behind. A test
/// (`crates/landfall/tests/it/pods/crash_points.rs`) crashes the process at each point and checks that the next process
/// cleans up. Names are unique string literals; the test finds them in the source.
///
/// Does nothing in a release build.
pub fn crash_point(name: &'static str) {
    #[cfg(debug_assertions)]
    {
        use std::sync::LazyLock;
        static CHOSEN: LazyLock<Option<String>> = LazyLock::new(|| std::env::var(CRASH_AFTER).ok());
        if CHOSEN.as_deref() == Some(name) {
            // Abort runs no destructors, as with SIGKILL.
            std::process::abort();
        }
    }
    #[cfg(not(debug_assertions))]
    let _ = name;
}
