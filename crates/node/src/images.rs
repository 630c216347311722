//! The image a container needs is here, or the pod says why not (N-65 to N-69, N-172 to N-177).
//!
//!     ensure ─▶ name ─▶ here, and this pod may use it? ─▶ back-off? ─▶ one at a time ─▶ pull
//!
//! Not here: how an image is fetched and kept (`runtime`), which secrets a pod names (`worker`).

mod backoff;
mod collect;
mod keyring;
mod progress;
mod pulled;
mod rate;
mod words;

pub(crate) use collect::Policy;

use backoff::BackOffs;
use client::Recorder;
use collect::Collector;
use k8s_openapi::api::core::v1::{ObjectReference, Pod, Secret};
use keyring::{Keyring, Login};
use progress::Progress;
use pulled::Pulled;
use rate::Rate;
use runtime::{Credentials, Image, ImageReference, Images, Name, Runtime};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// How often unused images are looked for (N-177).
const COLLECT_EVERY: Duration = Duration::from_secs(300);

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
    /// Pulls at once; waiting ones come in the order they came.
    turns: Semaphore,
    rate: Rate,
    pulled: Pulled,
    /// The node's own credentials, as a docker configuration.
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

/// An image as asked for: `image` is the string from the spec, which messages show.
struct Wanted<'a> {
    image: &'a str,
    /// With the default tag (N-172).
    reference: ImageReference,
    name: Name,
    on: &'a ObjectReference,
    /// Of the back-off: pod and image (N-68).
    key: String,
}

impl ImageManager {
    /// `directory` keeps who pulled what (N-176); a docker `config.json` in it holds the node's own
    /// credentials.
    pub(crate) fn new(
        runtime: Arc<dyn Runtime>,
        recorder: Recorder,
        directory: PathBuf,
    ) -> ImageManager {
        ImageManager::of(Source::Runtime(runtime), recorder, directory)
    }

    fn of(source: Source, recorder: Recorder, directory: PathBuf) -> ImageManager {
        ImageManager {
            source,
            collector: Collector::new(recorder.clone(), Policy::default()),
            recorder,
            backoffs: BackOffs::default(),
            turns: Semaphore::new(1),
            rate: Rate::new(5.0, 10.0),
            config: directory.join("config.json"),
            pulled: Pulled::new(directory),
        }
    }

    /// maxParallelImagePulls (N-69); 1 is serializeImagePulls.
    #[allow(dead_code, reason = "for the configuration of the node")]
    pub(crate) fn at_once(mut self, pulls: usize) -> ImageManager {
        self.turns = Semaphore::new(pulls.clamp(1, Semaphore::MAX_PERMITS));
        self
    }

    /// When images are collected (N-177).
    #[allow(dead_code, reason = "for the configuration of the node")]
    pub(crate) fn collecting(mut self, policy: Policy) -> ImageManager {
        self.collector = Collector::new(self.recorder.clone(), policy);
        self
    }

