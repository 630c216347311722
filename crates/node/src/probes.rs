//! Probes and lifecycle handlers: workers, thresholds, HTTP, TCP, gRPC, exec (N-89 to N-104).
//!
//! The pod's worker tells a [`Prober`] which containers run; the prober answers what is ready,
//! started and alive, and says so on a channel whenever that changes. Hooks use the same handlers.
//! Not here: what becomes of a container that failed (`lifecycle`).

mod handler;
mod hook;
mod prober;

mod dial;
mod exec;
mod grpc;
mod http;
mod http_request;
mod task;

pub(crate) use handler::Target;
pub(crate) use hook::{Said, hook_word, run_hook};
pub(crate) use prober::{ContainerNow, Kind, ProbeResult, Prober, Restored, Verdict};

/// What probes and hooks call themselves: `kube-probe/1.36`.
const VERSION: &str = "1.36";

#[cfg(test)]
mod tests;
