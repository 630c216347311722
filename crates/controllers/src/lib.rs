//! One file per controller. See README.md.

mod finished_jobs;
mod garbage;
mod namespaces;
mod node_leases;
mod node_taints;
mod pod_cidrs;
mod pod_garbage;

mod deployment;
mod replica_set;

mod pods;
mod workload;

mod start;

pub use pod_cidrs::Range;
pub use pod_garbage::FINISHED_MAX;
pub use start::{Handle, Options, start};
