//! Whole lives of pods on a node without a kernel. Each names the rules it holds a worker to.

mod dns;
mod kills;
mod network;
mod restarted;
mod retry_delay;
mod shared_status;
mod static_pods;
mod terminations;
mod users;
