#![doc = include_str!("../README.md")]

#[cfg(not(tokio_unstable))]
compile_error!(
    "sim needs --cfg tokio_unstable, which .cargo/config.toml sets; if you set RUSTFLAGS, add it there"
);

mod scenario;

mod batch;
mod run;

mod cluster;
mod identity;
mod plan;
mod scale;
mod service_traffic;
mod settle;
mod workload_request;

mod control_plane;
mod host;

mod machine;
mod process_run;
mod proxy;
mod runtime_handle;
mod script;

mod connection;

mod checker;
mod event_log;

mod random;

pub use batch::{Summary, run_many};
pub use checker::{BrokenRule, Requests};
pub use cluster::{Interference, WrapRuntime};
pub use proxy::WrapRules;
pub use run::{Error, Options, Outcome, SimulationSetup, Violation, run};
pub use scale::{Phase, Size, scale};
pub use scenario::{SCALE, SCENARIOS, Scenario};
