//! What running a container needs of an image.

pub(crate) use crate::ImageConfig;
use crate::{ImageStore, Images, Result};
use std::path::PathBuf;

/// Images that are here, unpacked.
pub trait Unpacked: Images {
    fn config(&self, id: &str) -> Result<ImageConfig>;

    /// Directories of its layers, topmost first.
    fn layers(&self, id: &str) -> Result<Vec<PathBuf>>;

    /// Keeps an image's layers while a container stands on them, even if the image is removed.
    fn hold(&self, container: &str, image: &str) -> Result<()>;

    /// The container is gone. Idempotent.
    fn release(&self, container: &str) -> Result<()>;

    /// Whose holds there are.
    fn holders(&self) -> Result<Vec<String>>;
}

impl Unpacked for ImageStore {
    fn config(&self, id: &str) -> Result<ImageConfig> {
        ImageStore::config(self, id)
    }

    fn layers(&self, id: &str) -> Result<Vec<PathBuf>> {
        ImageStore::layers(self, id)
    }

    fn hold(&self, container: &str, image: &str) -> Result<()> {
        ImageStore::hold(self, container, image)
    }

    fn release(&self, container: &str) -> Result<()> {
        ImageStore::release(self, container)
    }

    fn holders(&self) -> Result<Vec<String>> {
        ImageStore::holders(self)
    }
}
