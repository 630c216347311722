//! Pull policies, credentials, back-off, events and collection, with a fake image store on a paused
//! clock. One test uses a real registry.

use super::collect::{Collector, Disk, Policy};
use super::keyring::tests::secret;
use super::*;
use client::RecordedEvent;
use runtime::{Error, PullProgress};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use tempfile::TempDir;
use tokio::sync::mpsc;

/// A fake image store, and what its registry has.
#[derive(Default)]
struct FakeImages {
    present: Mutex<BTreeMap<String, Image>>,
    /// Images by reference; all others are not found.
    registry: Mutex<BTreeMap<String, Image>>,
    /// The password that the registry requires, if any.
    password: Mutex<Option<String>>,
    pull_time: Mutex<Duration>,
    unavailable: Mutex<bool>,
    unreadable: Mutex<bool>,
    /// References and passwords of all pulls, in order.
    pulls: Mutex<Vec<(String, Option<String>)>>,
    /// Parallel pulls now, and at most.
    parallel: Mutex<(usize, usize)>,
    removed: Mutex<Vec<String>>,
}

fn image(id: &str) -> Image {
    Image {
        id: id.to_owned(),
        tags: Vec::new(),
        digests: Vec::new(),
        size: 1000,
        uid: None,
        username: String::new(),
        pinned: false,
    }
}

#[async_trait::async_trait]
impl Images for FakeImages {
    async fn find(&self, image: &ImageReference) -> runtime::Result<Option<Image>> {
        if *self.unreadable.lock().unwrap() {
            return Err(Error::Unavailable("no answer".into()));
        }
        Ok(self.present.lock().unwrap().get(&image.0).cloned())
    }

    async fn list(&self) -> runtime::Result<Vec<Image>> {
        Ok(self.present.lock().unwrap().values().cloned().collect())
    }

    async fn pull(
        &self,
        image: &ImageReference,
        credentials: &[Credentials],
        _progress: &(dyn Fn(PullProgress) + Send + Sync),
    ) -> runtime::Result<Image> {
        let password = credentials.first().map(|known| known.password.clone());
        self.pulls.lock().unwrap().push((image.0.clone(), password.clone()));
        {
            let mut now = self.parallel.lock().unwrap();
            now.0 += 1;
            now.1 = now.1.max(now.0);
        }
        let pull_time = *self.pull_time.lock().unwrap();
        tokio::time::sleep(pull_time).await;
        self.parallel.lock().unwrap().0 -= 1;
        if *self.unavailable.lock().unwrap() {
            return Err(Error::RegistryUnavailable("connection refused".into()));
        }
        let required = self.password.lock().unwrap().clone();
        if required.is_some() && required != password {
            return Err(Error::Pull(format!(
                "denied to {}",
                password.as_deref().unwrap_or("nobody")
            )));
        }
        let found = self.registry.lock().unwrap().get(&image.0).cloned();
        let found = found.ok_or_else(|| Error::Pull("not found".into()))?;
        self.present.lock().unwrap().insert(image.0.clone(), found.clone());
        Ok(found)
    }

    async fn remove(&self, id: &str) -> runtime::Result<()> {
        self.removed.lock().unwrap().push(id.to_owned());
        self.present.lock().unwrap().retain(|_, image| image.id != id);
        Ok(())
    }

    fn directory(&self) -> PathBuf {
        PathBuf::from("/")
    }

    async fn mount(&self, _image: &str, _target: &Path) -> runtime::Result<()> {
        Ok(())
    }
}

struct Fixture {
    images: Arc<FakeImages>,
    manager: ImageManager,
    events: mpsc::Receiver<RecordedEvent>,
    directory: TempDir,
}

impl Fixture {
    fn new() -> Fixture {
        let images = Arc::new(FakeImages::default());
        let (recorder, events) = Recorder::collecting();
        let directory = tempfile::tempdir().unwrap();
        let source = Source::Images(images.clone());
        let manager = ImageManager::with_source(source, recorder, directory.path().to_owned());
        Fixture { images, manager, events, directory }
    }

    fn with_present(self, reference: &str, id: &str) -> Fixture {
        self.images.present.lock().unwrap().insert(reference.to_owned(), image(id));
        self
    }

    fn with_registry(self, reference: &str, id: &str) -> Fixture {
        self.images.registry.lock().unwrap().insert(reference.to_owned(), image(id));
        self
    }

