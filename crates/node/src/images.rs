//! Makes sure that the image of a container is on the node, or reports why not (N-65 to N-69, N-172
//! to N-177).
//!
//!     ensure ─▶ name ─▶ present, and this pod may use it? ─▶ back-off? ─▶ one at a time ─▶ pull
//!
//! Not here: how an image is pulled and stored (`runtime`), which secrets a pod has (`worker`).

mod backoff;
mod collect;
mod keyring;
mod messages;
mod progress;
mod pull_records;
mod rate_limit;

pub(crate) use collect::Policy;

use backoff::BackOffs;
use client::Recorder;
use collect::Collector;
use k8s_openapi::api::core::v1::{ObjectReference, Pod, Secret};
use keyring::{Keyring, Login};
use progress::Progress;
use pull_records::PullRecords;
use rate_limit::RateLimit;
use runtime::{Credentials, Image, ImageName, ImageReference, Images, Runtime};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// How often unused images are collected (N-177).
const COLLECT_EVERY: Duration = Duration::from_secs(300);

/// Added to upstream's text about a failed pull, for people who imported an image and name it without
/// a tag: the default policy for `:latest` is `Always`.
const PRESENT_BUT_ALWAYS: &str = ". The image is present on the node, but imagePullPolicy is Always, \
     which is the default for the tag latest: name another tag, or set imagePullPolicy: IfNotPresent";

/// Why a container waits for its image: the waiting reason and message of its status (N-67).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImageError {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl ImageError {
    fn new(reason: &'static str, message: impl Into<String>) -> ImageError {
        ImageError { reason, message: message.into() }
    }
}

pub(crate) struct ImageManager {
    source: Source,
    recorder: Recorder,
    backoffs: BackOffs,
    /// Limits parallel pulls; first come, first served.
    permits: Semaphore,
    rate: RateLimit,
    pulled: PullRecords,
    /// A docker configuration with the node's credentials.
    config: PathBuf,
    collector: Collector,
}

enum Source {
    Runtime(Arc<dyn Runtime>),
    #[cfg(test)]
    Images(Arc<dyn Images>),
}

impl Source {
    fn images(&self) -> &dyn Images {
        match self {
            Source::Runtime(runtime) => runtime.images(),
            #[cfg(test)]
            Source::Images(images) => images.as_ref(),
        }
    }
}

/// An image that a container needs. `image` is the text of the spec, which messages show.
struct RequestedImage<'a> {
    image: &'a str,
    /// With the default tag (N-172).
    reference: ImageReference,
    name: ImageName,
    on: &'a ObjectReference,
    /// Key of the back-off: pod and image (N-68).
    key: String,
    /// The node has the image and pulls it again only because the policy is `Always`.
    present_but_always: bool,
}

impl ImageManager {
    /// `directory` has the records of pulls (N-176), and may have a docker `config.json` with the
    /// node's credentials.
    pub(crate) fn new(
        runtime: Arc<dyn Runtime>,
        recorder: Recorder,
        directory: PathBuf,
    ) -> ImageManager {
        ImageManager::with_source(Source::Runtime(runtime), recorder, directory)
    }

    fn with_source(source: Source, recorder: Recorder, directory: PathBuf) -> ImageManager {
        ImageManager {
            source,
            collector: Collector::new(recorder.clone(), Policy::default()),
            recorder,
            backoffs: BackOffs::default(),
            permits: Semaphore::new(1),
            rate: RateLimit::new(5.0, 10.0),
            config: directory.join("config.json"),
            pulled: PullRecords::new(directory),
        }
    }

    /// Sets maxParallelImagePulls (N-69); 1 is serializeImagePulls.
    #[allow(dead_code, reason = "for the configuration of the node")]
    pub(crate) fn with_parallel_pulls(mut self, pulls: usize) -> ImageManager {
        self.permits = Semaphore::new(pulls.clamp(1, Semaphore::MAX_PERMITS));
        self
    }

    /// Sets when unused images are collected (N-177).
    #[allow(dead_code, reason = "for the configuration of the node")]
    pub(crate) fn with_collection_policy(mut self, policy: Policy) -> ImageManager {
        self.collector = Collector::new(self.recorder.clone(), policy);
        self
    }

    /// Returns the image for a container of `pod`; pulls it if the policy requires that. All events
    /// are about `on`, including the last one, `Error: <reason>`. The future may be dropped at any
    /// time.
    pub(crate) async fn ensure(
        &self,
        pod: &Pod,
        on: &ObjectReference,
        image: &str,
        policy: &str,
        secrets: &[Arc<Secret>],
    ) -> Result<Image, ImageError> {
        let ensured = self.try_ensure(pod, on, image, policy, secrets).await;
        if let Err(error) = &ensured {
            self.recorder.warning(on, "Failed", format!("Error: {}", error.reason));
        }
        ensured
    }

