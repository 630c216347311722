//! Workload controllers, with a real server and a paused clock. There are no real nodes: the tests write the status of
//! pods.

mod cluster;

mod cron_jobs;
mod daemon_sets;
mod deployments;
mod events;
mod idle;
mod invalid_requests;
mod jobs;
mod replica_sets;
mod stateful_sets;
