//! Images of a test machine: all of them are present.

use super::{Machine, unsupported};
use async_trait::async_trait;
use runtime::{Credentials, Error, Image, ImageReference, Images, PullProgress, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Makes the files of an image appear in a directory.
pub(super) type MountImage = Arc<dyn Fn(&Path) -> std::io::Result<()> + Send + Sync>;

#[derive(Clone)]
pub(super) struct ImageContent {
    pub(super) directory: PathBuf,
    pub(super) mount: MountImage,
}

#[async_trait]
impl Images for Machine {
    async fn find(&self, image: &ImageReference) -> Result<Option<Image>> {
        Ok(Some(Image {
            id: image.0.clone(),
            tags: vec![image.0.clone()],
            digests: Vec::new(),
            size: 1,
            uid: None,
            username: String::new(),
            pinned: false,
        }))
    }

    async fn list(&self) -> Result<Vec<Image>> {
        Ok(Vec::new())
    }

    async fn pull(
        &self,
        _: &ImageReference,
        _: &[Credentials],
        _: &(dyn Fn(PullProgress) + Send + Sync),
    ) -> Result<Image> {
        unsupported()
    }

    async fn remove(&self, _: &str) -> Result<()> {
        unsupported()
    }

    fn directory(&self) -> PathBuf {
        let state = self.state();
        state.image_content.as_ref().map_or("/".into(), |content| content.directory.clone())
    }

    async fn mount(&self, _: &str, target: &Path) -> Result<()> {
        let content = self.state().image_content.clone();
        match content {
            Some(content) => (content.mount)(target).map_err(Error::io("mount", target)),
            None => unsupported(),
        }
    }
}
