//! The runtime's images.

use super::calls::{Calls, SHORT, error};
use super::observe;
use crate::{Credentials, Error, Image, ImageReference, Images, PullProgress, Result};
use async_trait::async_trait;
use k8s_cri::v1;
use std::path::{Path, PathBuf};

pub(super) struct CriImages {
    calls: Calls,
    directory: PathBuf,
}

impl CriImages {
    pub(super) async fn open(calls: Calls) -> Result<CriImages> {
        let info = calls.image_client().image_fs_info(v1::ImageFsInfoRequest {}).await;
        // Some runtimes need a moment until they know; what is there is then asked by its usual name.
        let directory = info.ok().and_then(|info| {
            let filesystems = info.into_inner().image_filesystems;
            filesystems.into_iter().find_map(|one| Some(one.fs_id?.mountpoint))
        });
        let directory = directory.unwrap_or_else(|| "/var/lib/containerd".into());
        Ok(CriImages { calls, directory: directory.into() })
    }

    async fn pull_with(
        &self,
        image: &ImageReference,
        auth: Option<v1::AuthConfig>,
    ) -> Result<Image> {
        let request =
            v1::PullImageRequest { image: Some(named(&image.0)), auth, ..Default::default() };
        let answer = self.calls.image_client().pull_image(request).await;
        let pulled = answer.map_err(|status| pull_error(&status))?.into_inner().image_ref;
        let found = self.find(&ImageReference(pulled)).await?;
        found.ok_or_else(|| Error::Pull(format!("image {:?} was pulled and is not there", image.0)))
    }
}

impl CriImages {
    /// What an image wants to be stopped with. A runtime tells it only among what it tells people.
    pub(super) async fn stop_signal(&self, image: &str) -> Option<i32> {
        let request = v1::ImageStatusRequest { image: Some(named(image)), verbose: true };
        let mut client = self.calls.image_client();
        let answer = tokio::time::timeout(SHORT, client.image_status(request)).await.ok()?.ok()?;
        observe::stop_signal(&answer.into_inner().info)
    }
}

#[async_trait]
impl Images for CriImages {
    async fn find(&self, image: &ImageReference) -> Result<Option<Image>> {
        let request = v1::ImageStatusRequest { image: Some(named(&image.0)), verbose: false };
        let mut client = self.calls.image_client();
        let answer = tokio::time::timeout(SHORT, client.image_status(request)).await;
        let answer = answer.map_err(|_| Error::Unavailable("no answer about images".into()))?;
        let answer = answer.map_err(|status| error(&status, "image", &image.0))?;
        Ok(answer.into_inner().image.as_ref().map(observe::image))
    }

    async fn list(&self) -> Result<Vec<Image>> {
        let request = v1::ListImagesRequest { filter: None };
        let mut client = self.calls.image_client();
        let answer = tokio::time::timeout(SHORT, client.list_images(request)).await;
        let answer = answer.map_err(|_| Error::Unavailable("no answer about images".into()))?;
        let answer = answer.map_err(|status| error(&status, "image", ""))?;
        Ok(answer.into_inner().images.iter().map(observe::image).collect())
    }

    async fn pull(
        &self,
        image: &ImageReference,
        credentials: &[Credentials],
        progress: &(dyn Fn(PullProgress) + Send + Sync),
    ) -> Result<Image> {
        progress(PullProgress { done: 0, total: None });
        let mut outcome = match credentials {
            [] => self.pull_with(image, None).await,
            [first, ..] => self.pull_with(image, Some(auth(first))).await,
        };
        for next in credentials.iter().skip(1) {
            if outcome.is_ok() {
                break;
            }
            outcome = self.pull_with(image, Some(auth(next))).await;
        }
        if let Ok(image) = &outcome {
            progress(PullProgress { done: image.size, total: Some(image.size) });
        }
        outcome
    }

    async fn remove(&self, id: &str) -> Result<()> {
        let request = v1::RemoveImageRequest { image: Some(named(id)) };
        let answer = self.calls.image_client().remove_image(request).await;
        answer.map(drop).map_err(|status| error(&status, "image", id))
    }

    fn directory(&self) -> PathBuf {
        self.directory.clone()
    }

    async fn mount(&self, _image: &str, _target: &Path) -> Result<()> {
        let why =
            "image volumes are for landfall's own runtime: a CRI runtime is not asked for them";
        Err(Error::Refused(why.into()))
    }
}

fn named(image: &str) -> v1::ImageSpec {
    v1::ImageSpec { image: image.into(), ..Default::default() }
}

fn auth(credentials: &Credentials) -> v1::AuthConfig {
    v1::AuthConfig {
        username: credentials.username.clone(),
        password: credentials.password.clone(),
        registry_token: credentials.token.clone(),
        ..Default::default()
    }
}

/// What the runtime says is what people are shown; only a registry that is not there is set apart.
fn pull_error(status: &tonic::Status) -> Error {
    let text = status.message();
    let absent = ["RegistryUnavailable", "connection refused", "no such host", "i/o timeout"];
    match absent.iter().any(|sign| text.contains(sign)) {
        true => Error::RegistryUnavailable(text.to_string()),
        false => Error::Pull(text.to_string()),
    }
}
