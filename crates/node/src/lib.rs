//! The agent: turns pods bound to this node into running containers, and keeps them. See README.md.
//!
//! Start at `agent.rs`; `worker` carries one pod. Deciding is `lifecycle`'s, running is `runtime`'s.

mod pods;

mod admission;
mod config;
mod endpoint;
mod eviction;
mod images;
mod logs;
mod node_object;
mod probes;
mod static_pods;
mod volumes;
