//! Whole lives of pods on a node without a kernel. Each names the rules it holds a worker to.

mod dns;
mod endings;
mod held;
mod kills;
mod network;
mod restarted;
mod static_pods;
