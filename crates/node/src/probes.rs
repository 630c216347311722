//! Probes and lifecycle hooks: workers, thresholds, HTTP, TCP, gRPC, exec (N-89 to N-104).
//!
//! The pod's worker tells a [`Prober`] which containers run. The prober keeps the status of their
//! probes and sends changes on a channel. Hooks use the same handlers. Not here: what happens to a
//! container that failed (`lifecycle`).

mod handler;
mod hook;
mod prober;

mod exec;
mod grpc;
mod http;
mod http_request;
mod task;
mod tcp;

pub(crate) use handler::Target;
pub(crate) use hook::{HookOutput, hook_kind, run_hook};
pub(crate) use prober::{ContainerRun, ProbeKind, ProbeResult, ProbeStatus, Prober, Restored};

/// Version in the user agent of probes and hooks: `kube-probe/1.36`.
const VERSION: &str = "1.36";

#[cfg(test)]
mod tests;
