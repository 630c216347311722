//! The server's own steps in a termination record: who deleted the pod, how, and with which grace period.
//!
//! The request is recorded after the deletion is stored and before it is acknowledged; an unsafe removal is recorded before
//! it happens. In between, the node may write the status of a pod without grace period, and so remove it. Then the user is
//! not known yet, and is added when the deletion is recorded. Pods without a node have no processes and no record; mirror
//! pods have none either.

use super::{append, find};
use crate::request::call::Call;
use api::value::ValueExt;
use jiff::Timestamp;
use lifecycle::timeline::{
    self, Request, SERVER, Stamp, Step, StepKind, Subject, TerminationRecord, UNKNOWN,
};
use serde_json::Value;

const MIRROR: &str = "kubernetes.io/config.mirror";
const SCHEDULER: &str = "system:kube-scheduler";
const CONTROLLERS: &str = "system:kube-controller-manager";
/// The prefix of controllers' service accounts.
const ACCOUNTS: &str = "system:serviceaccount:kube-system:";

/// A delete request.
#[derive(Clone, Copy)]
pub(crate) struct DeleteRequest {
    at: Stamp,
    grace: Option<i64>,
}

impl DeleteRequest {
    pub(crate) fn now(grace: Option<i64>) -> DeleteRequest {
        DeleteRequest { at: stamp(), grace }
    }
}

/// Why an object is removed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Removal {
    /// A delete request.
    Delete,
    /// An update of a marked object that removed the last finalizer, or any update of one without (T-API-15).
    LastFinalizer,
}

/// Records a stored delete: the first one, or one that shortens the grace period.
pub(crate) async fn marked(call: &Call, old: &Value, new: &Value, request: DeleteRequest) {
    let Some(subject) = subject(call, new) else { return };
    let mark = |pod: &Value| {
        let metadata = &pod["metadata"];
        (
            metadata.get("deletionTimestamp").cloned(),
            metadata["deletionGracePeriodSeconds"].as_i64(),
        )
    };
    let (before, after) = (mark(old), mark(new));
    // Only finalizers have changed, or the node confirms a termination.
    if before == after || call.user.node_name() == Some(subject.node.as_str()) {
        return;
    }
    let now = request.at;
    let grace = after.1.unwrap_or(0);
    let first = before.0.is_none();
    let deadline = match first {
        // More precise than the object, which has whole seconds.
        true => now.at.checked_add(jiff::SignedDuration::from_secs(grace)).ok(),
        false => new.text(&["metadata", "deletionTimestamp"]).parse::<Timestamp>().ok(),
    };
    let requested = Request {
        by: call.user.name.clone(),
        agent: agent(call),
        through: through(call, &subject),
        grace_asked_seconds: request.grace,
        grace_seconds: Some(grace),
        deadline,
    };
    let what = if first { StepKind::Requested(requested) } else { StepKind::Shortened(requested) };
    record(call, &subject, now, vec![what]).await;
}

/// Called before the object is removed. Unless the node removes it or has confirmed that no process is left, the removal is
/// unsafe by request (T-EDGE-13). This is recorded first, so that a crash cannot hide it.
pub(crate) async fn removing(call: &Call, pod: &Value, removal: Removal) {
    let Some(subject) = subject(call, pod) else { return };
    let name = timeline::name(&subject.name, &subject.uid);
    let known = find(&call.server, &call.target.namespace, &name);
    if known.as_ref().is_some_and(|record| record.confirmed) || is_over(pod) {
        return;
    }
    let by_node = call.user.node_name() == Some(subject.node.as_str());
    let marked = known.and_then(|record| record.request).filter(|it| it.grace_seconds == Some(0));
    let by = match (removal, marked) {
        (Removal::Delete, _) if by_node => return,
        (_, Some(request)) => request.by,
        // A node that writes the status of a pod without grace period removes it unknowingly.
        (Removal::LastFinalizer, None) if by_node => UNKNOWN.to_owned(),
        (_, None) => call.user.name.clone(),
    };
    record(call, &subject, stamp(), vec![StepKind::UnsafeByRequest { by }]).await;
}

/// Called after the object is removed.
pub(crate) async fn removed(call: &Call, pod: &Value) {
    let Some(subject) = subject(call, pod) else { return };
    record(call, &subject, stamp(), vec![StepKind::Removed]).await;
}

async fn record(call: &Call, subject: &Subject, now: Stamp, steps: Vec<StepKind>) {
    let steps = |record: &TerminationRecord| {
        let first = record.next_sequence(SERVER);
        let new = steps.iter().filter(|what| is_new(record, what));
        let numbered = new.cloned().zip(first..);
        numbered.map(|(what, sequence)| step(now, sequence, what)).collect()
    };
    let namespace = &call.target.namespace;
    if let Err(error) = append(&call.server, namespace, subject, steps).await {
        let (pod, why) = (&subject.name, error.to_string());
        tracing::warn!(namespace, pod, why, "recording a termination step failed");
    }
}

