//! Stands in for the landfall binary in this crate's tests: it can be a shim and nothing else.

use std::process::ExitCode;

fn main() -> ExitCode {
    runtime::run_shim_if_asked().unwrap_or(ExitCode::FAILURE)
}
