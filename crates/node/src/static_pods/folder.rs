//! The manifest directory, followed: inotify says when to look, a look every 20 s makes sure.

use super::manifest;
use crate::digest::sha256;
use client::Recorder;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

const LOOK_AGAIN: Duration = Duration::from_secs(20);
/// A manifest is small; what is not is no manifest.
const FILE_MAX: u64 = 10 << 20;

/// All static pods there are, in order of file name. None until the directory was read once.
pub(crate) type StaticPods = Option<Arc<Vec<Arc<Pod>>>>;

/// Follows the directory for as long as somebody listens. Needs a tokio runtime.
pub(crate) fn follow(
    directory: &Path,
    node: &str,
    recorder: Recorder,
) -> watch::Receiver<StaticPods> {
    let (sender, receiver) = watch::channel(None);
    let mut folder = Folder::new(directory, node);
    tokio::spawn(async move {
        let mut eye = None;
        loop {
            // Watch first, then look: a change in between is seen twice rather than never.
            eye = eye.or_else(|| Eye::open(&folder.directory));
            let found = folder.look(clock::now());
            for duplicate in &found.duplicates {
                tell_duplicate(&recorder, duplicate);
            }
            let pods = Some(Arc::new(found.pods));
            sender.send_if_modified(|known| {
                let changed = *known != pods;
                *known = pods.clone();
                changed
            });
            tokio::select! {
                () = sender.closed() => return,
                () = tokio::time::sleep(LOOK_AGAIN) => {}
                still_there = wait(&eye) => if !still_there { eye = None },
            }
        }
    });
    receiver
}

/// False when the directory itself has gone.
async fn wait(eye: &Option<Eye>) -> bool {
    match eye {
        Some(eye) => eye.change().await,
        None => std::future::pending().await,
    }
}

fn tell_duplicate(recorder: &Recorder, pod: &Pod) {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let meta = &pod.metadata;
    let (name, namespace, uid) = (text(&meta.name), text(&meta.namespace), text(&meta.uid));
    recorder.warning(
        &client::reference(pod),
        "FailedValidation",
        format!(
            "Error validating pod {name}_{namespace}({uid}) from file due to duplicate pod name \
             {name:?}, ignoring"
        ),
    );
}

/// What the directory held when it was last looked at.
struct Folder {
    directory: PathBuf,
    node: String,
    known: BTreeMap<PathBuf, Known>,
}

struct Known {
    content: [u8; 32],
    /// The last good one: a manifest that is being rewritten does not stop its pod.
    pod: Option<Arc<Pod>>,
}

#[derive(Debug, Default)]
struct Found {
    pods: Vec<Arc<Pod>>,
    /// Of a name that another file has used already (N-22). Told each time they turn up anew.
    duplicates: Vec<Arc<Pod>>,
}

impl Folder {
    fn new(directory: &Path, node: &str) -> Folder {
        Folder { directory: directory.into(), node: node.into(), known: BTreeMap::new() }
    }

    fn look(&mut self, now: Timestamp) -> Found {
        let mut before = std::mem::take(&mut self.known);
        let mut found = Found::default();
        let mut names = BTreeSet::new();
        for file in files(&self.directory) {
            let Some(bytes) = content(&file) else { continue };
            let hash = sha256(&bytes);
            let old = before.remove(&file);
            let unchanged = old.as_ref().is_some_and(|old| old.content == hash);
            let known = match old {
                Some(old) if unchanged => old,
                old => {
                    let last_good = old.and_then(|old| old.pod);
                    Known { content: hash, pod: self.read(&bytes, &file, now).or(last_good) }
                }
            };
            if let Some(pod) = &known.pod {
                let name = (pod.metadata.namespace.clone(), pod.metadata.name.clone());
                match names.insert(name) {
                    true => found.pods.push(pod.clone()),
                    false if !unchanged => found.duplicates.push(pod.clone()),
                    false => {}
                }
            }
            self.known.insert(file, known);
        }
        found
    }

    fn read(&self, bytes: &[u8], file: &Path, now: Timestamp) -> Option<Arc<Pod>> {
        match manifest::read(bytes, file, &self.node, now) {
            Ok(pod) => Some(Arc::new(pod)),
            Err(why) => {
                tracing::error!(file = %file.display(), why, "a manifest cannot be used");
                None
            }
        }
    }
}

/// In order of name, those that begin with a dot left out. A directory that is not there is empty.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let shown = entries.filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'));
    let mut files: Vec<PathBuf> = shown.map(|entry| entry.path()).collect();
    files.sort();
    files
}

/// None if it is no file, or has just gone.
fn content(file: &Path) -> Option<Vec<u8>> {
    let about = std::fs::metadata(file).ok()?;
    if !about.is_file() || about.len() > FILE_MAX {
        return None;
    }
    std::fs::read(file).ok()
}