    async fn ensure(&self, name: &str, policy: &str) -> Result<Image, ImageError> {
        self.ensure_with(name, policy, &[]).await
    }

    async fn ensure_with(
        &self,
        name: &str,
        policy: &str,
        secrets: &[Arc<Secret>],
    ) -> Result<Image, ImageError> {
        self.manager.ensure(&pod("uid"), &on(), name, policy, secrets).await
    }

    /// The events since the last call, as `Normal Pulling …`.
    fn events(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.events.try_recv().ok())
            .map(|event| format!("{:?} {} {}", event.severity, event.reason, event.message))
            .collect()
    }

    fn pulls(&self) -> usize {
        self.images.pulls.lock().unwrap().len()
    }
}

fn pod(uid: &str) -> Pod {
    typed::from_value(json!({ "metadata": { "name": "p", "uid": uid } })).unwrap()
}

fn on() -> ObjectReference {
    let field_path = Some("spec.containers{app}".to_owned());
    ObjectReference { field_path, ..ObjectReference::default() }
}

fn error(reason: &'static str, message: &str) -> ImageError {
    ImageError::new(reason, message)
}

#[tokio::test(start_paused = true)]
async fn n_65_n_66_a_present_image_is_used_unless_the_policy_is_always() {
    let mut fixture =
        Fixture::new().with_present("busybox:latest", "1").with_registry("busybox:latest", "2");
    *fixture.images.pull_time.lock().unwrap() = Duration::from_millis(1500);
    for policy in ["IfNotPresent", "Never"] {
        assert_eq!(fixture.ensure("busybox", policy).await.unwrap().id, "1");
        let text = "Normal Pulled Container image \"busybox\" already present on machine and can be \
                    accessed by the pod";
        assert_eq!(fixture.events(), [text]);
    }
    assert_eq!(fixture.pulls(), 0);
    assert_eq!(fixture.ensure("busybox", "Always").await.unwrap().id, "2");
    let pulled = "Normal Pulled Successfully pulled image \"busybox\" in 1.5s (1.5s including \
                  waiting). Image size: 1000 bytes.";
    assert_eq!(fixture.events(), ["Normal Pulling Pulling image \"busybox\"", pulled]);
    let pull = fixture.images.pulls.lock().unwrap()[0].clone();
    assert_eq!(pull, ("busybox:latest".to_owned(), None), "the node adds the tag only (N-172)");
}

/// Upstream's text comes first; what we add explains why the image on the node was not used.
#[tokio::test(start_paused = true)]
async fn failed_pull_of_a_present_image_mentions_the_policy_always() {
    let mut fixture = Fixture::new().with_present("busybox:latest", "1");
    assert_eq!(fixture.ensure("busybox", "Always").await, Err(error("ErrImagePull", "not found")));
    let event = fixture.events().remove(1);
    let upstream = "Warning Failed Failed to pull image \"busybox\": not found";
    let ours = event.strip_prefix(upstream).unwrap_or_else(|| panic!("{event}"));
    assert!(ours.contains("present on the node, but imagePullPolicy is Always"), "{event}");

    let mut absent = Fixture::new();
    assert!(absent.ensure("busybox", "Always").await.is_err());
    assert_eq!(absent.events()[1], upstream, "nothing to add if the node does not have the image");
}

#[tokio::test(start_paused = true)]
async fn n_65_n_67_a_missing_image_with_policy_never_is_an_error() {
    let mut fixture = Fixture::new().with_registry("a:1", "1");
    let message = "Container image \"a:1\" is not present with pull policy of Never";
    assert_eq!(fixture.ensure("a:1", "Never").await, Err(error("ErrImageNeverPull", message)));
    let events = [
        format!("Warning ErrImageNeverPull {message}"),
        "Warning Failed Error: ErrImageNeverPull".to_owned(),
    ];
    assert_eq!(fixture.events(), events);
    assert_eq!(fixture.pulls(), 0);
}

