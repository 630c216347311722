//! Tests of volumes with a real kernel and objects from a real API server. They need root.

mod claims;
mod containers;
mod kinds;
mod shared_mounts;
mod test_node;
mod updates;
