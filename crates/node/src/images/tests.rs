//! What is pulled, when, with which credentials, and what is told; on a paused clock and with images
//! that are only names. Once against a real registry.

use super::collect::{Collector, Disk, Policy};
use super::keyring::tests::secret;
use super::*;
use client::Happening;
use runtime::{Error, PullProgress};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use tempfile::TempDir;
use tokio::sync::mpsc;

/// Images that are here by name, and what a registry would answer.
#[derive(Default)]
struct Names {
    here: Mutex<BTreeMap<String, Image>>,
    /// By reference; what is not listed is not found.
    registry: Mutex<BTreeMap<String, Image>>,
    /// The password the registry wants, if any.
    password: Mutex<Option<String>>,
    takes: Mutex<Duration>,
    unavailable: Mutex<bool>,
    unreadable: Mutex<bool>,
    /// References and passwords, as pulls came.
    pulls: Mutex<Vec<(String, Option<String>)>>,
    at_once: Mutex<(usize, usize)>,
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
impl Images for Names {
    async fn find(&self, image: &ImageReference) -> runtime::Result<Option<Image>> {
        if *self.unreadable.lock().unwrap() {
            return Err(Error::Unavailable("no answer".into()));
        }
        Ok(self.here.lock().unwrap().get(&image.0).cloned())
    }

    async fn list(&self) -> runtime::Result<Vec<Image>> {
        Ok(self.here.lock().unwrap().values().cloned().collect())
    }

    async fn pull(
        &self,
        image: &ImageReference,
        credentials: &[Credentials],
        _progress: &(dyn Fn(PullProgress) + Send + Sync),
    ) -> runtime::Result<Image> {
        let shown = credentials.first().map(|known| known.password.clone());
        self.pulls.lock().unwrap().push((image.0.clone(), shown.clone()));
        {
            let mut now = self.at_once.lock().unwrap();
            now.0 += 1;
            now.1 = now.1.max(now.0);
        }
        let takes = *self.takes.lock().unwrap();
        tokio::time::sleep(takes).await;
        self.at_once.lock().unwrap().0 -= 1;
        if *self.unavailable.lock().unwrap() {
            return Err(Error::RegistryUnavailable("connection refused".into()));
        }
        let wanted = self.password.lock().unwrap().clone();
        if wanted.is_some() && wanted != shown {
            return Err(Error::Pull(format!("denied to {}", shown.as_deref().unwrap_or("nobody"))));
        }
        let found = self.registry.lock().unwrap().get(&image.0).cloned();
        let found = found.ok_or_else(|| Error::Pull("not found".into()))?;
        self.here.lock().unwrap().insert(image.0.clone(), found.clone());
        Ok(found)
    }

    async fn remove(&self, id: &str) -> runtime::Result<()> {
        self.removed.lock().unwrap().push(id.to_owned());
        self.here.lock().unwrap().retain(|_, image| image.id != id);
        Ok(())
    }

    fn directory(&self) -> PathBuf {
        PathBuf::from("/")
    }

    async fn mount(&self, _image: &str, _target: &Path) -> runtime::Result<()> {
        Ok(())
    }
}

struct World {
    names: Arc<Names>,
    manager: ImageManager,
    told: mpsc::Receiver<Happening>,
    directory: TempDir,
}

impl World {
    fn new() -> World {
        let names = Arc::new(Names::default());
        let (recorder, told) = Recorder::collecting();
        let directory = tempfile::tempdir().unwrap();
        let source = Source::Images(names.clone());
        let manager = ImageManager::of(source, recorder, directory.path().to_owned());
        World { names, manager, told, directory }
    }

    fn here(self, reference: &str, id: &str) -> World {
        self.names.here.lock().unwrap().insert(reference.to_owned(), image(id));
        self
    }

    fn offered(self, reference: &str, id: &str) -> World {
        self.names.registry.lock().unwrap().insert(reference.to_owned(), image(id));
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

    /// `Normal Pulling …` since last asked.
    fn events(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.told.try_recv().ok())
            .map(|told| format!("{:?} {} {}", told.severity, told.reason, told.message))
            .collect()
    }

