//! Images, kept by the digests of their content: fetched or imported, unpacked, handed to overlayfs.
//!
//!     registry ──▶ download ─┐
//!                            ├─▶ unpack (both digests checked) ──▶ layers/<digest> ──▶ images.json
//!     archive  ──▶ import ───┘
//!
//! Start at `store.rs`, which says what is on disk. Not here: when to pull and with which secrets
//! (the node), how a root filesystem is mounted for a container (`native`).

mod adopt;
mod archive;
mod challenge;
mod digest;
mod download;
mod import;
mod limits;
mod locks;
mod manifest;
mod mount;
mod pull;
mod records;
mod reference;
mod registries;
mod registry;
mod root;
mod shelf;
mod store;
mod tape;
mod unpack;

pub use manifest::ImageConfig;
pub use reference::Name;
pub use registries::Registries;
pub use store::ImageStore;

use crate::{Credentials, Error, Image, ImageReference, Images, PullProgress, Result};
use std::path::{Path, PathBuf};

#[async_trait::async_trait]
impl Images for ImageStore {
    async fn find(&self, image: &ImageReference) -> Result<Option<Image>> {
        let image = image.clone();
        self.aside(move |store| store.find_now(&image)).await
    }

    async fn list(&self) -> Result<Vec<Image>> {
        self.aside(ImageStore::list_now).await
    }

    async fn pull(
        &self,
        image: &ImageReference,
        credentials: &[Credentials],
        progress: &(dyn Fn(PullProgress) + Send + Sync),
    ) -> Result<Image> {
        let name = Name::parse(&image.0)?;
        pull::pull(self, &name, credentials, progress).await
    }

    async fn remove(&self, id: &str) -> Result<()> {
        let id = id.to_owned();
        self.aside(move |store| store.remove_now(&id)).await
    }

    fn directory(&self) -> PathBuf {
        self.root().to_owned()
    }

    async fn mount(&self, image: &str, target: &Path) -> Result<()> {
        let (image, target) = (image.to_owned(), target.to_owned());
        self.aside(move |store| mount::mount(&store.layers(&image)?, &store.empty(), &target)).await
    }
}

impl ImageStore {
    /// Off the threads that run tasks: files and locks make their caller wait.
    pub(crate) async fn aside<T: Send + 'static>(
        &self,
        work: impl FnOnce(&ImageStore) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let store = self.clone();
        match tokio::task::spawn_blocking(move || work(&store)).await {
            Ok(answer) => answer,
            Err(error) => Err(Error::Unavailable(format!("the image store stopped: {error}"))),
        }
    }
}
