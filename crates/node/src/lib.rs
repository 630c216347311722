#![doc = include_str!("../README.md")]

mod agent;
mod dependencies;
mod dispatch;
mod pods;
mod report;
mod worker;

mod cgroup_root;
mod deadlines;
mod digest;
mod instrumented_runtime;
mod join;
mod kernel_state;
mod metrics;
mod pod_ranges;
mod qos_cgroups;
mod termination_message;
mod traffic;

mod admission;
mod allocations;
mod eviction;
mod images;
mod node_object;
mod probes;
mod shutdown;
mod static_pods;
pub mod timeline;

pub use agent::{Config, Error, Listen, Running, remove_leftovers, start};
pub use deadlines::GraceAfterRestart;
pub use join::{Credentials, Join, JoinError, fingerprint, join, serve_as};
pub use kernel_state::{network_records, remove_traffic_rules, service_table};
pub use node_object::{Hardware, LEASE_DURATION, default_name};
pub use pods::Pods;
pub use shutdown::{Outcome, Period, Periods, ShortenedPod};
pub use traffic::{NodeNetwork, Traffic};