#[tokio::test(start_paused = true)]
async fn n_67_n_172_invalid_names_and_failing_stores_are_errors() {
    let mut fixture = Fixture::new();
    let message = "Failed to apply default image tag \"Bad\": couldn't parse image name \"Bad\": \
                   invalid reference format: repository name must be lowercase";
    assert_eq!(fixture.ensure("Bad", "Always").await, Err(error("InvalidImageName", message)));
    let events = [
        format!("Warning InspectFailed {message}"),
        "Warning Failed Error: InvalidImageName".to_owned(),
    ];
    assert_eq!(fixture.events(), events);
    *fixture.images.unreadable.lock().unwrap() = true;
    let message = "Failed to inspect image \"\": no answer";
    assert_eq!(fixture.ensure("a", "IfNotPresent").await, Err(error("ImageInspectError", message)));
    assert_eq!(fixture.events()[0], format!("Warning InspectFailed {message}"));
}

#[tokio::test(start_paused = true)]
async fn n_66_n_67_n_68_the_reason_alternates_between_failure_and_back_off() {
    let mut fixture = Fixture::new();
    let failed = Err(error("ErrImagePull", "not found"));
    let waiting =
        Err(error("ImagePullBackOff", "Back-off pulling image \"a:1\": ErrImagePull: not found"));
    assert_eq!(fixture.ensure("a:1", "IfNotPresent").await, failed);
    let events = [
        "Normal Pulling Pulling image \"a:1\"",
        "Warning Failed Failed to pull image \"a:1\": not found",
        "Warning Failed Error: ErrImagePull",
    ];
    assert_eq!(fixture.events(), events);
    assert_eq!(fixture.ensure("a:1", "IfNotPresent").await, waiting);
    let events =
        ["Normal BackOff Back-off pulling image \"a:1\"", "Warning Failed Error: ImagePullBackOff"];
    assert_eq!(fixture.events(), events);
    assert_eq!(fixture.pulls(), 1);

    // Other pods and other images have their own back-off.
    let other = fixture.manager.ensure(&pod("other"), &on(), "a:1", "Always", &[]).await;
    assert_eq!(other, failed);
    assert_eq!(fixture.ensure("b:1", "Always").await, failed);

    tokio::time::advance(Duration::from_millis(9_900)).await;
    assert_eq!(fixture.ensure("a:1", "IfNotPresent").await, waiting);
    tokio::time::advance(Duration::from_millis(200)).await;
    assert_eq!(fixture.ensure("a:1", "IfNotPresent").await, failed);
    tokio::time::advance(Duration::from_secs(19)).await;
    assert_eq!(fixture.ensure("a:1", "IfNotPresent").await, waiting, "twice as long");
    tokio::time::advance(Duration::from_secs(2)).await;
    let fixture = fixture.with_registry("a:1", "1");
    assert_eq!(fixture.ensure("a:1", "IfNotPresent").await.unwrap().id, "1");
}

#[tokio::test(start_paused = true)]
async fn n_67_an_unavailable_registry_has_its_own_reason() {
    let fixture = Fixture::new();
    *fixture.images.unavailable.lock().unwrap() = true;
    let message = "image pull failed for a because the registry is unavailable: connection refused";
    assert_eq!(fixture.ensure("a", "Always").await, Err(error("RegistryUnavailable", message)));
    let later = fixture.ensure("a", "Always").await.unwrap_err();
    let last = format!("Back-off pulling image \"a\": RegistryUnavailable: {message}");
    assert_eq!(later, error("ImagePullBackOff", &last));
}

#[tokio::test(start_paused = true)]
async fn n_69_pulls_are_serial_and_the_event_includes_the_waiting_time() {
    let mut fixture = Fixture::new().with_registry("a:1", "a").with_registry("b:1", "b");
    *fixture.images.pull_time.lock().unwrap() = Duration::from_secs(2);
    let (a, b) = tokio::join!(fixture.ensure("a:1", "Always"), fixture.ensure("b:1", "Always"));
    assert_eq!((a.unwrap().id, b.unwrap().id), ("a".to_owned(), "b".to_owned()));
    assert_eq!(fixture.images.parallel.lock().unwrap().1, 1);
    let events = fixture.events();
    // The first that reported Pulling is the first to finish.
    let named = |event: &String| event.split('"').nth(1).unwrap().to_owned();
    assert_eq!((named(&events[0]), named(&events[1])), (named(&events[2]), named(&events[3])));
    assert!(events[2].contains("in 2s (2s including waiting)"), "{events:?}");
    assert!(events[3].contains("in 2s (4s including waiting)"), "{events:?}");

    let mut parallel = Fixture::new().with_registry("a:1", "a").with_registry("b:1", "b");
    parallel.manager = parallel.manager.with_parallel_pulls(2);
    *parallel.images.pull_time.lock().unwrap() = Duration::from_secs(2);
    let (a, b) = tokio::join!(parallel.ensure("a:1", "Always"), parallel.ensure("b:1", "Always"));
    assert!(a.is_ok() && b.is_ok());
    assert_eq!(parallel.images.parallel.lock().unwrap().1, 2);
}

