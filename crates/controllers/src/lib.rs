//! One file per controller. See README.md.

mod join_tokens;
mod node_leases;
mod node_taints;
mod pod_cidrs;
mod signing_requests;

mod start;

pub use pod_cidrs::Range;
pub use start::{Handle, Options, start};
