//! The fields of a pod that the rules are about, read from a line of the watch.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::IpAddr;

pub(super) struct WatchLine {
    pub(super) deleted: bool,
    pub(super) object: Object,
}

#[derive(Deserialize)]
struct Raw {
    #[serde(rename = "type")]
    kind: String,
    object: Object,
}

#[derive(Deserialize, Clone, Default)]
#[serde(default)]
pub(super) struct Object {
    metadata: Metadata,
    spec: Spec,
    status: Status,
}

#[derive(Deserialize, Clone, Default)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    namespace: String,
    name: String,
    uid: String,
    resource_version: String,
    deletion_timestamp: Option<String>,
    deletion_grace_period_seconds: Option<i64>,
    finalizers: Vec<String>,
    annotations: BTreeMap<String, String>,
}

#[derive(Deserialize, Clone, Default)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    node_name: String,
    restart_policy: String,
    termination_grace_period_seconds: i64,
    containers: Vec<Container>,
    init_containers: Vec<Container>,
}

#[derive(Deserialize, Clone, Default)]
#[serde(default, rename_all = "camelCase")]
struct Container {
    name: String,
    restart_policy: Option<String>,
    lifecycle: Lifecycle,
}

#[derive(Deserialize, Clone, Default)]
#[serde(default, rename_all = "camelCase")]
struct Lifecycle {
    pre_stop: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize, Clone, Default)]
#[serde(default)]
struct Status {
    phase: String,
    #[serde(rename = "podIP")]
    pod_ip: String,
}

impl WatchLine {
    /// None: a bookmark or an error.
    pub(super) fn read(line: &[u8]) -> Option<WatchLine> {
        let raw: Raw = serde_json::from_slice(line).ok()?;
        let deleted = match raw.kind.as_str() {
            "DELETED" => true,
            "ADDED" | "MODIFIED" => false,
            _ => return None,
        };
        Some(WatchLine { deleted, object: raw.object })
    }
}

impl Object {
    pub(super) fn uid(&self) -> &str {
        &self.metadata.uid
    }

    /// `namespace/name`
    pub(super) fn name(&self) -> String {
        format!("{}/{}", self.metadata.namespace, self.metadata.name)
    }

    pub(super) fn version(&self) -> u64 {
        self.metadata.resource_version.parse().unwrap_or_default()
    }

    /// None: it is not being deleted.
    pub(super) fn grace(&self) -> Option<i64> {
        self.metadata.deletion_timestamp.as_ref()?;
        Some(self.metadata.deletion_grace_period_seconds.unwrap_or_default())
    }

    /// The grace period of the spec.
    pub(super) fn own_grace(&self) -> i64 {
        self.spec.termination_grace_period_seconds
    }

    pub(super) fn finalizers(&self) -> usize {
        self.metadata.finalizers.len()
    }

    pub(super) fn node(&self) -> &str {
        &self.spec.node_name
    }

    /// It waits until nothing sends it new connections.
    pub(super) fn has_acknowledged_drain(&self) -> bool {
        self.metadata.annotations.get("landfall.dev/drain").is_some_and(|it| it == "acknowledged")
    }

    pub(super) fn address(&self) -> Option<IpAddr> {
        self.status.pod_ip.parse().ok()
    }

    pub(super) fn phase(&self) -> &str {
        &self.status.phase
    }

    pub(super) fn is_terminal(&self) -> bool {
        matches!(self.phase(), "Succeeded" | "Failed")
    }

    pub(super) fn may_complete(&self) -> bool {
        self.spec.restart_policy != "Always"
    }

    pub(super) fn has_hook(&self, container: &str) -> bool {
        let mut all = self.spec.containers.iter().chain(&self.spec.init_containers);
        all.any(|known| known.name == container && known.lifecycle.pre_stop.is_some())
    }

    /// Its index among the init containers, if it is a sidecar.
    pub(super) fn sidecar(&self, container: &str) -> Option<usize> {
        let found = self.spec.init_containers.iter().position(|known| known.name == container)?;
        let always = self.spec.init_containers[found].restart_policy.as_deref() == Some("Always");
        always.then_some(found)
    }

    /// Regular containers do, and sidecars that are declared later (T-NODE-35).
    pub(super) fn ends_before_sidecar(&self, container: &str, place: usize) -> bool {
        let regular = self.spec.containers.iter().any(|known| known.name == container);
        regular || self.sidecar(container).is_some_and(|other| other > place)
    }
}

/// A line of the watch in short, for the trace.
pub(crate) fn in_short(line: &[u8]) -> String {
    let Some(WatchLine { deleted, object }) = WatchLine::read(line) else {
        return "API: no pod".to_owned();
    };
    let what = if deleted { "removed" } else { object.phase() };
    let node = match object.node() {
        "" => String::new(),
        node => format!(" on {node}"),
    };
    let ends = object
        .grace()
        .map(|grace| format!(", terminating with grace {grace} s"))
        .unwrap_or_default();
    let (name, uid, version) = (object.name(), object.uid(), object.version());
    format!("API: {name} ({uid}){node} is {what}{ends} [{version}]")
}