#[tokio::test(start_paused = true)]
async fn n_69_too_many_pulls_per_second_fail() {
    let fixture = Fixture::new().with_registry("a:1", "1");
    for _ in 0..10 {
        fixture.ensure("a:1", "Always").await.unwrap();
    }
    let failed = fixture.ensure("a:1", "Always").await;
    assert_eq!(failed, Err(error("ErrImagePull", "pull QPS exceeded")));
}

fn auths(password: &str) -> serde_json::Value {
    json!({ "r.example": { "username": "u", "password": password } })
}

#[tokio::test(start_paused = true)]
async fn n_174_n_175_all_matching_secrets_are_tried_but_no_anonymous_pull() {
    let fixture = Fixture::new().with_registry("r.example/a:1", "1");
    *fixture.images.password.lock().unwrap() = Some("right".to_owned());
    let secrets = [secret("one", auths("wrong")), secret("two", auths("bad"))];
    let failed = fixture.ensure_with("r.example/a:1", "Always", &secrets).await.unwrap_err();
    assert_eq!(failed, error("ErrImagePull", "[denied to wrong, denied to bad]"));
    let passwords = |fixture: &Fixture| -> Vec<Option<String>> {
        fixture.images.pulls.lock().unwrap().drain(..).map(|(_, password)| password).collect()
    };
    assert_eq!(passwords(&fixture), [Some("wrong".into()), Some("bad".into())]);

    tokio::time::advance(Duration::from_secs(11)).await;
    let secrets = [secret("one", auths("wrong")), secret("two", auths("right"))];
    fixture.ensure_with("r.example/a:1", "Always", &secrets).await.unwrap();
    assert_eq!(passwords(&fixture).len(), 2);
    // The node's credentials come after the pod's.
    let config = json!({ "auths": auths("node") }).to_string();
    std::fs::write(fixture.directory.path().join("config.json"), config).unwrap();
    let _ = fixture.ensure_with("r.example/b:1", "Always", &[secret("s", auths("pod"))]).await;
    assert_eq!(passwords(&fixture), [Some("pod".into()), Some("node".into())]);
    let _ = fixture.ensure_with("other.example/b:1", "Always", &[]).await;
    assert_eq!(passwords(&fixture), [None]);
}

#[tokio::test(start_paused = true)]
async fn n_65_n_176_an_image_pulled_with_a_secret_is_not_for_pods_without_it() {
    let mut fixture = Fixture::new().with_registry("r.example/a:1", "1");
    *fixture.images.password.lock().unwrap() = Some("right".to_owned());
    let mine = [secret("mine", auths("right"))];
    fixture.ensure_with("r.example/a:1", "IfNotPresent", &mine).await.unwrap();
    fixture.ensure_with("r.example/a:1", "IfNotPresent", &mine).await.unwrap();
    assert_eq!(fixture.pulls(), 1);
    fixture.events();

    let denied = fixture.ensure("r.example/a:1", "IfNotPresent").await.unwrap_err();
    assert_eq!(denied, error("ErrImagePull", "denied to nobody"));
    let never = fixture.ensure("r.example/a:1", "Never").await.unwrap_err();
    assert_eq!(never.reason, "ErrImageNeverPull");
    assert_eq!(fixture.pulls(), 2);
    let same = [secret("another-name", auths("right"))];
    fixture.ensure_with("r.example/a:1", "Never", &same).await.unwrap();
}

#[test]
fn n_178_an_image_id_is_a_digest_that_another_node_can_pull() {
    let mut image = image("sha256:1");
    assert_eq!(image_id(&image, "a"), "sha256:1");
    image.digests = vec!["docker.io/library/a@sha256:2".into(), "r.example/a@sha256:3".into()];
    assert_eq!(image_id(&image, "r.example/a:1"), "r.example/a@sha256:3");
    assert_eq!(image_id(&image, "a"), "docker.io/library/a@sha256:2");
    assert_eq!(image_id(&image, "b"), "docker.io/library/a@sha256:2");
}

const FULL: Disk = Disk { capacity: 10_000, available: 1_000 };

