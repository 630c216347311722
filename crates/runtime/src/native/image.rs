//! The part of the image store that containers need.

pub(crate) use crate::ImageConfig;
use crate::{ImageStore, Images, Result};
use std::path::PathBuf;

/// Images whose layers are unpacked on this node.
pub trait UnpackedImages: Images {
    fn config(&self, id: &str) -> Result<ImageConfig>;

    /// Directories of its layers, topmost first.
    fn layers(&self, id: &str) -> Result<Vec<PathBuf>>;

    /// Keeps the layers of an image for a container, even if the image is removed.
    fn hold(&self, container: &str, image: &str) -> Result<()>;

    /// Ends the hold of a container. Idempotent.
    fn release(&self, container: &str) -> Result<()>;

    /// All containers and other users that hold images.
    fn holders(&self) -> Result<Vec<String>>;
}

impl UnpackedImages for ImageStore {
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