    fn pulls(&self) -> usize {
        self.names.pulls.lock().unwrap().len()
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
async fn what_is_here_is_used_unless_the_policy_is_always_n_65_n_66() {
    let mut world = World::new().here("busybox:latest", "1").offered("busybox:latest", "2");
    *world.names.takes.lock().unwrap() = Duration::from_millis(1500);
    for policy in ["IfNotPresent", "Never"] {
        assert_eq!(world.ensure("busybox", policy).await.unwrap().id, "1");
        let text = "Normal Pulled Container image \"busybox\" already present on machine and can be \
                    accessed by the pod";
        assert_eq!(world.events(), [text]);
    }
    assert_eq!(world.pulls(), 0);
    assert_eq!(world.ensure("busybox", "Always").await.unwrap().id, "2");
    let pulled = "Normal Pulled Successfully pulled image \"busybox\" in 1.5s (1.5s including \
                  waiting). Image size: 1000 bytes.";
    assert_eq!(world.events(), ["Normal Pulling Pulling image \"busybox\"", pulled]);
    let asked = world.names.pulls.lock().unwrap()[0].clone();
    assert_eq!(asked, ("busybox:latest".to_owned(), None), "the node adds the tag only (N-172)");
}

#[tokio::test(start_paused = true)]
async fn what_is_absent_and_never_pulled_is_said_n_65_n_67() {
    let mut world = World::new().offered("a:1", "1");
    let message = "Container image \"a:1\" is not present with pull policy of Never";
    assert_eq!(world.ensure("a:1", "Never").await, Err(error("ErrImageNeverPull", message)));
    let events = [
        format!("Warning ErrImageNeverPull {message}"),
        "Warning Failed Error: ErrImageNeverPull".to_owned(),
    ];
    assert_eq!(world.events(), events);
    assert_eq!(world.pulls(), 0);
}

#[tokio::test(start_paused = true)]
async fn names_that_are_none_and_stores_that_do_not_answer_are_said_n_67_n_172() {
    let mut world = World::new();
    let message = "Failed to apply default image tag \"Bad\": couldn't parse image name \"Bad\": \
                   invalid reference format: repository name must be lowercase";
    assert_eq!(world.ensure("Bad", "Always").await, Err(error("InvalidImageName", message)));
    let events = [
        format!("Warning InspectFailed {message}"),
        "Warning Failed Error: InvalidImageName".to_owned(),
    ];
    assert_eq!(world.events(), events);
    *world.names.unreadable.lock().unwrap() = true;
    let message = "Failed to inspect image \"\": no answer";
    assert_eq!(world.ensure("a", "IfNotPresent").await, Err(error("ImageInspectError", message)));
    assert_eq!(world.events()[0], format!("Warning InspectFailed {message}"));
}

#[tokio::test(start_paused = true)]
async fn failure_and_back_off_take_turns_n_66_n_67_n_68() {
    let mut world = World::new();
    let failed = Err(error("ErrImagePull", "not found"));
    let waiting =
        Err(error("ImagePullBackOff", "Back-off pulling image \"a:1\": ErrImagePull: not found"));
    assert_eq!(world.ensure("a:1", "IfNotPresent").await, failed);
    let events = [
        "Normal Pulling Pulling image \"a:1\"",
        "Warning Failed Failed to pull image \"a:1\": not found",
        "Warning Failed Error: ErrImagePull",
    ];
    assert_eq!(world.events(), events);
    assert_eq!(world.ensure("a:1", "IfNotPresent").await, waiting);
    let events =
        ["Normal BackOff Back-off pulling image \"a:1\"", "Warning Failed Error: ImagePullBackOff"];
    assert_eq!(world.events(), events);
    assert_eq!(world.pulls(), 1);

    // Another pod, another image: their own back-off.
    let other = world.manager.ensure(&pod("other"), &on(), "a:1", "Always", &[]).await;
    assert_eq!(other, failed);
    assert_eq!(world.ensure("b:1", "Always").await, failed);

    tokio::time::advance(Duration::from_millis(9_900)).await;
    assert_eq!(world.ensure("a:1", "IfNotPresent").await, waiting);
    tokio::time::advance(Duration::from_millis(200)).await;
    assert_eq!(world.ensure("a:1", "IfNotPresent").await, failed);
    tokio::time::advance(Duration::from_secs(19)).await;
    assert_eq!(world.ensure("a:1", "IfNotPresent").await, waiting, "twice as long");
    tokio::time::advance(Duration::from_secs(2)).await;
    let world = world.offered("a:1", "1");
    assert_eq!(world.ensure("a:1", "IfNotPresent").await.unwrap().id, "1");
}

#[tokio::test(start_paused = true)]
async fn a_registry_that_is_away_is_said_to_be_n_67() {
    let world = World::new();
    *world.names.unavailable.lock().unwrap() = true;
    let message = "image pull failed for a because the registry is unavailable: connection refused";
    assert_eq!(world.ensure("a", "Always").await, Err(error("RegistryUnavailable", message)));
    let later = world.ensure("a", "Always").await.unwrap_err();
    let last = format!("Back-off pulling image \"a\": RegistryUnavailable: {message}");
    assert_eq!(later, error("ImagePullBackOff", &last));
}

#[tokio::test(start_paused = true)]
async fn pulls_come_one_after_another_and_waiting_is_counted_n_69() {
    let mut world = World::new().offered("a:1", "a").offered("b:1", "b");
    *world.names.takes.lock().unwrap() = Duration::from_secs(2);
    let (a, b) = tokio::join!(world.ensure("a:1", "Always"), world.ensure("b:1", "Always"));
    assert_eq!((a.unwrap().id, b.unwrap().id), ("a".to_owned(), "b".to_owned()));
    assert_eq!(world.names.at_once.lock().unwrap().1, 1);
    let events = world.events();
    // Whoever said first that it pulls has its image first.
    let named = |event: &String| event.split('"').nth(1).unwrap().to_owned();
    assert_eq!((named(&events[0]), named(&events[1])), (named(&events[2]), named(&events[3])));
    assert!(events[2].contains("in 2s (2s including waiting)"), "{events:?}");
    assert!(events[3].contains("in 2s (4s including waiting)"), "{events:?}");

    let mut parallel = World::new().offered("a:1", "a").offered("b:1", "b");
    parallel.manager = parallel.manager.at_once(2);
    *parallel.names.takes.lock().unwrap() = Duration::from_secs(2);
    let (a, b) = tokio::join!(parallel.ensure("a:1", "Always"), parallel.ensure("b:1", "Always"));
    assert!(a.is_ok() && b.is_ok());
    assert_eq!(parallel.names.at_once.lock().unwrap().1, 2);
}

#[tokio::test(start_paused = true)]
async fn too_many_pulls_in_a_second_fail_n_69() {
    let world = World::new().offered("a:1", "1");
    for _ in 0..10 {
        world.ensure("a:1", "Always").await.unwrap();
    }
    let failed = world.ensure("a:1", "Always").await;
    assert_eq!(failed, Err(error("ErrImagePull", "pull QPS exceeded")));
}

fn auths(password: &str) -> serde_json::Value {
    json!({ "r.example": { "username": "u", "password": password } })
}

#[tokio::test(start_paused = true)]
async fn all_matching_secrets_are_tried_and_then_nobody_is_not_n_174_n_175() {
    let world = World::new().offered("r.example/a:1", "1");
    *world.names.password.lock().unwrap() = Some("right".to_owned());
    let secrets = [secret("one", auths("wrong")), secret("two", auths("bad"))];
    let failed = world.ensure_with("r.example/a:1", "Always", &secrets).await.unwrap_err();
    assert_eq!(failed, error("ErrImagePull", "[denied to wrong, denied to bad]"));
    let shown = |world: &World| -> Vec<Option<String>> {
        world.names.pulls.lock().unwrap().drain(..).map(|(_, shown)| shown).collect()
    };
    assert_eq!(shown(&world), [Some("wrong".into()), Some("bad".into())]);

    tokio::time::advance(Duration::from_secs(11)).await;
    let secrets = [secret("one", auths("wrong")), secret("two", auths("right"))];
    world.ensure_with("r.example/a:1", "Always", &secrets).await.unwrap();
    assert_eq!(shown(&world).len(), 2);
    // The node's own come after the pod's.
    let config = json!({ "auths": auths("node") }).to_string();
    std::fs::write(world.directory.path().join("config.json"), config).unwrap();
    let _ = world.ensure_with("r.example/b:1", "Always", &[secret("s", auths("pod"))]).await;
    assert_eq!(shown(&world), [Some("pod".into()), Some("node".into())]);
    let _ = world.ensure_with("other.example/b:1", "Always", &[]).await;
    assert_eq!(shown(&world), [None]);
}

#[tokio::test(start_paused = true)]
async fn what_a_secret_fetched_is_not_for_those_without_it_n_65_n_176() {
    let mut world = World::new().offered("r.example/a:1", "1");
    *world.names.password.lock().unwrap() = Some("right".to_owned());
    let mine = [secret("mine", auths("right"))];
    world.ensure_with("r.example/a:1", "IfNotPresent", &mine).await.unwrap();
    world.ensure_with("r.example/a:1", "IfNotPresent", &mine).await.unwrap();
    assert_eq!(world.pulls(), 1);
    world.events();

    let denied = world.ensure("r.example/a:1", "IfNotPresent").await.unwrap_err();
    assert_eq!(denied, error("ErrImagePull", "denied to nobody"));
    let never = world.ensure("r.example/a:1", "Never").await.unwrap_err();
    assert_eq!(never.reason, "ErrImageNeverPull");
    assert_eq!(world.pulls(), 2);
    let same = [secret("another-name", auths("right"))];
    world.ensure_with("r.example/a:1", "Never", &same).await.unwrap();
}

#[test]
fn an_image_id_is_what_another_node_can_pull_n_178() {
    let mut image = image("sha256:1");
    assert_eq!(image_id(&image, "a"), "sha256:1");
    image.digests = vec!["docker.io/library/a@sha256:2".into(), "r.example/a@sha256:3".into()];
    assert_eq!(image_id(&image, "r.example/a:1"), "r.example/a@sha256:3");
    assert_eq!(image_id(&image, "a"), "docker.io/library/a@sha256:2");
    assert_eq!(image_id(&image, "b"), "docker.io/library/a@sha256:2");
}

const FULL: Disk = Disk { capacity: 10_000, available: 1_000 };

/// Seen for long enough to go.
async fn aged(collector: &Collector, names: &Names, used: &BTreeSet<String>) {
    let fine = Ok(Disk { capacity: 10_000, available: 9_000 });
    collector.collect(names, &on(), used, fine).await.unwrap();
    tokio::time::advance(Duration::from_secs(121)).await;
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_loses_the_images_unused_for_longest_n_177() {
    let world = World::new().here("a", "a").here("b", "b").here("c", "c").here("d", "d");
    world.names.here.lock().unwrap().get_mut("d").unwrap().pinned = true;
    let (recorder, _told) = Recorder::collecting();
    let collector = Collector::new(recorder, Policy::default());
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    aged(&collector, &world.names, &set(&["a", "b"])).await;
    aged(&collector, &world.names, &set(&["a"])).await;
    // 90 % used, down to 80 %: one image of 1000 bytes is enough. c was never used.
    collector.collect(&*world.names, &on(), &set(&[]), Ok(FULL)).await.unwrap();
    assert_eq!(*world.names.removed.lock().unwrap(), ["c"]);
    collector.collect(&*world.names, &on(), &set(&["a"]), Ok(FULL)).await.unwrap();
    assert_eq!(*world.names.removed.lock().unwrap(), ["c", "b"]);
    let calm = Ok(Disk { capacity: 10_000, available: 1_600 });
    collector.collect(&*world.names, &on(), &set(&[]), calm).await.unwrap();
    assert_eq!(world.names.removed.lock().unwrap().len(), 2, "84 % is not full");
}

#[tokio::test(start_paused = true)]
async fn young_used_and_pinned_images_stay_and_the_node_says_so_n_177() {
    let world = World::new().here("young", "y").here("used", "u");
    let (recorder, mut told) = Recorder::collecting();
    let collector = Collector::new(recorder, Policy::default());
    let used = BTreeSet::from(["u".to_owned()]);
    let message = "Insufficient free disk space on the node's image filesystem (90% of 9.8 KiB used). \
                   Failed to free sufficient space by deleting unused images (freed 0 bytes). \
                   Investigate disk usage, as it could be used by active images, logs, volumes, or \
                   other data.";
    for round in 0..2 {
        let failed = collector.collect(&*world.names, &on(), &used, Ok(FULL)).await;
        assert_eq!(failed, Err(message.to_owned()));
        collector.tell(&on(), failed);
        let mut reasons = Vec::new();
        while let Ok(happening) = told.try_recv() {
            assert_eq!(happening.message, message);
            reasons.push(happening.reason);
        }
        let repeated = ["FreeDiskSpaceFailed", "ImageGCFailed"];
        assert_eq!(reasons, repeated[..=round]);
    }
    assert!(world.names.removed.lock().unwrap().is_empty());
    // Under disk pressure all that is unused goes, but not before its time.
    assert_eq!(collector.free(&*world.names, &used, u64::MAX).await.unwrap(), 0);
    tokio::time::advance(Duration::from_secs(121)).await;
    assert_eq!(collector.free(&*world.names, &used, u64::MAX).await.unwrap(), 1000);
    assert_eq!(*world.names.removed.lock().unwrap(), ["y"]);
}

#[tokio::test(start_paused = true)]
async fn images_unused_for_too_long_go_if_the_node_wants_it_n_177() {
    let world = World::new().here("a", "a").here("b", "b");
    let (recorder, _told) = Recorder::collecting();
    let policy = Policy { max_age: Some(Duration::from_secs(3600)), ..Policy::default() };
    let collector = Collector::new(recorder, policy);
    let used = BTreeSet::from(["a".to_owned()]);
    let fine = Ok(Disk { capacity: 10_000, available: 9_000 });
    aged(&collector, &world.names, &used).await;
    assert!(world.names.removed.lock().unwrap().is_empty());
    tokio::time::advance(Duration::from_secs(3600)).await;
    collector.collect(&*world.names, &on(), &used, fine).await.unwrap();
    assert_eq!(*world.names.removed.lock().unwrap(), ["b"]);
}

mod registry;
