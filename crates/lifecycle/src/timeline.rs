//! The record of a pod's ending: who asked, every step with its time and its actor, how it came out.
//!
//!     server, node, proxy, controllers ──steps──▶ Termination::append ──▶ outcome, summary
//!
//! Steps are facts and are only ever added; everything else in a [`Termination`] is derived from
//! them (`outcome`). How it is drawn for a terminal is in `draw`. Not here: keeping it (`server`),
//! writing it down as it happens (`node`).

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

/// The actor that takes requests.
pub const SERVER: &str = "server";
/// Who wanted a removal of which no request is written, or none so far.
pub const UNKNOWN: &str = "an unknown user";

/// Names of objects have at most this many characters.
const NAME_MAX: usize = 253;
/// As much of the uid as keeps two pods of one name apart.
const UID_PART: usize = 8;

/// One ending of one pod: the object `terminations.landfall.dev`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Termination {
    pub metadata: ObjectMeta,
    pub pod: Subject,
    /// None until whoever was asked has said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Request>,
    #[serde(default)]
    pub outcome: Outcome,
    /// The node has said that no process of the pod is left.
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
    /// Steps for which there was no room.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropped: i64,
}

/// The pod that ended.
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

/// Who wanted it, and how long it was given. A later, shorter request changes grace and deadline.
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

/// Something that happened, told by whoever did it or saw it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    #[serde(with = "time")]
    pub at: Timestamp,
    /// Nanoseconds of the actor's machine's monotonic clock: differences between two steps of one
    /// machine are exact even if somebody sets its clock.
    #[serde(default)]
    pub monotonic: i64,
    /// `server`, `node/NAME`, `proxy/NAME`, `endpointslice-controller`.
    pub actor: String,
    /// Which run of the actor; with `sequence` it says which step this is, so that one that is told
    /// twice is written once.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub incarnation: String,
    #[serde(default)]
    pub sequence: i64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub container: String,
    #[serde(flatten)]
    pub what: What,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// What happened. The words are part of the API.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all_fields = "camelCase")]
pub enum What {
    /// The pod is to end: a delete, an eviction, or the node's own decision.
    Requested(Request),
    /// A later request left it less time.
    Shortened(Request),
    /// The object was removed at somebody's wish before its node had said that the pod is gone
    /// (T-EDGE-13).
    UnsafeByRequest {
        by: String,
    },
    /// The node begins.
    Seen {
        /// What the containers are given; hooks included.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        grace_seconds: Option<i64>,
        /// `Deleted`, `Gone`, `Killed`, `Finished`, `Completed`.
        reason: String,
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
        /// The beginning of what it said, at most [`OUTPUT_MAX`] bytes.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        output: String,
    },
    /// The grace was over before the hook was (T-EDGE-8).
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
        /// 128 + signal for a process that a signal ended.
        exit_code: i32,
        /// `SIGKILL`, if a signal ended it.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        signal: String,
        #[serde(default, skip_serializing_if = "is_false")]
        oom: bool,
    },
    /// A container is gone, and nobody saw how it ended.
    Lost,
    /// No process of the pod is left (T-NODE-25).
    SandboxStopped,
    NetworkGone,
    VolumesGone,
    CgroupGone,
    /// The last status is in the API.
    StatusWritten,
    /// The object is gone from the API.
    Removed,
    /// A Service's endpoint for the pod was turned.
    EndpointFlipped {
        slice: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        generation: Option<i64>,
    },
    /// A node's packets no longer find the pod.
    RulesCommitted {
        #[serde(default, skip_serializing_if = "String::is_empty")]
        slice: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        generation: Option<i64>,
    },
    /// The agent was gone for a while and goes on from what it finds.
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

/// When something happened, by both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    pub at: Timestamp,
    pub monotonic: i64,
}

impl Stamp {
    /// The same clocks at another time of day: for what is learnt afterwards.
    pub fn when(self, at: Timestamp) -> Stamp {
        let earlier = self.at.duration_since(at).as_nanos();
        let earlier = i64::try_from(earlier).unwrap_or(0);
        Stamp { at, monotonic: self.monotonic.saturating_sub(earlier) }
    }
}

/// The record of a pod is named after it, and after its uid: the name may be used again.
pub fn name(pod: &str, uid: &str) -> String {
    let uid: String = uid.chars().filter(char::is_ascii_alphanumeric).take(UID_PART).collect();
    let uid = uid.to_ascii_lowercase();
    let room = NAME_MAX - UID_PART - 1;
    // Names of pods are ASCII; what is cut off must not leave a dot or dash before ours.
    let pod: String = pod.chars().take(room).collect();
    format!("{}.{uid}", pod.trim_end_matches(['.', '-']))
}

typed::codec!(Termination);

impl k8s_openapi::Resource for Termination {
    const API_VERSION: &'static str = API_VERSION;
    const GROUP: &'static str = GROUP;
    const KIND: &'static str = "Termination";
    const VERSION: &'static str = "v1";
    const URL_PATH_SEGMENT: &'static str = PLURAL;
    type Scope = k8s_openapi::NamespaceResourceScope;
}

impl k8s_openapi::Metadata for Termination {
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
