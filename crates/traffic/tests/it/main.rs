//! Tests with a real API server, real sockets and the real kernel. Those that change the network run in network
//! namespaces of their own and need root.

mod dns;
mod policies;
mod routes;
mod services;