    async fn try_ensure(
        &self,
        pod: &Pod,
        on: &ObjectReference,
        image: &str,
        policy: &str,
        secrets: &[Arc<Secret>],
    ) -> Result<Image, ImageError> {
        let mut requested = self.parse(pod, on, image)?;
        let present = self.source.images().find(&requested.reference).await.map_err(|error| {
            // Upstream shows the image id here, which it does not know yet.
            let message = format!("Failed to inspect image \"\": {}", messages::causes(&error));
            self.recorder.warning(on, "InspectFailed", message.clone());
            ImageError::new("ImageInspectError", message)
        })?;
        requested.present_but_always = present.is_some() && policy == "Always";
        let logins = self.logins(&requested, secrets).await;
        if let Some(present) = present.filter(|_| policy != "Always")
            && self
                .pulled
                .may_use(&requested.name, &present.id, logins.as_deref().unwrap_or_default())
                .await
        {
            let message = format!(
                "Container image \"{image}\" already present on machine and can be accessed by the pod"
            );
            self.recorder.normal(on, "Pulled", message);
            return Ok(present);
        }
        if policy == "Never" {
            let message =
                format!("Container image \"{image}\" is not present with pull policy of Never");
            self.recorder.warning(on, "ErrImageNeverPull", message.clone());
            return Err(ImageError::new("ErrImageNeverPull", message));
        }
        self.pull(&requested, logins).await
    }

