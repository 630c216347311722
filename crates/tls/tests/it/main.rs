//! Tests of TLS without a network.

mod handshakes;