/// Makes all images old enough to be removed.
async fn age(collector: &Collector, images: &FakeImages, used: &BTreeSet<String>) {
    let fine = Ok(Disk { capacity: 10_000, available: 9_000 });
    collector.collect(images, &on(), used, fine).await.unwrap();
    tokio::time::advance(Duration::from_secs(121)).await;
}

#[tokio::test(start_paused = true)]
async fn n_177_the_images_that_are_unused_for_longest_are_removed_first() {
    let fixture = Fixture::new()
        .with_present("a", "a")
        .with_present("b", "b")
        .with_present("c", "c")
        .with_present("d", "d");
    fixture.images.present.lock().unwrap().get_mut("d").unwrap().pinned = true;
    let (recorder, _events) = Recorder::collecting();
    let collector = Collector::new(recorder, Policy::default());
    let set = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<BTreeSet<_>>();
    age(&collector, &fixture.images, &set(&["a", "b"])).await;
    age(&collector, &fixture.images, &set(&["a"])).await;
    // 90 % used, down to 80 %: one image of 1000 bytes is enough. c was never used.
    collector.collect(&*fixture.images, &on(), &set(&[]), Ok(FULL)).await.unwrap();
    assert_eq!(*fixture.images.removed.lock().unwrap(), ["c"]);
    collector.collect(&*fixture.images, &on(), &set(&["a"]), Ok(FULL)).await.unwrap();
    assert_eq!(*fixture.images.removed.lock().unwrap(), ["c", "b"]);
    let fine = Ok(Disk { capacity: 10_000, available: 1_600 });
    collector.collect(&*fixture.images, &on(), &set(&[]), fine).await.unwrap();
    assert_eq!(fixture.images.removed.lock().unwrap().len(), 2, "84 % is not full");
}

#[tokio::test(start_paused = true)]
async fn n_177_young_used_and_pinned_images_stay_and_an_event_reports_it() {
    let fixture = Fixture::new().with_present("young", "y").with_present("used", "u");
    let (recorder, mut events) = Recorder::collecting();
    let collector = Collector::new(recorder, Policy::default());
    let used = BTreeSet::from(["u".to_owned()]);
    let message = "Insufficient free disk space on the node's image filesystem (90% of 9.8 KiB used). \
                   Failed to free sufficient space by deleting unused images (freed 0 bytes). \
                   Investigate disk usage, as it could be used by active images, logs, volumes, or \
                   other data.";
    for round in 0..2 {
        let failed = collector.collect(&*fixture.images, &on(), &used, Ok(FULL)).await;
        assert_eq!(failed, Err(message.to_owned()));
        collector.report(&on(), failed);
        let mut reasons = Vec::new();
        while let Ok(happening) = events.try_recv() {
            assert_eq!(happening.message, message);
            reasons.push(happening.reason);
        }
        let repeated = ["FreeDiskSpaceFailed", "ImageGCFailed"];
        assert_eq!(reasons, repeated[..=round]);
    }
    assert!(fixture.images.removed.lock().unwrap().is_empty());
    // Under disk pressure all unused images are removed, but not before their minimum age.
    assert_eq!(collector.free(&*fixture.images, &used, u64::MAX).await.unwrap(), 0);
    tokio::time::advance(Duration::from_secs(121)).await;
    assert_eq!(collector.free(&*fixture.images, &used, u64::MAX).await.unwrap(), 1000);
    assert_eq!(*fixture.images.removed.lock().unwrap(), ["y"]);
}

#[tokio::test(start_paused = true)]
async fn n_177_images_over_the_maximum_age_are_removed() {
    let fixture = Fixture::new().with_present("a", "a").with_present("b", "b");
    let (recorder, _events) = Recorder::collecting();
    let policy = Policy { max_age: Some(Duration::from_secs(3600)), ..Policy::default() };
    let collector = Collector::new(recorder, policy);
    let used = BTreeSet::from(["a".to_owned()]);
    let fine = Ok(Disk { capacity: 10_000, available: 9_000 });
    age(&collector, &fixture.images, &used).await;
    assert!(fixture.images.removed.lock().unwrap().is_empty());
    tokio::time::advance(Duration::from_secs(3600)).await;
    collector.collect(&*fixture.images, &on(), &used, fine).await.unwrap();
    assert_eq!(*fixture.images.removed.lock().unwrap(), ["b"]);
}

mod registry;
