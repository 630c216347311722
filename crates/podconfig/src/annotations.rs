//! What the agent must know about a container after a restart, kept in the container's annotations.
//!
//! Labels and annotations have upstream's names where upstream has one, so that tools for CRI
//! runtimes find them.

use crate::PodContainer;
use k8s_openapi::api::core::v1::Pod;
use lifecycle::Kind;
use std::collections::BTreeMap;
use std::path::PathBuf;

const POD_NAME: &str = "io.kubernetes.pod.name";
const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
const POD_UID: &str = "io.kubernetes.pod.uid";
const CONTAINER_NAME: &str = "io.kubernetes.container.name";
const HASH: &str = "io.kubernetes.container.hash";
const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
const MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
const MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
const GRACE: &str = "io.kubernetes.pod.terminationGracePeriod";
const KIND: &str = "landfall.container.kind";
const MESSAGE_FILE: &str = "landfall.container.terminationMessageFile";

/// What the agent keeps with a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerAnnotations {
    /// Hash of name and image only (N-21). If it differs from the spec, the container must be replaced.
    pub hash: String,
    pub kind: Kind,
    pub restart_count: u32,
    /// Path of the termination message in the container.
    pub message_path: String,
    /// `File` or `FallbackToLogsOnError`
    pub message_policy: String,
    /// Path of the termination message on the node; None if the container has none.
    pub message_file: Option<PathBuf>,
    /// The pod's termination grace period when the container was created.
    pub grace_seconds: Option<i64>,
}

impl ContainerAnnotations {
    pub fn to_map(&self) -> BTreeMap<String, String> {
        let mut map = BTreeMap::from([
            (HASH.to_owned(), self.hash.clone()),
            (KIND.to_owned(), kind_name(self.kind).to_owned()),
            (RESTART_COUNT.to_owned(), self.restart_count.to_string()),
            (MESSAGE_PATH.to_owned(), self.message_path.clone()),
            (MESSAGE_POLICY.to_owned(), self.message_policy.clone()),
        ]);
        if let Some(file) = &self.message_file {
            map.insert(MESSAGE_FILE.to_owned(), file.display().to_string());
        }
        if let Some(seconds) = self.grace_seconds {
            map.insert(GRACE.to_owned(), seconds.to_string());
        }
        map
    }

    /// Removes the termination message, together with the container.
    pub fn remove_files(&self) {
        if let Some(file) = &self.message_file {
            // Fails if the pod's directory is already removed.
            let _ = std::fs::remove_file(file);
        }
    }

    /// None if this is not a container of ours.
    pub fn read(annotations: &BTreeMap<String, String>) -> Option<ContainerAnnotations> {
        let text = |name: &str| annotations.get(name).cloned();
        Some(ContainerAnnotations {
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

/// Hash of what replaces a container when it changes: its name and image (N-21).
pub(crate) fn hash(container: &PodContainer<'_>) -> String {
    lifecycle::observed::fingerprint(&container.name, container.image.as_deref())
}

/// The labels of a sandbox, or of a container if `container` is its name.
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
    fn read_returns_what_to_map_wrote() {
        let kept = ContainerAnnotations {
            hash: "abc".into(),
            kind: Kind::Sidecar,
            restart_count: 7,
            message_path: "/dev/termination-log".into(),
            message_policy: "File".into(),
            message_file: Some("/x/y".into()),
            grace_seconds: Some(30),
        };
        assert_eq!(ContainerAnnotations::read(&kept.to_map()), Some(kept));
        assert_eq!(ContainerAnnotations::read(&BTreeMap::new()), None);
    }
}
