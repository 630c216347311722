//! The schema of `terminations.landfall.dev`, the termination records. The Rust types are in
//! `lifecycle::timeline`, which uses this crate; a test there compares the two.

use super::fields::{META, PREFIX, int32, integer, micro_time, object, own, reference, string};
use serde_json::{Value, json};

/// The types by name; the first one has a list kind.
pub(crate) fn types() -> Vec<(String, Value)> {
    vec![
        (format!("{PREFIX}.Termination"), termination()),
        (format!("{PREFIX}.TerminationPod"), pod()),
        (format!("{PREFIX}.TerminationRequest"), request()),
        (format!("{PREFIX}.TerminationStep"), step()),
        (format!("{PREFIX}.TerminationSteps"), steps()),
    ]
}

fn termination() -> Value {
    object(
        "Termination is the record of how one pod terminated: who requested it, every step with its \
         time and actor, and the outcome. The components that terminate pods write it, and it is \
         kept after the pod is deleted.",
        &["pod", "outcome", "confirmed", "steps"],
        &[
            ("apiVersion", string(), "The API version of this object."),
            ("kind", string(), "Always Termination."),
            ("metadata", reference(META, "ObjectMeta"), "Standard object metadata."),
            ("pod", own("TerminationPod"), "The terminated pod."),
            (
                "request",
                own("TerminationRequest"),
                "Who requested the termination, and the grace period. A later request with a shorter grace period changes graceSeconds and deadline.",
            ),
            (
                "outcome",
                string(),
                "Ending: still in progress. Clean: all containers exited within the grace period. Killed: at least one container had to be killed. Completed: the containers exited by themselves. Forced: the object was removed before the node confirmed that no process of the pod is left. Lost: how a container ended is unknown.",
            ),
            (
                "confirmed",
                json!({"type": "boolean"}),
                "Whether the pod's node has confirmed that no process of the pod is left.",
            ),
            ("summary", string(), "What happened and why, in one sentence."),
            ("started", micro_time(), "When the termination was requested or began."),
            (
                "ended",
                micro_time(),
                "When the object was removed and no process was left; for a pod whose object remains, when its final status was written.",
            ),
            (
                "steps",
                json!({"type": "array", "items": own("TerminationStep")}),
                "What happened, ordered by time.",
            ),
            (
                "dropped",
                integer(),
                "Number of steps that were dropped because the record was full.",
            ),
        ],
    )
}

fn pod() -> Value {
    object(
        "TerminationPod identifies the pod.",
        &["name", "uid"],
        &[
            ("name", string(), "The pod's name."),
            ("uid", string(), "The pod's uid; another pod may have the same name."),
            ("node", string(), "The node that the pod was bound to."),
            ("owner", string(), "The pod's controller, as Kind/name."),
        ],
    )
}

/// The fields of a request, which the steps Requested and Shortened have as well.
fn request_fields() -> Vec<(&'static str, Value, &'static str)> {
    vec![
        (
            "by",
            string(),
            "The user who requested it; for a decision of the node, the node's own user. Of Acknowledged: the proxy.",
        ),
        ("agent", string(), "The User-Agent of the request."),
        (
            "through",
            string(),
            "The mechanism: the pod's controller (ReplicaSet/web), eviction, preemption, node pressure, node shutdown, active deadline, completion. Empty for a plain delete.",
        ),
        ("graceAskedSeconds", integer(), "The grace period in the request."),
        ("graceSeconds", integer(), "The grace period that the pod got."),
        ("deadline", micro_time(), "When the grace period expires."),
    ]
}

fn request() -> Value {
    object("TerminationRequest says who requested the termination.", &["by"], &request_fields())
}

fn step() -> Value {
    let mut fields = vec![
        ("at", micro_time(), "When it happened, by the actor's clock."),
        (
            "monotonic",
            integer(),
            "The same time in nanoseconds of the machine's monotonic clock; differences within one machine are exact even if its wall clock was set.",
        ),
        (
            "actor",
            string(),
            "Who did or observed it: server, node/NAME, proxy/NAME, or a controller.",
        ),
        ("incarnation", string(), "The run of the actor that reported it."),
        (
            "sequence",
            integer(),
            "The number of the step in that run; actor, incarnation and sequence together are unique.",
        ),
        ("container", string(), "The container, if the step is about one."),
        (
            "what",
            string(),
            "What happened: Requested, Shortened, UnsafeByRequest, Seen, HookStarted, HookEnded, HookOverran, Held, Acknowledged, Drained, DrainTimedOut, Signal, Exited, Lost, SandboxStopped, NetworkGone, VolumesGone, CgroupGone, StatusWritten, Removed, EndpointFlipped, RulesCommitted, AgentRestarted.",
        ),
        ("message", string(), "Details in readable form."),
        ("reason", string(), "Of Seen and Signal: the reason."),
        ("hook", string(), "Of HookStarted: exec, httpGet, sleep or tcpSocket."),
        ("succeeded", json!({"type": "boolean"}), "Of HookEnded: whether the hook succeeded."),
        ("exitCode", int32(), "Of HookEnded and Exited: the exit code."),
        ("httpStatus", int32(), "Of HookEnded: the status code of the response to an HTTP hook."),
        (
            "output",
            string(),
            "Of HookEnded: the beginning of the hook's output, at most 4096 bytes. Everyone who may read terminations can read it.",
        ),
        (
            "signal",
            string(),
            "Of Signal: the signal that was sent. Of Exited: the signal that terminated the process, if any.",
        ),
        ("target", string(), "Of Signal: process 1 or all processes."),
        ("oom", json!({"type": "boolean"}), "Of Exited: the container ran out of memory."),
        ("slice", string(), "Of EndpointFlipped and RulesCommitted: the EndpointSlice."),
        (
            "generation",
            integer(),
            "Of EndpointFlipped and RulesCommitted: the generation of the EndpointSlice.",
        ),
    ];
    fields.push((
        "missing",
        json!({"type": "array", "items": string()}),
        "Of DrainTimedOut: who had not acknowledged.",
    ));
    fields.extend(request_fields());
    object(
        "TerminationStep is one event in the termination of a pod.",
        &["at", "actor", "what"],
        &fields,
    )
}

fn steps() -> Value {
    object(
        "TerminationSteps is the request body with which nodes and controllers add steps.",
        &["pod", "steps"],
        &[
            ("apiVersion", string(), "The API version of this object."),
            ("kind", string(), "Always TerminationSteps."),
            ("pod", own("TerminationPod"), "The pod that the steps are about."),
            ("steps", json!({"type": "array", "items": own("TerminationStep")}), "What happened."),
        ],
    )
}