#[allow(unsafe_code, reason = "what is registered owns its descriptor, which stays open as long")]
fn registered(inotify: Inotify) -> Option<AsyncFd<Raw>> {
    // SAFETY: `Raw` always answers with the descriptor of the `Inotify` it owns.
    unsafe { AsyncFd::register(Raw(inotify)) }.ok()
}

/// An inotify watch on the directory.
struct Eye(AsyncFd<Raw>);

struct Raw(Inotify);

impl AsRawFd for Raw {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl Eye {
    fn open(directory: &Path) -> Option<Eye> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC).ok()?;
        let changes = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_MODIFY
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF;
        inotify.add_watch(directory, changes).ok()?;
        registered(inotify).map(Eye)
    }

    /// Waits for changes and forgets them. False when the directory itself has gone.
    async fn change(&self) -> bool {
        let Ok(mut ready) = self.0.readable().await else { return false };
        let gone =
            AddWatchFlags::IN_DELETE_SELF | AddWatchFlags::IN_MOVE_SELF | AddWatchFlags::IN_IGNORED;
        let mut there = true;
        while let Ok(events) = ready.get_inner().0.read_events() {
            there &= !events.iter().any(|event| event.mask.intersects(gone));
        }
        ready.clear_ready();
        there
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn manifest(name: &str, image: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\n\
             spec: {{containers: [{{name: c, image: {image}}}]}}\n"
        )
    }

    fn names(found: &Found) -> Vec<String> {
        found.pods.iter().filter_map(|pod| pod.metadata.name.clone()).collect()
    }

    #[test]
    fn n_23_hidden_files_and_directories_are_no_manifests() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join(".hidden.yaml"), manifest("hidden", "i")).unwrap();
        fs::write(place.path().join("b.yaml"), manifest("b", "i")).unwrap();
        fs::write(place.path().join("a.json"), manifest("a", "i")).unwrap();
        fs::create_dir(place.path().join("more")).unwrap();
        let found = Folder::new(place.path(), "n").look(clock::now());
        assert_eq!(names(&found), ["a-n", "b-n"]);
        assert!(Folder::new(&place.path().join("none"), "n").look(clock::now()).pods.is_empty());
    }

    #[test]
    fn n_22_of_two_files_with_one_name_the_second_is_ignored_and_told_once() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("a.yaml"), manifest("web", "first")).unwrap();
        fs::write(place.path().join("b.yaml"), manifest("web", "second")).unwrap();
        let mut folder = Folder::new(place.path(), "n");
        let found = folder.look(clock::now());
        assert_eq!(
            found.pods[0].spec.as_ref().unwrap().containers[0].image.as_deref(),
            Some("first")
        );
        assert_eq!((found.pods.len(), found.duplicates.len()), (1, 1));
        assert_eq!(folder.look(clock::now()).duplicates.len(), 0);
    }

    #[test]
    fn what_has_not_changed_is_the_same_pod_and_a_broken_rewrite_does_not_stop_it() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("a.yaml");
        fs::write(&file, manifest("web", "one")).unwrap();
        let mut folder = Folder::new(place.path(), "n");
        let first = folder.look("2026-01-01T00:00:00Z".parse().unwrap());
        let again = folder.look("2026-01-01T00:00:20Z".parse().unwrap());
        assert_eq!(first.pods, again.pods);
        fs::write(&file, "apiVersion: v1\nkind: P").unwrap();
        assert_eq!(folder.look(clock::now()).pods, first.pods);
        fs::write(&file, manifest("web", "two")).unwrap();
        assert_ne!(folder.look(clock::now()).pods[0].metadata.uid, first.pods[0].metadata.uid);
        fs::remove_file(&file).unwrap();
        assert!(folder.look(clock::now()).pods.is_empty());
    }

    #[tokio::test]
    async fn n_23_a_new_manifest_is_noticed_at_once() {
        let place = tempfile::tempdir().unwrap();
        let mut pods = follow(place.path(), "n", Recorder::collecting().0);
        let count = |pods: &StaticPods| pods.as_ref().map(|pods| pods.len());
        pods.wait_for(|pods| count(pods) == Some(0)).await.unwrap();
        fs::write(place.path().join("a.yaml"), manifest("web", "i")).unwrap();
        // Well before the next look, which is 20 s away.
        let noticed = pods.wait_for(|pods| count(pods) == Some(1));
        tokio::time::timeout(Duration::from_secs(10), noticed).await.unwrap().unwrap();
        fs::remove_file(place.path().join("a.yaml")).unwrap();
        let noticed = pods.wait_for(|pods| count(pods) == Some(0));
        tokio::time::timeout(Duration::from_secs(10), noticed).await.unwrap().unwrap();
    }
}
