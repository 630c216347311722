//! What a deletion of a pod is in its record: who asked, through what, and how long it was given.
//!
//! Written after the deletion is stored and before it is acknowledged; that a removal is unsafe, before it
//! is done. In between the node may write the status of a pod that was given no time, and so remove it: by
//! whose wish is not known then, and is told as soon as the deletion is written. A pod without a node has
//! no processes to end and no record; a static pod's mirror is only a shadow, and has none either.

use super::{append, find};
use crate::call::Call;
use api::value::ValueExt;
use jiff::Timestamp;
use lifecycle::timeline::{
    self, Request, SERVER, Stamp, Step, Subject, Termination, UNKNOWN, What,
};
use serde_json::Value;

const MIRROR: &str = "kubernetes.io/config.mirror";
const SCHEDULER: &str = "system:kube-scheduler";
const CONTROLLERS: &str = "system:kube-controller-manager";
/// Controllers that upstream runs under accounts of their own.
const ACCOUNTS: &str = "system:serviceaccount:kube-system:";

/// A delete, as it was asked for.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    at: Stamp,
    grace: Option<i64>,
}

impl Asked {
    pub(crate) fn now(grace: Option<i64>) -> Asked {
        Asked { at: stamp(), grace }
    }
}

/// What removed an object.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Removal {
    /// Somebody who wanted it to be gone.
    Wish,
    /// It was marked, and whatever held it let go: any write removes it then (T-API-15).
    LastHold,
}

/// A delete was stored: the first one, or one that shortens.
pub(crate) async fn marked(call: &Call, old: &Value, new: &Value, asked: Asked) {
    let Some(subject) = subject(call, new) else { return };
    let mark = |pod: &Value| {
        let metadata = &pod["metadata"];
        (
            metadata.get("deletionTimestamp").cloned(),
            metadata["deletionGracePeriodSeconds"].as_i64(),
        )
    };
    let (before, after) = (mark(old), mark(new));
    // Only its finalizers were changed; or its node lets go of what it has ended.
    if before == after || call.user.node_name() == Some(subject.node.as_str()) {
        return;
    }
    let now = asked.at;
    let grace = after.1.unwrap_or(0);
    let first = before.0.is_none();
    let deadline = match first {
        // The object has whole seconds.
        true => now.at.checked_add(jiff::SignedDuration::from_secs(grace)).ok(),
        false => new.text(&["metadata", "deletionTimestamp"]).parse::<Timestamp>().ok(),
    };
    let request = Request {
        by: call.user.name.clone(),
        agent: agent(call),
        through: through(call, &subject),
        grace_asked_seconds: asked.grace,
        grace_seconds: Some(grace),
        deadline,
    };
    let what = if first { What::Requested(request) } else { What::Shortened(request) };
    record(call, &subject, now, vec![what]).await;
}

/// The object is about to go. Unless its node wants that or has said that nothing of the pod runs,
/// somebody is in a hurry (T-EDGE-13), and that is on the disk before it is done: a server that dies in
/// between has told it.
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
        (Removal::Wish, _) if by_node => return,
        (_, Some(request)) => request.by,
        // A node that writes the status of a pod marked without grace removes it unawares.
        (Removal::LastHold, None) if by_node => UNKNOWN.to_owned(),
        (_, None) => call.user.name.clone(),
    };
    record(call, &subject, stamp(), vec![What::UnsafeByRequest { by }]).await;
}

/// The object is gone.
pub(crate) async fn removed(call: &Call, pod: &Value) {
    let Some(subject) = subject(call, pod) else { return };
    record(call, &subject, stamp(), vec![What::Removed]).await;
}

async fn record(call: &Call, subject: &Subject, now: Stamp, steps: Vec<What>) {
    let steps = |record: &Termination| {
        let first = record.next_sequence(SERVER);
        let new = steps.iter().filter(|what| is_news(record, what));
        let numbered = new.cloned().zip(first..);
        numbered.map(|(what, sequence)| step(now, sequence, what)).collect()
    };
    let namespace = &call.target.namespace;
    if let Err(error) = append(&call.server, namespace, subject, steps).await {
        let (pod, why) = (&subject.name, error.to_string());
        tracing::warn!(namespace, pod, why, "a step of an ending was not recorded");
    }
}

fn is_news(record: &Termination, what: &What) -> bool {
    let mut known = record.steps.iter().map(|step| &step.what);
    match what {
        What::Removed => !known.any(|known| *known == What::Removed),
        What::UnsafeByRequest { by } => !known.any(|known| match known {
            What::UnsafeByRequest { by: before } => before != UNKNOWN || by == UNKNOWN,
            _ => false,
        }),
        _ => true,
    }
}

fn step(now: Stamp, sequence: i64, what: What) -> Step {
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

fn stamp() -> Stamp {
    Stamp { at: clock::now(), monotonic: clock::monotonic() }
}

/// None: nothing is recorded of this object.
fn subject(call: &Call, pod: &Value) -> Option<Subject> {
    let is_pod = call.kind.plural == "pods" && call.kind.group.is_empty();
    (is_pod && pod.at(&["metadata", "annotations", MIRROR]).is_none()).then_some(())?;
    of_pod(pod)
}

/// Which pod a record is about, if it ever had a node.
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

/// Every container of it is known to have ended.
fn is_over(pod: &Value) -> bool {
    let lists = ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"];
    let mut all = lists
        .iter()
        .filter_map(|list| pod.at(&["status", list]).and_then(Value::as_array))
        .flatten();
    matches!(pod.text(&["status", "phase"]), "Succeeded" | "Failed")
        && pod.at(&["status", "containerStatuses"]).is_some()
        && all.all(|container| container.at(&["state", "terminated"]).is_some())
}

/// The way a request came. A plain delete by a person has none.
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

    /// T-EDGE-13
    #[test]
    fn who_is_known_is_told_also_after_an_unknown_user_and_nobody_twice() {
        let by = |by: &str| What::UnsafeByRequest { by: by.into() };
        for (before, what, news) in [
            (vec![], by("admin"), true),
            (vec![], by(UNKNOWN), true),
            (vec![by(UNKNOWN), What::Removed], by("admin"), true),
            (vec![by(UNKNOWN), What::Removed], by(UNKNOWN), false),
            (vec![by("admin")], by("another"), false),
            (vec![by("admin")], by(UNKNOWN), false),
            (vec![by(UNKNOWN), by("admin")], by("another"), false),
            (vec![by("admin")], What::Removed, true),
            (vec![by("admin"), What::Removed], What::Removed, false),
        ] {
            let subject = Subject { name: "web".into(), uid: "u".into(), ..Subject::default() };
            let mut record = Termination::new("default", subject, "r", clock::now());
            let steps = before.iter().cloned().zip(0..);
            record.append(steps.map(|(what, n)| step(stamp(), n, what)).collect::<Vec<_>>());
            assert_eq!(is_news(&record, &what), news, "{before:?}, {what:?}");
        }
    }
}
