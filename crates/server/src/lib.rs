//! (being written)

pub mod authn;
pub mod authz;
pub mod bootstrap;
pub mod pki;
