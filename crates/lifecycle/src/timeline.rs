//! The record of a pod's termination: who requested it, every step with its time and actor, and the outcome.
//!
//!     server, node, proxy, controllers ──steps──▶ TerminationRecord::append ──▶ outcome, summary
//!
//! Steps are facts and are only ever added; everything else in a [`TerminationRecord`] is derived from
//! them (`outcome`). `draw` shows it in a terminal. Not here: storing it (`server`), recording steps (`node`).

mod append;
mod draw;
mod outcome;
mod time;

#[cfg(test)]
mod tests;

pub use append::{OUTPUT_MAX, STEPS_MAX, clip};
pub use draw::{draw, draw_step, span};
pub use outcome::Outcome;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

pub const GROUP: &str = "landfall.dev";
pub const API_VERSION: &str = "landfall.dev/v1";
pub const PLURAL: &str = "terminations";
/// The subresource that steps are posted to, and the kind of what is posted.
pub const STEPS: &str = "steps";
pub const STEPS_KIND: &str = "TerminationSteps";

/// The actor that receives requests.
pub const SERVER: &str = "server";
/// The requester of a removal without a recorded request.
pub const UNKNOWN: &str = "an unknown user";

/// Names of objects have at most this many characters.
const NAME_MAX: usize = 253;
/// Enough characters of the UID to distinguish two pods of one name.
const UID_PART: usize = 8;

/// One termination of one pod: the object `terminations.landfall.dev`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TerminationRecord {
    pub metadata: ObjectMeta,
    pub pod: Subject,
    /// None until the step `Requested` has arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Request>,
    #[serde(default)]
    pub outcome: Outcome,
    /// The node has reported that no process of the pod is left.
    #[serde(default)]
    pub confirmed: bool,
    /// One sentence: what happened, and why.
    #[serde(default)]
    pub summary: String,
    #[serde(default, with = "time::optional", skip_serializing_if = "Option::is_none")]
    pub started: Option<Timestamp>,
    #[serde(default, with = "time::optional", skip_serializing_if = "Option::is_none")]
    pub ended: Option<Timestamp>,
    /// By time; at most [`STEPS_MAX`].
    #[serde(default)]
    pub steps: Vec<Step>,
    /// Number of steps that did not fit.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped: i64,
}

/// The pod of a record.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Subject {
    pub name: String,
    pub uid: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// Its controller: `ReplicaSet/web`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub owner: String,
}

/// Who requested the termination, and with which grace period. A later, shorter request changes grace period
/// and deadline.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    pub by: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub agent: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub through: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_asked_seconds: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<i64>,
    #[serde(default, with = "time::optional", skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
}

/// Something that happened, recorded by the component that did or observed it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    #[serde(with = "time")]
    pub at: Timestamp,
    /// Nanoseconds of the actor's machine's monotonic clock: differences between two steps of one
    /// machine are exact even if its clock is set in between.
    #[serde(default)]
    pub monotonic: i64,
    /// `server`, `node/NAME`, `proxy/NAME`, `endpointslice-controller`.
    pub actor: String,
    /// Which run of the actor. Together with `sequence` it identifies the step, so that a step that is sent
    /// twice is stored once.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub incarnation: String,
    #[serde(default)]
    pub sequence: i64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub container: String,
    #[serde(flatten)]
    pub what: StepKind,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// What happened. These names are part of the API.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all_fields = "camelCase")]
