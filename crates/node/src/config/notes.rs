//! What the node must find again after a crash, kept with each container as annotations.
//!
//! The names are upstream's where upstream has one, so that tools that look at a CRI runtime find
//! what they know.

use super::PodContainer;
use k8s_openapi::api::core::v1::Pod;
use lifecycle::Kind;
use std::collections::BTreeMap;
use std::path::PathBuf;

pub(crate) const POD_NAME: &str = "io.kubernetes.pod.name";
pub(crate) const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
pub(crate) const POD_UID: &str = "io.kubernetes.pod.uid";
pub(crate) const CONTAINER_NAME: &str = "io.kubernetes.container.name";
const HASH: &str = "io.kubernetes.container.hash";
const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
const MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
const MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
const GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";
const KIND: &str = "landfall.container.kind";
const MESSAGE_FILE: &str = "landfall.container.terminationMessageFile";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Notes {
    /// Of name and image, nothing else (N-21): when it differs, the container is to be restarted.
    pub(crate) hash: String,
    pub(crate) kind: Kind,
    pub(crate) restart_count: u32,
    /// In the container.
    pub(crate) message_path: String,
    /// `File` or `FallbackToLogsOnError`
    pub(crate) message_policy: String,
    /// On the node; None when the container has no such path.
    pub(crate) message_file: Option<PathBuf>,
    /// The pod's termination grace period when the container was made.
    pub(crate) grace_seconds: Option<i64>,
}

impl Notes {
    pub(crate) fn annotations(&self) -> BTreeMap<String, String> {
        let mut notes = BTreeMap::from([
            (HASH.to_owned(), self.hash.clone()),
            (KIND.to_owned(), kind_name(self.kind).to_owned()),
            (RESTART_COUNT.to_owned(), self.restart_count.to_string()),
            (MESSAGE_PATH.to_owned(), self.message_path.clone()),
            (MESSAGE_POLICY.to_owned(), self.message_policy.clone()),
        ]);
        if let Some(file) = &self.message_file {
            notes.insert(MESSAGE_FILE.to_owned(), file.display().to_string());
        }
        if let Some(seconds) = self.grace_seconds {
            notes.insert(GRACE.to_owned(), seconds.to_string());
        }
        notes
    }

    /// For when the container itself is forgotten.
    pub(crate) fn remove_files(&self) {
        if let Some(file) = &self.message_file {
            // It may be gone already, with the whole pod.
            let _ = std::fs::remove_file(file);
        }
    }

    /// None when the container was not made by us.
    pub(crate) fn read(annotations: &BTreeMap<String, String>) -> Option<Notes> {
        let text = |name: &str| annotations.get(name).cloned();
        Some(Notes {
            hash: text(HASH)?,
            kind: kind_named(annotations.get(KIND)?)?,
            restart_count: annotations.get(RESTART_COUNT)?.parse().ok()?,
            message_path: text(MESSAGE_PATH).unwrap_or_default(),
            message_policy: text(MESSAGE_POLICY).unwrap_or_default(),
            message_file: text(MESSAGE_FILE).map(PathBuf::from),
            grace_seconds: annotations.get(GRACE).and_then(|seconds| seconds.parse().ok()),
        })
    }
}

fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Init => "init",
        Kind::Sidecar => "sidecar",
        Kind::Regular => "regular",
        Kind::Ephemeral => "ephemeral",
    }
}

fn kind_named(name: &str) -> Option<Kind> {
    let all = [Kind::Init, Kind::Sidecar, Kind::Regular, Kind::Ephemeral];
    all.into_iter().find(|kind| kind_name(*kind) == name)
}

/// Changes when the container must be made anew: its name and image only (N-21).
pub(crate) fn hash(container: &PodContainer<'_>) -> String {
    lifecycle::observed::fingerprint(&container.name, container.image.as_deref())
}

/// What a sandbox is labelled with, and a container, with its name, as well.
pub(crate) fn labels(pod: &Pod, container: Option<&str>) -> BTreeMap<String, String> {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let mut labels = BTreeMap::from([
        (POD_NAME.to_owned(), text(&pod.metadata.name)),
        (POD_NAMESPACE.to_owned(), text(&pod.metadata.namespace)),
        (POD_UID.to_owned(), text(&pod.metadata.uid)),
    ]);
    if let Some(name) = container {
        labels.insert(CONTAINER_NAME.to_owned(), name.to_owned());
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_read_as_they_were_written() {
        let notes = Notes {
            hash: "abc".into(),
            kind: Kind::Sidecar,
            restart_count: 7,
            message_path: "/dev/termination-log".into(),
            message_policy: "File".into(),
            message_file: Some("/x/y".into()),
            grace_seconds: Some(30),
        };
        assert_eq!(Notes::read(&notes.annotations()), Some(notes));
        assert_eq!(Notes::read(&BTreeMap::new()), None);
    }
}
