//! The image store: pulls or imports images and unpacks their layers for overlayfs.
//!
//!     registry ──▶ download ─┐
//!                            ├─▶ unpack (both digests checked) ──▶ layers/<digest> ──▶ images.json
//!     archive  ──▶ import ───┘
//!
//! Start at `store.rs`, which describes the files on disk. Not here: when to pull and with which secrets
//! (`node`), how a container's root filesystem is mounted (`native`).

mod archive;
mod challenge;
mod digest;
mod download;
mod image_name;
mod import;
mod inherit_directories;
mod layer_root;
mod layer_store;
mod limits;
mod locks;
mod manifest;
mod mount;
mod pull;
mod records;
mod registries;
mod registry;
mod store;
mod tar_reader;
mod unpack;

pub use image_name::ImageName;
pub use manifest::ImageConfig;
pub use registries::Registries;
pub use store::ImageStore;

use crate::{Credentials, Error, Image, ImageReference, Images, PullProgress, Result};
use std::path::{Path, PathBuf};

#[async_trait::async_trait]
impl Images for ImageStore {
    async fn find(&self, image: &ImageReference) -> Result<Option<Image>> {
        let image = image.clone();
        self.spawn_blocking(move |store| store.find_now(&image)).await
    }

    async fn list(&self) -> Result<Vec<Image>> {
        self.spawn_blocking(ImageStore::list_now).await
    }

    async fn pull(
        &self,
        image: &ImageReference,
        credentials: &[Credentials],
        progress: &(dyn Fn(PullProgress) + Send + Sync),
    ) -> Result<Image> {
        let name = ImageName::parse(&image.0)?;
        pull::pull(self, &name, credentials, progress).await
    }

    async fn remove(&self, id: &str) -> Result<()> {
        let id = id.to_owned();
        self.spawn_blocking(move |store| store.remove_now(&id)).await
    }

    fn directory(&self) -> PathBuf {
        self.root().to_owned()
    }

    async fn mount(&self, image: &str, target: &Path) -> Result<()> {
        let (image, target) = (image.to_owned(), target.to_owned());
        self.spawn_blocking(move |store| {
            mount::mount(&store.layers(&image)?, &store.empty(), &target)
        })
        .await
    }
}

impl ImageStore {
    /// Runs `work` in a thread that may block on files and locks.
    pub(crate) async fn spawn_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&ImageStore) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let store = self.clone();
        match tokio::task::spawn_blocking(move || work(&store)).await {
            Ok(outcome) => outcome,
            Err(error) => {
                Err(Error::Unavailable(format!("a task of the image store failed: {error}")))
            }
        }
    }
}
