//! HTTP to store: who asks, whether they may, what is admitted, what is stored. See README.md.

mod listen;
mod run;
mod server;

mod request;
mod negotiate;
mod body;
mod decode;
mod call;
mod dispatch;

pub mod authn;
pub mod authz;
pub mod pki;

mod admission;
mod verbs;
mod subresource;
mod reviews;
mod services;

mod object;
mod views;
mod answer;
mod error;
mod gzip;

pub mod discovery;
mod documents;
pub mod openapi;

pub mod bootstrap;
mod upkeep;
mod audit;
mod metrics;

pub use answer::Answer;
pub use body::Body;
pub use run::{Config, Running, StoreChoice, start};
pub use server::Server;
