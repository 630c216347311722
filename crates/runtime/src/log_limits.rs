//! Limits of a container's log files. The defaults are those of upstream (N-159).

use serde::{Deserialize, Serialize};

/// Limits of one container's log files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLimits {
    /// Maximum size of a file. At this size it is renamed and a new file is started.
    pub max_bytes: u64,
    /// Maximum number of files per container, including the current one. At least 2.
    pub max_files: usize,
}

impl Default for LogLimits {
    fn default() -> Self {
        LogLimits { max_bytes: 10 << 20, max_files: 5 }
    }
}
