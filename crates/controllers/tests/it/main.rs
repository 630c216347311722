//! Tests of the controllers with a real server.

mod accounts;

mod expiry;
mod nodes;
mod objects;
mod workloads;
