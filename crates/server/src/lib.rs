#![doc = include_str!("../README.md")]

// The path of a request, in this order.
mod in_process;
mod listen;
mod server;

mod request;

mod audit;
mod flow;
mod metrics;

mod dispatch;

mod admission;
mod reviews;
mod service_allocation;
mod subresource;
mod terminations;
mod usage;
mod verbs;

mod fields;
mod object;

mod response;

// What requests do not reach directly.
mod documents;

mod background;
mod bootstrap;
mod custom_resources;

pub mod backup;
mod start;

pub use access::{authn, pki};
pub use audit::{AuditConfig, Rotation};
pub use documents::{discovery, openapi};
pub use in_process::InProcessService;
pub use response::ApiResponse;
pub use response::body::Body;
pub use server::Server;
pub use service_allocation::ServiceRanges;
pub use start::running::{NodeCredentials, Running};
pub use start::simulated::{ServerInstance, ServerTemplate, SimulatedServer};
pub use start::{Config, Error, StoreChoice, rotate_admin_token, start};
