//! What running a container needs of an image.

pub(crate) use crate::ImageConfig;
use crate::{ImageStore, Images, Result};
use std::path::PathBuf;

/// Images that are here, unpacked.
pub trait Unpacked: Images {
    fn config(&self, id: &str) -> Result<ImageConfig>;

    /// Directories of its layers, topmost first.
    fn layers(&self, id: &str) -> Result<Vec<PathBuf>>;
}

impl Unpacked for ImageStore {
    fn config(&self, id: &str) -> Result<ImageConfig> {
        ImageStore::config(self, id)
    }

    fn layers(&self, id: &str) -> Result<Vec<PathBuf>> {
        ImageStore::layers(self, id)
    }
}
