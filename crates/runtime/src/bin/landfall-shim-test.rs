//! Replaces the landfall binary in tests of this crate: it can only run as a shim.

use std::process::ExitCode;

fn main() -> ExitCode {
    runtime::run_shim_if_asked().unwrap_or(ExitCode::FAILURE)
}
