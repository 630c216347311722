//! The image a container needs is here, or the pod says why not (N-65 to N-69, N-172 to N-177).

use client::Recorder;
use k8s_openapi::api::core::v1::{ObjectReference, Pod, Secret};
use runtime::{Image, ImageReference, Runtime};
use std::path::PathBuf;
use std::sync::Arc;

/// Why a container waits for its image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImageError {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

pub(crate) struct ImageManager {
    runtime: Arc<dyn Runtime>,
    recorder: Recorder,
}

impl ImageManager {
    pub(crate) fn new(
        runtime: Arc<dyn Runtime>,
        recorder: Recorder,
        _dir: PathBuf,
    ) -> ImageManager {
        ImageManager { runtime, recorder }
    }

    pub(crate) async fn ensure(
        &self,
        _pod: &Pod,
        on: &ObjectReference,
        image: &str,
        policy: &str,
        _secrets: &[Arc<Secret>],
    ) -> Result<Image, ImageError> {
        let failed = |error: runtime::Error| ImageError {
            reason: "ErrImagePull",
            message: error.to_string(),
        };
        let reference = ImageReference(image.to_owned());
        let images = self.runtime.images();
        if policy != "Always"
            && let Some(found) = images.find(&reference).await.map_err(failed)?
        {
            let message = format!(
                "Container image \"{image}\" already present on machine and can be accessed by the pod"
            );
            self.recorder.normal(on, "Pulled", message);
            return Ok(found);
        }
        self.recorder.normal(on, "Pulling", format!("Pulling image \"{image}\""));
        images.pull(&reference, &[], &|_| {}).await.map_err(failed)
    }
}