    /// The image for a container of `pod`, pulled if its policy says so. All events go to `on`, also
    /// the last one, `Error: <reason>`. Safe to drop at any time.
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
        let wanted = self.wanted(pod, on, image)?;
        let here = self.source.images().find(&wanted.reference).await.map_err(|error| {
            // Upstream shows the reference it does not have yet.
            let message = format!("Failed to inspect image \"\": {}", words::causes(&error));
            self.recorder.warning(on, "InspectFailed", message.clone());
            ImageError::new("ImageInspectError", message)
        })?;
        let logins = self.logins(&wanted, secrets).await;
        if let Some(here) = here.filter(|_| policy != "Always")
            && self
                .pulled
                .may_use(&wanted.name, &here.id, logins.as_deref().unwrap_or_default())
                .await
        {
            let message = format!(
                "Container image \"{image}\" already present on machine and can be accessed by the pod"
            );
            self.recorder.normal(on, "Pulled", message);
            return Ok(here);
        }
        if policy == "Never" {
            let message =
                format!("Container image \"{image}\" is not present with pull policy of Never");
            self.recorder.warning(on, "ErrImageNeverPull", message.clone());
            return Err(ImageError::new("ErrImageNeverPull", message));
        }
        self.pull(&wanted, logins).await
    }

    fn wanted<'a>(
        &self,
        pod: &Pod,
        on: &'a ObjectReference,
        image: &'a str,
    ) -> Result<Wanted<'a>, ImageError> {
        let name = Name::parse(image).map_err(|error| {
            let message = format!("Failed to apply default image tag \"{image}\": {error}");
            self.recorder.warning(on, "InspectFailed", message.clone());
            ImageError::new("InvalidImageName", message)
        })?;
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let key = format!("{uid}_{image}");
        Ok(Wanted { image, reference: with_tag(image), name, on, key })
    }

    /// What the pod's secrets, then the node's configuration, have for this image (N-174, N-175).
    async fn logins(
        &self,
        wanted: &Wanted<'_>,
        secrets: &[Arc<Secret>],
    ) -> Result<Vec<Login>, String> {
        let repository = wanted.name.full_repository();
        let mut logins = Keyring::of_secrets(secrets)?.lookup(&repository);
        let config = self.config.clone();
        if let Ok(Ok(bytes)) = clock::apart(move || std::fs::read(config)).await {
            match Keyring::of_node(&bytes) {
                Ok(node) => logins.extend(node.lookup(&repository)),
                Err(why) => {
                    tracing::warn!(path = %self.config.display(), why, "credentials are ignored");
                }
            }
        }
        Ok(logins)
    }

    async fn pull(
        &self,
        wanted: &Wanted<'_>,
        logins: Result<Vec<Login>, String>,
    ) -> Result<Image, ImageError> {
        let image = wanted.image;
        if let Some(last) = self.backoffs.holds(&wanted.key) {
            let message = format!("Back-off pulling image \"{image}\"");
            self.recorder.normal(wanted.on, "BackOff", message.clone());
            return Err(ImageError::new("ImagePullBackOff", format!("{message}: {last}")));
        }
        self.recorder.normal(wanted.on, "Pulling", format!("Pulling image \"{image}\""));
        let asked_at = Instant::now();
        let turn = self.turns.acquire().await;
        let began_at = Instant::now();
        let pulled = match logins {
            Ok(logins) => self.pull_as_any(wanted, &logins).await,
            Err(why) => Err(runtime::Error::Pull(why)),
        };
        drop(turn);
        match pulled {
            Ok(found) => {
                let took = words::duration(began_at.elapsed());
                let all = words::duration(asked_at.elapsed());
                let size = found.size;
                let message = format!(
                    "Successfully pulled image \"{image}\" in {took} ({all} including waiting). \
                     Image size: {size} bytes."
                );
                self.recorder.normal(wanted.on, "Pulled", message);
                Ok(found)
            }
            Err(error) => Err(self.failed(wanted, &error)),
        }
    }

    fn failed(&self, wanted: &Wanted<'_>, error: &runtime::Error) -> ImageError {
        let (image, text) = (wanted.image, words::causes(error));
        let message = format!("Failed to pull image \"{image}\": {text}");
        self.recorder.warning(wanted.on, "Failed", message);
        let failure = match error {
            runtime::Error::RegistryUnavailable(_) => {
                let why = "because the registry is unavailable";
                let message = format!("image pull failed for {image} {why}: {text}");
                ImageError::new("RegistryUnavailable", message)
            }
            _ => ImageError::new("ErrImagePull", text),
        };
        let last = format!("{}: {}", failure.reason, failure.message);
        self.backoffs.failed(&wanted.key, last);
        failure
    }

    /// With one login after the other until one is let in, so that it is known which; as nobody only
    /// if there are none (N-175).
    async fn pull_as_any(&self, wanted: &Wanted<'_>, logins: &[Login]) -> runtime::Result<Image> {
        if !self.rate.allows() {
            return Err(runtime::Error::Pull("pull QPS exceeded".to_owned()));
        }
        let intent = self.pulled.begin(&wanted.name).await;
        let mut errors = Vec::new();
        let attempts: Vec<Option<&Login>> = match logins {
            [] => vec![None],
            logins => logins.iter().map(Some).collect(),
        };
        for login in attempts {
            let credentials: Vec<Credentials> =
                login.iter().map(|login| login.credentials.clone()).collect();
            let images = self.source.images();
            let progress = Progress::of(wanted.image);
            let told = |how_far| progress.told(how_far);
            match images.pull(&wanted.reference, &credentials, &told).await {
                Ok(found) => {
                    intent.done(&found.id, login).await;
                    return Ok(found);
                }
                Err(error) => errors.push(error),
            }
        }
        Err(words::joined(errors))
    }

    /// Looks for unused images for ever (N-177). `volumes` says which images are mounted as volumes.
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

    /// Frees space if the image filesystem is too full; tells `node` if that did not work.
    pub(crate) async fn collect(&self, node: &ObjectReference, volumes: BTreeSet<String>) {
        let images = self.source.images();
        let collected = match self.used(volumes).await {
            Ok(used) => {
                let disk = collect::disk(&images.directory());
                self.collector.collect(images, node, &used, disk).await
            }
            Err(error) => Err(error.to_string()),
        };
        self.collector.tell(node, collected);
        self.forget_removed().await;
    }

    /// All that nobody uses, for a node under disk pressure. How many bytes that freed.
    #[allow(dead_code, reason = "for eviction")]
    pub(crate) async fn delete_unused(&self, volumes: BTreeSet<String>) -> runtime::Result<u64> {
        let used = self.used(volumes).await?;
        let freed = self.collector.free(self.source.images(), &used, u64::MAX).await;
        self.forget_removed().await;
        freed
    }

    /// Images of every container there is, dead ones too, and of volumes.
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

    async fn forget_removed(&self) {
        if let Ok(images) = self.source.images().list().await {
            self.pulled.keep_only(images.into_iter().map(|image| image.id).collect()).await;
        }
    }
}

/// What stands in a status as `imageID` (N-178): what another node can pull, of the repository that
/// was asked for if it is among them.
#[allow(dead_code, reason = "for the status of containers")]
pub(crate) fn image_id(image: &Image, asked: &str) -> String {
    let repository = Name::parse(asked).map(|name| format!("{}@", name.full_repository()));
    let same = |digest: &&String| repository.as_ref().is_ok_and(|asked| digest.starts_with(asked));
    let named = image.digests.iter().find(same).or(image.digests.first());
    named.unwrap_or(&image.id).clone()
}

/// `:latest` where there is neither tag nor digest. Nothing else is added: what a short name means is
/// for the runtime to say (N-172).
fn with_tag(image: &str) -> ImageReference {
    let last = image.rsplit('/').next().unwrap_or(image);
    let complete = last.contains([':', '@']);
    ImageReference(if complete { image.to_owned() } else { format!("{image}:latest") })
}

#[cfg(test)]
mod tests;
