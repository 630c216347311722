//! The schema of `terminations.landfall.dev`: how pods ended. The types themselves are
//! `lifecycle::timeline`'s, which uses this crate; a test there holds the two to each other.

use serde_json::{Map, Value, json};

const PREFIX: &str = "dev.landfall.v1";
const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

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
        "Termination is the record of how one pod ended: who asked for it, every step with its time \
         and its actor, and how it came out. It is written by the parts that end pods and is kept \
         after the pod is gone.",
        &["pod", "outcome", "confirmed", "steps"],
        &[
            ("apiVersion", string(), "The version of the API this object is in."),
            ("kind", string(), "Always Termination."),
            ("metadata", reference(META, "ObjectMeta"), "Standard object metadata."),
            ("pod", own("TerminationPod"), "The pod that ended."),
            (
                "request",
                own("TerminationRequest"),
                "Who wanted the pod to end, and how long it was given. A later, shorter request changes graceSeconds and deadline.",
            ),
            (
                "outcome",
                string(),
                "Ending: not over yet. Clean: everything ended within its time. Killed: at least one container did not. Completed: nobody asked, its containers were done. Forced: the object was removed before the node had said that nothing of the pod runs. Lost: how a container ended is not known.",
            ),
            (
                "confirmed",
                json!({"type": "boolean"}),
                "Whether the pod's node has said that no process of it is left.",
            ),
            ("summary", string(), "What happened and why, in a sentence."),
            ("started", micro_time(), "When the pod was asked to end, or began to."),
            (
                "ended",
                micro_time(),
                "When the object was gone and nothing ran any more; for a pod that keeps its object, when its last status was written.",
            ),
            (
                "steps",
                json!({"type": "array", "items": own("TerminationStep")}),
                "What happened, by time.",
            ),
            ("dropped", integer(), "How many steps there was no room for."),
        ],
    )
}

fn pod() -> Value {
    object(
        "TerminationPod says which pod it was.",
        &["name", "uid"],
        &[
            ("name", string(), "The pod's name."),
            ("uid", string(), "The pod's uid: its name may have been used again."),
            ("node", string(), "The node it was bound to."),
            ("owner", string(), "Its controller, as Kind/name."),
        ],
    )
}

/// Also the fields of the steps Requested and Shortened.
fn request_fields() -> Vec<(&'static str, Value, &'static str)> {
    vec![
        ("by", string(), "The user who asked; a node that decided by itself is its own user."),
        ("agent", string(), "The program that asked, as it calls itself."),
        (
            "through",
            string(),
            "Which way it was asked: the pod's controller (ReplicaSet/web), eviction, preemption, node pressure, node shutdown, active deadline, completion. Empty for a plain delete.",
        ),
        ("graceAskedSeconds", integer(), "The grace period that the request named."),
        ("graceSeconds", integer(), "The grace period that the pod got."),
        ("deadline", micro_time(), "When the grace period is over."),
    ]
}

fn request() -> Value {
    object("TerminationRequest says who wanted a pod to end.", &["by"], &request_fields())
}

fn step() -> Value {
    let mut fields = vec![
        ("at", micro_time(), "When it happened, by the actor's clock."),
        (
            "monotonic",
            integer(),
            "The same in nanoseconds of the actor's machine's monotonic clock: differences within one machine are exact even if its clock was set.",
        ),
        (
            "actor",
            string(),
            "Who did it or saw it: server, node/NAME, proxy/NAME, or a controller.",
        ),
        ("incarnation", string(), "Which run of the actor told it."),
        (
            "sequence",
            integer(),
            "The step's number in that run; actor, incarnation and sequence are unique.",
        ),
        ("container", string(), "The container it is about, if it is about one."),
        (
            "what",
            string(),
            "What happened: Requested, Shortened, UnsafeByRequest, Seen, HookStarted, HookEnded, HookOverran, Signal, Exited, Lost, SandboxStopped, NetworkGone, VolumesGone, CgroupGone, StatusWritten, Removed, EndpointFlipped, RulesCommitted, AgentRestarted.",
        ),
        ("message", string(), "More about it, for people."),
        ("reason", string(), "Of Seen and Signal: why."),
        ("hook", string(), "Of HookStarted: exec, httpGet, sleep or tcpSocket."),
        (
            "succeeded",
            json!({"type": "boolean"}),
            "Of HookEnded: whether the hook did what it should.",
        ),
        ("exitCode", int32(), "Of HookEnded and Exited: the exit code."),
        ("httpStatus", int32(), "Of HookEnded: the status that an HTTP hook was answered with."),
        (
            "output",
            string(),
            "Of HookEnded: the beginning of what the hook said, at most 4096 bytes. Whoever may read terminations may read it.",
        ),
        (
            "signal",
            string(),
            "Of Signal: which was sent. Of Exited: which one ended the process, if one did.",
        ),
        ("target", string(), "Of Signal: process 1 or all processes."),
        ("oom", json!({"type": "boolean"}), "Of Exited: the container was out of memory."),
        ("slice", string(), "Of EndpointFlipped and RulesCommitted: the EndpointSlice."),
        (
            "generation",
            integer(),
            "Of EndpointFlipped and RulesCommitted: the generation of the EndpointSlice.",
        ),
    ];
    fields.extend(request_fields());
    object(
        "TerminationStep is something that happened while a pod ended.",
        &["at", "actor", "what"],
        &fields,
    )
}

fn steps() -> Value {
    object(
        "TerminationSteps is what nodes and controllers post to add steps.",
        &["pod", "steps"],
        &[
            ("apiVersion", string(), "The version of the API this object is in."),
            ("kind", string(), "Always TerminationSteps."),
            ("pod", own("TerminationPod"), "The pod that the steps are about."),
            ("steps", json!({"type": "array", "items": own("TerminationStep")}), "What happened."),
        ],
    )
}

fn object(description: &str, required: &[&str], fields: &[(&str, Value, &str)]) -> Value {
    let mut properties = Map::new();
    for (name, schema, description) in fields {
        let mut schema = schema.clone();
        schema["description"] = (*description).into();
        properties.insert((*name).to_owned(), schema);
    }
    json!({"description": description, "type": "object", "properties": properties, "required": required})
}

fn string() -> Value {
    json!({"type": "string"})
}

fn integer() -> Value {
    json!({"type": "integer", "format": "int64"})
}

fn int32() -> Value {
    json!({"type": "integer", "format": "int32"})
}

fn micro_time() -> Value {
    reference(META, "MicroTime")
}

fn own(name: &str) -> Value {
    reference(PREFIX, name)
}

fn reference(package: &str, name: &str) -> Value {
    json!({"$ref": format!("#/definitions/{package}.{name}")})
}
