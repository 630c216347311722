//! Log files of containers: where they lie, how they are read and followed, how they are rotated
//! and cleaned up (N-157 to N-163).
//!
//! Whoever runs the container writes them, one record per line (N-158); here they are only read,
//! renamed and removed. Not here: which instance of a container is meant (`endpoint`).

mod changes;
mod clean;
mod paths;
mod read;
mod record;
mod rotate;
mod tail;

pub use clean::{remove_dead_links, remove_instance, remove_orphans};
pub use paths::{container_log, link, pod_directory, unlink};
pub use read::{Query, Writer, read};
pub use rotate::{Rotation, rotate_all, run_rotation};
