//! What running a container needs of an image.

use crate::{Images, Result};
use std::path::PathBuf;

/// What an image says about how to run it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageConfig {
    pub entrypoint: Vec<String>,
    pub cmd: Vec<String>,
    pub env: Vec<(String, String)>,
    pub working_dir: Option<String>,
    pub user: String,
    pub stop_signal: Option<String>,
    pub volumes: Vec<String>,
}

/// Images that are here, unpacked.
pub trait Unpacked: Images {
    fn config(&self, id: &str) -> Result<ImageConfig>;

    /// Directories of its layers, topmost first.
    fn layers(&self, id: &str) -> Result<Vec<PathBuf>>;
}
