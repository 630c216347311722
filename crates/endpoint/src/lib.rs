#![doc = include_str!("../README.md")]

mod endpoint;

mod access;
mod listen;
mod routes;

mod query;
mod response;
mod upgrade;

mod exec;
mod port_forward;
mod remote_command;
mod spdy_streams;
mod websocket;

mod container_logs;
mod host_logs;
pub mod logs;

mod machine;
mod metrics;
mod metrics_pages;
mod stats;

pub use endpoint::{Endpoint, PORT, PodLookup, serve, server_config};
pub use listen::{Health, Serving, serve_health};
pub use metrics::{Labels, Metrics};
