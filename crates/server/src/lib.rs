//! HTTP to store: who asks, whether they may, what is admitted, what is stored. See README.md.

pub mod authn;
pub mod authz;
pub mod bootstrap;
pub mod discovery;
pub mod openapi;
pub mod pki;
