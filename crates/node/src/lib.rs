//! The agent: turns pods bound to this node into running containers, and keeps them. See README.md.
//!
//! Start at `agent.rs`; `worker` carries one pod. Deciding is `lifecycle`'s, running is `runtime`'s.

mod agent;
mod dispatch;
mod parts;
mod pods;
mod report;
mod worker;

mod cgroup_root;
mod class_groups;
mod counted;
mod deadlines;
mod digest;
mod figures;
mod join;
mod last_words;
mod traces;

mod admission;
mod allocations;
mod config;
pub mod endpoint;
mod eviction;
mod images;
pub mod logs;
mod node_object;
mod probes;
mod shutdown;
mod static_pods;
pub mod timeline;
mod volumes;

pub use agent::{Config, Error, Listen, Running, clear_away, start};
pub use deadlines::GraceAfterRestart;
pub use join::{Credentials, Join, JoinError, fingerprint, join, serve_as};
pub use node_object::{Hardware, LEASE_DURATION, default_name};
pub use pods::Pods;
pub use shutdown::{Cut, How, Period, Periods};