pub enum StepKind {
    /// Termination was requested: by a delete, an eviction, or the node itself.
    Requested(Request),
    /// A later request shortened the grace period.
    Shortened(Request),
    /// A user removed the object before the node had reported that the pod is gone (T-EDGE-13).
    UnsafeByRequest {
        by: String,
    },
    /// The node begins the termination.
    Seen {
        /// Grace period of the containers, including hooks.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        grace_seconds: Option<i64>,
        /// `Deleted`, `Gone`, `Killed`, `Finished`, `Completed`.
        reason: String,
    },
    /// Hook and stop signal wait until nothing sends new connections to the pod.
    Held,
    /// A proxy or load balancer sends no new connections to the pod any more.
    Acknowledged {
        by: String,
    },
    /// All have acknowledged; hook and stop signal follow.
    Drained,
    /// Hook and stop signal follow although some have not acknowledged.
    DrainTimedOut {
        missing: Vec<String>,
    },
    HookStarted {
        /// `exec`, `httpGet`, `sleep`, `tcpSocket`.
        hook: String,
    },
    HookEnded {
        succeeded: bool,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exit_code: Option<i32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        http_status: Option<i32>,
        /// The beginning of its output, at most [`OUTPUT_MAX`] bytes.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        output: String,
    },
    /// The grace period ended before the hook did (T-EDGE-8).
    HookOverran,
    Signal {
        /// `SIGTERM`
        signal: String,
        /// `process 1`, `all processes`.
        target: String,
        /// Why now: `grace period begins`, `deadline`.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        reason: String,
    },
    Exited {
        /// 128 + signal if a signal ended the process.
        exit_code: i32,
        /// `SIGKILL`, if a signal ended it.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        signal: String,
        #[serde(default, skip_serializing_if = "is_false")]
        oom: bool,
    },
    /// A container is gone, and its exit was not observed.
    Lost,
    /// No process of the pod is left (T-NODE-25).
    SandboxStopped,
    NetworkGone,
    VolumesGone,
    CgroupGone,
    /// The API has the terminal status.
    StatusWritten,
    /// The object is gone from the API.
    Removed,
    /// The pod's endpoint in an EndpointSlice changed to terminating.
    EndpointFlipped {
        slice: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        generation: Option<i64>,
    },
    /// A node no longer sends packets to the pod.
    RulesCommitted {
        #[serde(default, skip_serializing_if = "String::is_empty")]
        slice: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        generation: Option<i64>,
    },
    /// The agent was restarted and continues from what it finds.
    AgentRestarted,
}

/// The body of `POST …/terminations/NAME/steps`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Steps {
    pub api_version: String,
    pub kind: String,
    pub pod: Subject,
    pub steps: Vec<Step>,
}

impl Steps {
    pub fn new(pod: Subject, steps: Vec<Step>) -> Steps {
        Steps { api_version: API_VERSION.into(), kind: STEPS_KIND.into(), pod, steps }
    }
}

/// A time on both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    pub at: Timestamp,
    pub monotonic: i64,
}

impl Stamp {
    /// The same clocks at another wall time: for what is observed later.
    pub fn when(self, at: Timestamp) -> Stamp {
        let earlier = self.at.duration_since(at).as_nanos();
        let earlier = i64::try_from(earlier).unwrap_or(0);
        Stamp { at, monotonic: self.monotonic.saturating_sub(earlier) }
    }
}

/// The name of a pod's record: the pod's name, which may be used again, and the beginning of its UID.
pub fn name(pod: &str, uid: &str) -> String {
    let uid: String = uid.chars().filter(char::is_ascii_alphanumeric).take(UID_PART).collect();
    let uid = uid.to_ascii_lowercase();
    let room = NAME_MAX - UID_PART - 1;
    // Names of pods are ASCII. After shortening, no dot or dash may stand before our dot.
    let pod: String = pod.chars().take(room).collect();
    format!("{}.{uid}", pod.trim_end_matches(['.', '-']))
}

typed::codec!(TerminationRecord);

impl k8s_openapi::Resource for TerminationRecord {
    const API_VERSION: &'static str = API_VERSION;
    const GROUP: &'static str = GROUP;
    const KIND: &'static str = "Termination";
    const VERSION: &'static str = "v1";
    const URL_PATH_SEGMENT: &'static str = PLURAL;
    type Scope = k8s_openapi::NamespaceResourceScope;
}

impl k8s_openapi::Metadata for TerminationRecord {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}

fn is_false(flag: &bool) -> bool {
    !flag
}
