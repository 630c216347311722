//! Tests with a real API server and real sockets on loopback.

mod dns;
