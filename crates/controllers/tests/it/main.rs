//! Tests of the controllers, on a whole server.

mod clearing;
mod nodes;
mod objects;
mod workloads;
