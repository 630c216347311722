//! The image store by its face: archives in, layers out, and nothing left of bad ones.
//!
//! Needs root: layers have owners, whiteouts and attributes that only root may make.

mod fixture;
mod hostile;
mod layers;
mod pulls;
mod server;
mod sharing;

use runtime::{Image, ImageStore};
use std::path::Path;
use tempfile::TempDir;

pub(crate) struct Place {
    pub(crate) directory: TempDir,
    pub(crate) store: ImageStore,
}

impl Place {
    pub(crate) fn new() -> Place {
        let directory = tempfile::tempdir().unwrap();
        let store = ImageStore::open(directory.path().join("store")).unwrap();
        Place { directory, store }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn import(&self, layout: &fixture::Layout) -> runtime::Result<Vec<Image>> {
        self.store.import(layout.write(self.path()), &|_| {})
    }

    /// One image of the given layers, the lowest first; where each of them is, the same way round.
    pub(crate) fn layers(&self, layers: &[Vec<u8>]) -> runtime::Result<Vec<std::path::PathBuf>> {
        let layout =
            fixture::Layout::default().image("docker.io/a/b:1", layers, serde_json::json!({}));
        let images = self.import(&layout)?;
        let mut paths = self.store.layers(&images[0].id)?;
        paths.reverse();
        Ok(paths)
    }

    /// How many things there are on the shelf and in the making.
    pub(crate) fn leftovers(&self) -> (usize, usize) {
        let count = |name: &str| self.path().join("store").join(name).read_dir().unwrap().count();
        (count("layers"), count("tmp"))
    }
}
