//! Tests of the scheduler with a real server (`cluster`).

mod cluster;

mod binding;
mod preemption;
