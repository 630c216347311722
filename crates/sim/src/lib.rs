//! A whole cluster in one thread, on a clock that stands still and one seed. See README.md.
//!
//! Start at `run.rs`; `scenario.rs` is the table of what there is to simulate, `judge.rs` says what
//! must be true.

#[cfg(not(tokio_unstable))]
compile_error!(
    "sim needs --cfg tokio_unstable, as .cargo/config.toml has it; a RUSTFLAGS of your own replaces that"
);

mod scenario;

mod many;
mod run;

mod cluster;
mod identity;
mod plan;
mod scale;
mod settle;

mod host;
mod plane;

mod hands;
mod life;
mod machine;
mod script;

mod line;

mod book;
mod judge;

mod chance;

pub use cluster::{Besides, Wrap};
pub use judge::Broken;
pub use many::{Summary, run_many};
pub use run::{Error, Ground, Options, Outcome, Violation, run};
pub use scale::{Phase, Size, scale};
pub use scenario::{SCALE, SCENARIOS, Scenario};
