//! One file per controller. See README.md.

mod node_leases;
mod node_taints;
mod pod_cidrs;

mod cron_job;
mod daemon_set;
mod deployment;
mod job;
mod replica_set;
mod stateful_set;

mod workload;

mod start;

pub use pod_cidrs::Range;
pub use start::{Handle, Options, start};
