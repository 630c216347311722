#![doc = include_str!("../README.md")]

mod run;

mod actions;
mod decide;
mod preempt;
mod queue;

mod filters;
mod scores;

mod affinity_terms;
mod cluster_state;
mod pod_counts;
mod selector_index;
mod view;
mod volumes;
mod workloads;

mod amounts;
mod messages;
mod node;
mod pod;
mod scheduler_metrics;

pub use run::{Handle, run, start};