    fn parse<'a>(
        &self,
        pod: &Pod,
        on: &'a ObjectReference,
        image: &'a str,
    ) -> Result<RequestedImage<'a>, ImageError> {
        let name = ImageName::parse(image).map_err(|error| {
            let message = format!("Failed to apply default image tag \"{image}\": {error}");
            self.recorder.warning(on, "InspectFailed", message.clone());
            ImageError::new("InvalidImageName", message)
        })?;
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let key = format!("{uid}_{image}");
        let reference = with_tag(image);
        Ok(RequestedImage { image, reference, name, on, key, present_but_always: false })
    }

    /// The credentials for this image: first those of the pod's secrets, then the node's (N-174, N-175).
    async fn logins(
        &self,
        requested: &RequestedImage<'_>,
        secrets: &[Arc<Secret>],
    ) -> Result<Vec<Login>, String> {
        let repository = requested.name.full_repository();
        let mut logins = Keyring::from_secrets(secrets)?.lookup(&repository);
        let config = self.config.clone();
        if let Ok(Ok(bytes)) = clock::run_blocking(move || std::fs::read(config)).await {
            match Keyring::from_node(&bytes) {
                Ok(node) => logins.extend(node.lookup(&repository)),
                Err(why) => {
                    tracing::warn!(path = %self.config.display(), why, "the node's docker configuration cannot be read; its credentials are ignored");
                }
            }
        }
        Ok(logins)
    }

    async fn pull(
        &self,
        requested: &RequestedImage<'_>,
        logins: Result<Vec<Login>, String>,
    ) -> Result<Image, ImageError> {
        let image = requested.image;
        if let Some(last) = self.backoffs.active(&requested.key) {
            let message = format!("Back-off pulling image \"{image}\"");
            self.recorder.normal(requested.on, "BackOff", message.clone());
            return Err(ImageError::new("ImagePullBackOff", format!("{message}: {last}")));
        }
        self.recorder.normal(requested.on, "Pulling", format!("Pulling image \"{image}\""));
        let requested_at = Instant::now();
        let permit = self.permits.acquire().await;
        let started_at = Instant::now();
        let pulled = match logins {
            Ok(logins) => self.pull_with_any(requested, &logins).await,
            Err(why) => Err(runtime::Error::Pull(why)),
        };
        drop(permit);
        match pulled {
            Ok(found) => {
                let took = messages::duration(started_at.elapsed());
                let all = messages::duration(requested_at.elapsed());
                let size = found.size;
                let message = format!(
                    "Successfully pulled image \"{image}\" in {took} ({all} including waiting). \
                     Image size: {size} bytes."
                );
                self.recorder.normal(requested.on, "Pulled", message);
                Ok(found)
            }
            Err(error) => Err(self.failed(requested, &error)),
        }
    }

    fn failed(&self, requested: &RequestedImage<'_>, error: &runtime::Error) -> ImageError {
        let (image, text) = (requested.image, messages::causes(error));
        let mut message = format!("Failed to pull image \"{image}\": {text}");
        if requested.present_but_always {
            message.push_str(PRESENT_BUT_ALWAYS);
        }
        self.recorder.warning(requested.on, "Failed", message);
        let failure = match error {
            runtime::Error::RegistryUnavailable(_) => {
                let why = "because the registry is unavailable";
                let message = format!("image pull failed for {image} {why}: {text}");
                ImageError::new("RegistryUnavailable", message)
            }
            _ => ImageError::new("ErrImagePull", text),
        };
        let last = format!("{}: {}", failure.reason, failure.message);
        self.backoffs.failed(&requested.key, last);
        failure
    }

    /// Tries the logins one by one, so that it is known which one worked. Pulls anonymously only if
    /// there are none (N-175).
    async fn pull_with_any(
        &self,
        requested: &RequestedImage<'_>,
        logins: &[Login],
    ) -> runtime::Result<Image> {
        if !self.rate.allows() {
            return Err(runtime::Error::Pull("pull QPS exceeded".to_owned()));
        }
        let intent = self.pulled.begin(&requested.name).await;
        let mut errors = Vec::new();
        let attempts: Vec<Option<&Login>> = match logins {
            [] => vec![None],
            logins => logins.iter().map(Some).collect(),
        };
        for login in attempts {
            let credentials: Vec<Credentials> =
                login.iter().map(|login| login.credentials.clone()).collect();
            let images = self.source.images();
            let progress = Progress::new(requested.image);
            let report = |so_far| progress.report(so_far);
            match images.pull(&requested.reference, &credentials, &report).await {
                Ok(found) => {
                    intent.done(&found.id, login).await;
                    return Ok(found);
                }
                Err(error) => errors.push(error),
            }
        }
        Err(messages::joined(errors))
    }

    /// Collects unused images until the future is dropped (N-177). `volumes` returns the images
    /// that are mounted as volumes.
    #[allow(dead_code, reason = "for the agent's tasks")]
    pub(crate) async fn keep_collecting(
        &self,
        node: &ObjectReference,
        volumes: impl Fn() -> BTreeSet<String>,
    ) {
        loop {
            tokio::time::sleep(COLLECT_EVERY).await;
            self.collect(node, volumes()).await;
        }
    }

    /// Frees space if the image filesystem is too full; creates events about `node` if that fails.
    pub(crate) async fn collect(&self, node: &ObjectReference, volumes: BTreeSet<String>) {
        let images = self.source.images();
        let collected = match self.used(volumes).await {
            Ok(used) => {
                let disk = collect::disk(&images.directory());
                self.collector.collect(images, node, &used, disk).await
            }
            Err(error) => Err(error.to_string()),
        };
        self.collector.report(node, collected);
        self.remove_stale_records().await;
    }

    /// Removes all unused images, for a node under disk pressure. Returns the number of bytes freed.
    #[allow(dead_code, reason = "for eviction")]
    pub(crate) async fn delete_unused(&self, volumes: BTreeSet<String>) -> runtime::Result<u64> {
        let used = self.used(volumes).await?;
        let freed = self.collector.free(self.source.images(), &used, u64::MAX).await;
        self.remove_stale_records().await;
        freed
    }

    /// The images of all containers, running or not, and of volumes.
    async fn used(&self, mut used: BTreeSet<String>) -> runtime::Result<BTreeSet<String>> {
        match &self.source {
            Source::Runtime(runtime) => {
                for sandbox in runtime.sandboxes().await? {
                    used.extend(sandbox.containers.into_iter().map(|container| container.image));
                }
            }
            #[cfg(test)]
            Source::Images(_) => {}
        }
        Ok(used)
    }

    async fn remove_stale_records(&self) {
        if let Ok(images) = self.source.images().list().await {
            self.pulled.retain(images.into_iter().map(|image| image.id).collect()).await;
        }
    }
}

/// `imageID` in a container status (N-178): a digest that another node can pull, of the requested
/// repository if possible.
#[allow(dead_code, reason = "for the status of containers")]
pub(crate) fn image_id(image: &Image, requested: &str) -> String {
    let repository = ImageName::parse(requested).map(|name| format!("{}@", name.full_repository()));
    let same =
        |digest: &&String| repository.as_ref().is_ok_and(|prefix| digest.starts_with(prefix));
    let named = image.digests.iter().find(same).or(image.digests.first());
    named.unwrap_or(&image.id).clone()
}

/// Adds `:latest` if there is neither tag nor digest. The runtime expands short names (N-172).
fn with_tag(image: &str) -> ImageReference {
    let last = image.rsplit('/').next().unwrap_or(image);
    let complete = last.contains([':', '@']);
    ImageReference(if complete { image.to_owned() } else { format!("{image}:latest") })
}

#[cfg(test)]
mod tests;
