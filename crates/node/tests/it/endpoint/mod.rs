//! The node's endpoint as its callers see it: directly, and through the API server with kubectl.

mod access;
mod cluster;
mod double;
mod forwarding;
mod kubectl;
mod logs;
mod shell;
mod wire;
