//! What controllers of workloads do, on a whole server and a paused clock. There is no node: what
//! containers do is written into the pods' status by the tests.

mod cluster;

mod cron_jobs;
mod daemon_sets;
mod deployments;
mod events;
mod jobs;
mod nonsense;
mod replica_sets;
mod resting;
mod stateful_sets;
