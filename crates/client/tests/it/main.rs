//! Tests of the client, against a real server (`cluster`) and against a simulated one (`fake_server`).

mod cluster;
mod fake_server;

mod controller;
mod decoding;
mod events;
mod leadership;
mod lease_takeover;
mod transports;
mod watch_failures;
