//! Tests with a real API server, real sockets and the real kernel. Those that change the network run in network
//! namespaces of their own and need root.

#[allow(dead_code, reason = "not all of it is used here")]
#[path = "../../../network/tests/it/isolated.rs"]
mod isolated;

mod dns;
mod policies;
mod routes;
mod services;
