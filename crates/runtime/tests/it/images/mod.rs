//! The image store through its public interface.
//!
//! Needs root: only root can set the owners, whiteouts and attributes of layers.

mod fixture;
mod hostile;
mod layers;
mod pulls;
mod server;
mod sharing;

use runtime::{Image, ImageStore};
use std::path::Path;
use tempfile::TempDir;

/// An image store in a temporary directory.
pub(crate) struct TestStore {
    pub(crate) directory: TempDir,
    pub(crate) store: ImageStore,
}

impl TestStore {
    pub(crate) fn new() -> TestStore {
        let directory = tempfile::tempdir().unwrap();
        let store = ImageStore::open(directory.path().join("store")).unwrap();
        TestStore { directory, store }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn import(&self, layout: &fixture::Layout) -> runtime::Result<Vec<Image>> {
        self.store.import(layout.write(self.path()), &|_| {})
    }

    /// Imports an image with these layers, the lowest first. Returns the directories of the layers in the same order.
    pub(crate) fn layers(&self, layers: &[Vec<u8>]) -> runtime::Result<Vec<std::path::PathBuf>> {
        let layout =
            fixture::Layout::default().image("docker.io/a/b:1", layers, serde_json::json!({}));
        let images = self.import(&layout)?;
        let mut paths = self.store.layers(&images[0].id)?;
        paths.reverse();
        Ok(paths)
    }

    /// The number of stored layers and of temporary files.
    pub(crate) fn leftovers(&self) -> (usize, usize) {
        let count = |name: &str| self.path().join("store").join(name).read_dir().unwrap().count();
        (count("layers"), count("tmp"))
    }
}
