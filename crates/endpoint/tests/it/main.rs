//! Tests of the endpoint with a real API server: direct requests, and kubectl through the API server.

mod access;
mod cluster;
mod exec;
mod logs;
mod port_forward;
mod websocket;
