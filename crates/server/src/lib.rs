//! HTTP to store: who asks, whether they may, what is admitted, what is stored. See README.md.

mod indoors;
mod listen;
mod run;
mod server;
mod service;

mod body;
mod call;
mod deadline;
mod decode;
mod dispatch;
mod negotiate;
mod request;

pub mod authn;
pub mod authz;
pub mod pki;

mod admission;
mod reviews;
mod services;
mod subresource;
mod verbs;
mod warnings;

mod answer;
mod error;
mod gzip;
mod object;
mod views;

pub mod discovery;
mod documents;
pub mod openapi;

mod audit;
pub mod bootstrap;
mod customs;
mod expiry;
mod fields;
mod follower;
mod metrics;
mod own_service;
mod signing;
mod signs;
mod terminations;
mod upkeep;
mod usage;

pub use answer::Answer;
pub use body::Body;
pub use indoors::{Foundation, Indoors, Site};
pub use run::{Config, Error, NodeCredentials, Running, StoreChoice, start};
pub use server::Server;
pub use service::Door;
