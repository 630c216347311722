//! The images of a CRI runtime.

use super::calls::{Calls, TIMEOUT, error};
use super::observe;
use crate::{Credentials, Error, Image, ImageReference, Images, PullProgress, Result};
use async_trait::async_trait;
use k8s_cri::v1;
use std::path::{Path, PathBuf};

const DEFAULT_DIRECTORY: &str = "/var/lib/containerd";

pub(super) struct CriImages {
    calls: Calls,
    directory: PathBuf,
}

impl CriImages {
    pub(super) async fn open(calls: Calls) -> Result<CriImages> {
        let info = calls.image_client().image_fs_info(v1::ImageFsInfoRequest {}).await;
        // Some runtimes do not know the directory right after their start. Use containerd's default then.
        let directory = info.ok().and_then(|info| {
            let filesystems = info.into_inner().image_filesystems;
            filesystems.into_iter().find_map(|one| Some(one.fs_id?.mountpoint))
        });
        let directory = directory.unwrap_or_else(|| DEFAULT_DIRECTORY.into());
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
        found.ok_or_else(|| {
            Error::Pull(format!("image {:?} does not exist after it was pulled", image.0))
        })
    }
}

impl CriImages {
    /// The stop signal of an image, which CRI returns only in the verbose information.
    pub(super) async fn stop_signal(&self, image: &str) -> Option<i32> {
        let request = v1::ImageStatusRequest { image: Some(named(image)), verbose: true };
        let mut client = self.calls.image_client();
        let answer =
            tokio::time::timeout(TIMEOUT, client.image_status(request)).await.ok()?.ok()?;
        observe::stop_signal(&answer.into_inner().info)
    }
}

#[async_trait]
impl Images for CriImages {
    async fn find(&self, image: &ImageReference) -> Result<Option<Image>> {
        let request = v1::ImageStatusRequest { image: Some(named(&image.0)), verbose: false };
        let mut client = self.calls.image_client();
        let answer = tokio::time::timeout(TIMEOUT, client.image_status(request)).await;
        let answer = answer.map_err(|_| timed_out())?;
        let answer = answer.map_err(|status| error(&status, "image", &image.0))?;
        Ok(answer.into_inner().image.as_ref().map(observe::image))
    }

    async fn list(&self) -> Result<Vec<Image>> {
        let request = v1::ListImagesRequest { filter: None };
        let mut client = self.calls.image_client();
        let answer = tokio::time::timeout(TIMEOUT, client.list_images(request)).await;
        let answer = answer.map_err(|_| timed_out())?;
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
        let message = "image volumes are supported by landfall's own runtime only, not with CRI";
        Err(Error::Refused(message.into()))
    }
}

fn timed_out() -> Error {
    Error::Unavailable("the container runtime did not answer a request for images in time".into())
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

/// Users see the runtime's error text. The registry counts as unavailable only if the runtime says so (N-67);
/// containerd does not, so the pod then has the reason `ErrImagePull`.
fn pull_error(status: &tonic::Status) -> Error {
    let text = status.message();
    match text.starts_with("RegistryUnavailable") {
        true => Error::RegistryUnavailable(text.to_string()),
        false => Error::Pull(text.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// N-67: the reason RegistryUnavailable comes from the runtime's error text.
    #[test]
    fn registry_unavailable_comes_from_the_runtimes_error_text() {
        let error = |text: &str| pull_error(&tonic::Status::unknown(text));
        let unavailable = error("RegistryUnavailable: pinging container registry");
        assert!(matches!(unavailable, Error::RegistryUnavailable(_)), "{unavailable:?}");
        let failed = error("failed to resolve reference \"r/a:1\": dial tcp: no such host");
        assert!(matches!(failed, Error::Pull(_)), "{failed:?}");
    }
}
