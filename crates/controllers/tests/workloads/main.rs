//! What controllers of workloads do, on a whole server and a paused clock. There is no node: what
//! containers do is written into the pods' status by the tests.

mod cluster;

mod deployments;
mod replica_sets;
