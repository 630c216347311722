//! Watches the manifest directory: reads it on inotify events, and every 20 s.

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

/// Interval of reads without an event.
const REREAD: Duration = Duration::from_secs(20);
/// Larger files are not manifests.
const FILE_MAX: u64 = 10 << 20;

/// All static pods, in the order of file names. None until the directory was read once.
pub(crate) type StaticPods = Option<Arc<Vec<Arc<Pod>>>>;

/// Watches the directory until the receiver is dropped. Needs a tokio runtime.
pub(crate) fn follow(
    directory: &Path,
    node: &str,
    recorder: Recorder,
) -> watch::Receiver<StaticPods> {
    let (sender, receiver) = watch::channel(None);
    let mut manifests = ManifestDirectory::new(directory, node);
    tokio::spawn(async move {
        let mut watch = None;
        loop {
            // Watch first, then read: a change in between must not be missed.
            watch = watch.or_else(|| DirectoryWatch::open(&manifests.directory));
            let found = manifests.read_all(clock::now());
            for duplicate in &found.duplicates {
                report_duplicate(&recorder, duplicate);
            }
            let pods = Some(Arc::new(found.pods));
            sender.send_if_modified(|known| {
                let changed = *known != pods;
                *known = pods.clone();
                changed
            });
            tokio::select! {
                () = sender.closed() => return,
                () = tokio::time::sleep(REREAD) => {}
                still_there = wait(&watch) => if !still_there { watch = None },
            }
        }
    });
    receiver
}

/// Returns false if the directory itself is gone.
async fn wait(watch: &Option<DirectoryWatch>) -> bool {
    match watch {
        Some(watch) => watch.change().await,
        None => std::future::pending().await,
    }
}

fn report_duplicate(recorder: &Recorder, pod: &Pod) {
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

/// The manifests of the directory when it was last read.
struct ManifestDirectory {
    directory: PathBuf,
    node: String,
    files: BTreeMap<PathBuf, ManifestFile>,
}

struct ManifestFile {
    /// Hash of the content.
    content: [u8; 32],
    /// From the last valid content: a manifest that is being rewritten does not stop its pod.
    pod: Option<Arc<Pod>>,
}

#[derive(Debug, Default)]
struct Found {
    pods: Vec<Arc<Pod>>,
    /// New pods with a name that another file already uses (N-22).
    duplicates: Vec<Arc<Pod>>,
}

impl ManifestDirectory {
    fn new(directory: &Path, node: &str) -> ManifestDirectory {
        ManifestDirectory { directory: directory.into(), node: node.into(), files: BTreeMap::new() }
    }

    fn read_all(&mut self, now: Timestamp) -> Found {
        let mut before = std::mem::take(&mut self.files);
        let mut found = Found::default();
        let mut names = BTreeSet::new();
        for file in files(&self.directory) {
            let Some(bytes) = content(&file) else { continue };
            let hash = sha256(&bytes);
            let old = before.remove(&file);
            let unchanged = old.as_ref().is_some_and(|old| old.content == hash);
            let current = match old {
                Some(old) if unchanged => old,
                old => {
                    let last_good = old.and_then(|old| old.pod);
                    ManifestFile { content: hash, pod: self.read(&bytes, &file, now).or(last_good) }
                }
            };
            if let Some(pod) = &current.pod {
                let name = (pod.metadata.namespace.clone(), pod.metadata.name.clone());
                match names.insert(name) {
                    true => found.pods.push(pod.clone()),
                    false if !unchanged => found.duplicates.push(pod.clone()),
                    false => {}
                }
            }
            self.files.insert(file, current);
        }
        found
    }

    fn read(&self, bytes: &[u8], file: &Path, now: Timestamp) -> Option<Arc<Pod>> {
        match manifest::read(bytes, file, &self.node, now) {
            Ok(pod) => Some(Arc::new(pod)),
            Err(why) => {
                tracing::error!(file = %file.display(), why, "the manifest is not valid");
                None
            }
        }
    }
}

/// Files in the order of their names, without hidden ones. Empty if there is no directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let visible = entries.filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'));
    let mut files: Vec<PathBuf> = visible.map(|entry| entry.path()).collect();
    files.sort();
    files
}

