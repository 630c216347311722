//! `drainparticipants.landfall.dev`: one object per proxy or load balancer that sends connections to pods.
//!
//! A node that holds pods writes into its own object which version of the EndpointSlices it awaits. Every participant
//! that has committed that version says so in its own object. Nobody writes into the object of another.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use serde::{Deserialize, Serialize};

const GROUP: &str = "landfall.dev";
const API_VERSION: &str = "landfall.dev/v1";
/// The objects of nodes are named `node.NAME`; other participants choose other names.
const NODE_PREFIX: &str = "node.";

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DrainParticipant {
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub spec: Spec,
    #[serde(default)]
    pub status: Status,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// The Services, as `namespace/name`, to whose pods it sends connections. Empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// All changes of EndpointSlices up to this resource version are in force.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub committed: String,
    /// Pods of this node wait until all participants have committed this resource version.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub awaits: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<MicroTime>,
}

impl DrainParticipant {
    pub(crate) fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// None: it is not a node's.
    pub(crate) fn node(&self) -> Option<&str> {
        self.name().strip_prefix(NODE_PREFIX)
    }

    /// Zero if it has never acknowledged anything.
    pub(crate) fn committed(&self) -> u64 {
        self.status.committed.parse().unwrap_or_default()
    }

    pub(crate) fn awaits(&self) -> u64 {
        self.status.awaits.parse().unwrap_or_default()
    }

    /// Whether it sends connections to pods of this Service (`namespace/name`).
    pub(crate) fn serves(&self, service: &str) -> bool {
        self.spec.services.is_empty() || self.spec.services.iter().any(|it| it == service)
    }
}

/// The name of a node's object.
pub(crate) fn object_name(node: &str) -> String {
    format!("{NODE_PREFIX}{node}")
}

typed::codec!(DrainParticipant);

impl k8s_openapi::Resource for DrainParticipant {
    const API_VERSION: &'static str = API_VERSION;
    const GROUP: &'static str = GROUP;
    const KIND: &'static str = "DrainParticipant";
    const VERSION: &'static str = "v1";
    const URL_PATH_SEGMENT: &'static str = "drainparticipants";
    type Scope = k8s_openapi::ClusterResourceScope;
}

impl k8s_openapi::Metadata for DrainParticipant {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
