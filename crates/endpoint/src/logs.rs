//! Log files of containers: their paths, reading and following, rotation and removal (N-157 to N-163).
//!
//! The runtime writes them, one record per line (N-158). Not here: which instance of a container a
//! request means (`container_logs`).

mod changes;
mod paths;
mod read;
mod record;
mod removal;
mod rotate;
mod tail;

pub use paths::{container_log, link, pod_directory, unlink};
pub use read::{Query, Writer, read};
pub use removal::{remove_dead_links, remove_instance, remove_orphans};
pub(crate) use rotate::open_current;
pub use rotate::{Rotation, rotate_all, run_rotation};
