#![doc = include_str!("../README.md")]

pub mod authn;
pub mod authz;
pub mod default_roles;
pub mod pki;
pub mod signing;

pub use authn::User;
