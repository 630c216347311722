#![doc = include_str!("../README.md")]

mod start;

mod cluster_roles;
mod disruption;
mod finished_jobs;
mod garbage;
mod join_tokens;
mod load_balancer;
mod namespaces;
mod node_leases;
mod node_lost;
mod node_taints;
mod node_ttl;
mod pod_cidrs;
mod pod_garbage;
mod quotas;
mod service_addresses;
mod service_ranges;
mod services;
mod signing_requests;
mod storage;
mod system_namespaces;
mod taint_eviction;
mod token_secrets;

mod cron_job;
mod daemon_set;
mod deployment;
mod horizontal_pod_autoscaler;
mod job;
mod replica_set;
mod stateful_set;

mod controller_metrics;
mod pods;
mod served_kinds;
mod workload;

pub use pod_cidrs::{Range, Ranges};
pub use pod_garbage::FINISHED_MAX;
pub use start::{Accounts, ControllerSet, Handle, Options, start};
pub use storage::LocalVolumes;
