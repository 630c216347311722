//! Tests with a real API server and the real kernel, in network namespaces of their own. They need root.

mod policies;
mod routes;
