//! Registration against a real server.