/// None if it is not a file, is too large, or was just removed.
fn content(file: &Path) -> Option<Vec<u8>> {
    let about = std::fs::metadata(file).ok()?;
    if !about.is_file() || about.len() > FILE_MAX {
        return None;
    }
    std::fs::read(file).ok()
}

#[allow(unsafe_code, reason = "`Raw` owns its descriptor and keeps it open")]
fn registered(inotify: Inotify) -> Option<AsyncFd<Raw>> {
    // SAFETY: `Raw` always returns the descriptor of the `Inotify` that it owns.
    unsafe { AsyncFd::register(Raw(inotify)) }.ok()
}

/// An inotify watch on the directory.
struct DirectoryWatch(AsyncFd<Raw>);

struct Raw(Inotify);

impl AsRawFd for Raw {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl DirectoryWatch {
    fn open(directory: &Path) -> Option<DirectoryWatch> {
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
        registered(inotify).map(DirectoryWatch)
    }

    /// Waits for changes and discards the events. Returns false if the directory itself is gone.
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
    fn n_23_hidden_files_and_directories_are_ignored() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(".hidden.yaml"), manifest("hidden", "i")).unwrap();
        fs::write(dir.path().join("b.yaml"), manifest("b", "i")).unwrap();
        fs::write(dir.path().join("a.json"), manifest("a", "i")).unwrap();
        fs::create_dir(dir.path().join("more")).unwrap();
        let found = ManifestDirectory::new(dir.path(), "n").read_all(clock::now());
        assert_eq!(names(&found), ["a-n", "b-n"]);
        assert!(
            ManifestDirectory::new(&dir.path().join("none"), "n")
                .read_all(clock::now())
                .pods
                .is_empty()
        );
    }

    #[test]
    fn n_22_a_second_file_with_the_same_pod_name_is_ignored_and_reported_once() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.yaml"), manifest("web", "first")).unwrap();
        fs::write(dir.path().join("b.yaml"), manifest("web", "second")).unwrap();
        let mut manifests = ManifestDirectory::new(dir.path(), "n");
        let found = manifests.read_all(clock::now());
        assert_eq!(
            found.pods[0].spec.as_ref().unwrap().containers[0].image.as_deref(),
            Some("first")
        );
        assert_eq!((found.pods.len(), found.duplicates.len()), (1, 1));
        assert_eq!(manifests.read_all(clock::now()).duplicates.len(), 0);
    }

    #[test]
    fn an_unchanged_file_is_the_same_pod_and_a_broken_rewrite_does_not_stop_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.yaml");
        fs::write(&file, manifest("web", "one")).unwrap();
        let mut manifests = ManifestDirectory::new(dir.path(), "n");
        let first = manifests.read_all("2026-01-01T00:00:00Z".parse().unwrap());
        let again = manifests.read_all("2026-01-01T00:00:20Z".parse().unwrap());
        assert_eq!(first.pods, again.pods);
        fs::write(&file, "apiVersion: v1\nkind: P").unwrap();
        assert_eq!(manifests.read_all(clock::now()).pods, first.pods);
        fs::write(&file, manifest("web", "two")).unwrap();
        assert_ne!(
            manifests.read_all(clock::now()).pods[0].metadata.uid,
            first.pods[0].metadata.uid
        );
        fs::remove_file(&file).unwrap();
        assert!(manifests.read_all(clock::now()).pods.is_empty());
    }

    #[tokio::test]
    async fn n_23_a_new_manifest_is_noticed_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut pods = follow(dir.path(), "n", Recorder::collecting().0);
        let count = |pods: &StaticPods| pods.as_ref().map(|pods| pods.len());
        pods.wait_for(|pods| count(pods) == Some(0)).await.unwrap();
        fs::write(dir.path().join("a.yaml"), manifest("web", "i")).unwrap();
        // Well before the next regular read after 20 s.
        let noticed = pods.wait_for(|pods| count(pods) == Some(1));
        tokio::time::timeout(Duration::from_secs(10), noticed).await.unwrap().unwrap();
        fs::remove_file(dir.path().join("a.yaml")).unwrap();
        let noticed = pods.wait_for(|pods| count(pods) == Some(0));
        tokio::time::timeout(Duration::from_secs(10), noticed).await.unwrap().unwrap();
    }
}
