//! Tests of the node that need a whole server.

mod endpoint;