fn is_new(record: &TerminationRecord, what: &StepKind) -> bool {
    let mut known = record.steps.iter().map(|step| &step.what);
    match what {
        StepKind::Removed => !known.any(|known| *known == StepKind::Removed),
        StepKind::UnsafeByRequest { by } => !known.any(|known| match known {
            StepKind::UnsafeByRequest { by: before } => before != UNKNOWN || by == UNKNOWN,
            _ => false,
        }),
        _ => true,
    }
}

pub(super) fn step(now: Stamp, sequence: i64, what: StepKind) -> Step {
    Step {
        at: now.at,
        monotonic: now.monotonic,
        actor: SERVER.into(),
        incarnation: String::new(),
        sequence,
        container: String::new(),
        what,
        message: String::new(),
    }
}

pub(super) fn stamp() -> Stamp {
    Stamp { at: clock::now(), monotonic: clock::monotonic() }
}

/// None if nothing is recorded for this object.
fn subject(call: &Call, pod: &Value) -> Option<Subject> {
    let is_pod = call.kind.plural == "pods" && call.kind.group.is_empty();
    (is_pod && pod.at(&["metadata", "annotations", MIRROR]).is_none()).then_some(())?;
    of_pod(pod)
}

/// The subject of a pod's record, if the pod has a node.
pub(super) fn of_pod(pod: &Value) -> Option<Subject> {
    let node = pod.text(&["spec", "nodeName"]);
    if node.is_empty() {
        return None;
    }
    let owners = pod.at(&["metadata", "ownerReferences"]).and_then(Value::as_array);
    let controller = owners.into_iter().flatten().find(|owner| owner["controller"] == true);
    let owner = |owner: &Value| format!("{}/{}", owner.text(&["kind"]), owner.text(&["name"]));
    Some(Subject {
        name: pod.text(&["metadata", "name"]).to_owned(),
        uid: pod.text(&["metadata", "uid"]).to_owned(),
        node: node.to_owned(),
        owner: controller.map(owner).unwrap_or_default(),
    })
}

/// Whether all containers are known to have terminated.
fn is_over(pod: &Value) -> bool {
    let lists = ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"];
    let mut all = lists
        .iter()
        .filter_map(|list| pod.at(&["status", list]).and_then(Value::as_array))
        .flatten();
    api::pod::is_terminal_phase(pod.text(&["status", "phase"]))
        && pod.at(&["status", "containerStatuses"]).is_some()
        && all.all(|container| container.at(&["state", "terminated"]).is_some())
}

/// Through what a request came. Empty for a plain delete by a user.
fn through(call: &Call, subject: &Subject) -> String {
    let user = call.user.name.as_str();
    let account = user.strip_prefix(ACCOUNTS);
    match (call.target.subresource.as_str(), account) {
        ("eviction", _) => "eviction".into(),
        _ if user == SCHEDULER => "preemption".into(),
        (_, Some("pod-garbage-collector")) => "pod garbage collection".into(),
        (_, Some("node-controller" | "taint-eviction-controller")) => "taint eviction".into(),
        (_, Some("namespace-controller")) => "namespace deletion".into(),
        (_, Some(_)) => subject.owner.clone(),
        _ if user == CONTROLLERS => subject.owner.clone(),
        _ => String::new(),
    }
}

fn agent(call: &Call) -> String {
    let agent = call.headers.get(http::header::USER_AGENT).and_then(|agent| agent.to_str().ok());
    agent.unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// T-EDGE-13: a forced deletion is unsafe by request of a user.
    #[test]
    fn the_user_of_an_unsafe_removal_is_recorded_once_even_after_an_unknown_user() {
        let by = |by: &str| StepKind::UnsafeByRequest { by: by.into() };
        for (before, what, expected) in [
            (vec![], by("admin"), true),
            (vec![], by(UNKNOWN), true),
            (vec![by(UNKNOWN), StepKind::Removed], by("admin"), true),
            (vec![by(UNKNOWN), StepKind::Removed], by(UNKNOWN), false),
            (vec![by("admin")], by("another"), false),
            (vec![by("admin")], by(UNKNOWN), false),
            (vec![by(UNKNOWN), by("admin")], by("another"), false),
            (vec![by("admin")], StepKind::Removed, true),
            (vec![by("admin"), StepKind::Removed], StepKind::Removed, false),
        ] {
            let subject = Subject { name: "web".into(), uid: "u".into(), ..Subject::default() };
            let mut record = TerminationRecord::new("default", subject, "r", clock::now());
            let steps = before.iter().cloned().zip(0..);
            record.append(steps.map(|(what, n)| step(stamp(), n, what)).collect::<Vec<_>>());
            assert_eq!(is_new(&record, &what), expected, "{before:?}, {what:?}");
        }
    }
}
