//! The schema of `drainparticipants.landfall.dev`: who has to acknowledge that a pod gets no new connections. The Rust types
//! are in `traffic::drain`.

use super::fields::{META, PREFIX, micro_time, object, own, reference, string};
use serde_json::{Value, json};

/// The types by name; the first one has a list kind.
pub(crate) fn types() -> Vec<(String, Value)> {
    vec![
        (format!("{PREFIX}.DrainParticipant"), participant()),
        (format!("{PREFIX}.DrainParticipantSpec"), spec()),
        (format!("{PREFIX}.DrainParticipantStatus"), status()),
    ]
}

fn participant() -> Value {
    object(
        "DrainParticipant sends connections to pods: the Service proxy of a node, or a load balancer. Pods with \
         acknowledged drain are not stopped before all participants have acknowledged that they send them no new \
         connections.",
        &[],
        &[
            ("apiVersion", string(), "The API version of this object."),
            ("kind", string(), "Always DrainParticipant."),
            ("metadata", reference(META, "ObjectMeta"), "Standard object metadata."),
            ("spec", own("DrainParticipantSpec"), "What the participant takes part in."),
            ("status", own("DrainParticipantStatus"), "What the participant has committed."),
        ],
    )
}

fn spec() -> Value {
    object(
        "DrainParticipantSpec says in which drains a participant takes part.",
        &[],
        &[(
            "services",
            json!({"type": "array", "items": string()}),
            "The Services, as namespace/name, to whose pods it sends connections. Empty: all Services.",
        )],
    )
}

fn status() -> Value {
    object(
        "DrainParticipantStatus says what a participant has committed, and what it waits for.",
        &[],
        &[
            (
                "committed",
                string(),
                "The participant uses the EndpointSlices with all changes up to this resourceVersion.",
            ),
            (
                "awaits",
                string(),
                "Of a node: it holds pods until all participants have committed this resourceVersion.",
            ),
            ("time", micro_time(), "When the status was written."),
        ],
    )
}
