//! Termination records: `kubectl get terminations`.

use super::column::{AGE, NAME, Printed, boolean, integer, text};
use super::duration;
use super::subject::{NONE, Subject, or};
use jiff::Timestamp;

pub(super) const TERMINATION: &[Printed] = &[
    NAME,
    text("Node", "The node on which the pod ran.", |o| o.text_or("pod.node", NONE).into()),
    text("Outcome", "The result of the termination.", |o| outcome(o).into()),
    text("Requested By", "The user who requested the termination.", |o| requested_by(o).into()),
    text("Grace", "The grace period.", |o| grace(o).into()),
    text("Took", "How long it took, or has taken so far.", |o| took(o).into()),
    AGE,
    text("Pod", "The pod that was terminated.", |o| o.text("pod.name").into()).wide(),
    text("Through", "How the termination was requested.", |o| o.text("request.through").into())
        .wide(),
    text("Agent", "The user agent of the request.", |o| o.text("request.agent").into()).wide(),
    boolean(
        "Confirmed",
        "Whether the node has confirmed that no process of the pod is left.",
        |o| o.flag("confirmed").into(),
    )
    .wide(),
    integer("Steps", "The number of recorded steps.", |o| o.count("steps").into()).wide(),
    text("Summary", "What happened and why.", |o| o.text("summary").into()).wide(),
];

/// A forced termination is marked until the node confirms that nothing of the pod runs (T-EDGE-13).
fn outcome(o: &Subject) -> String {
    match o.text("outcome") {
        "Forced" if !o.flag("confirmed") => "Forced,Unconfirmed".to_owned(),
        outcome => outcome.to_owned(),
    }
}

fn requested_by(o: &Subject) -> String {
    or(o.text("request.by"), NONE).to_owned()
}

fn grace(o: &Subject) -> String {
    match o.get("request.graceSeconds") {
        Some(seconds) => format!("{seconds}s"),
        None => NONE.to_owned(),
    }
}

fn took(o: &Subject) -> String {
    let time = |path: &str| o.text(path).parse::<Timestamp>().ok();
    let Some(started) = time("started") else { return NONE.to_owned() };
    let taken = time("ended").unwrap_or(o.now).duration_since(started);
    let millis = taken.as_millis().max(0);
    match millis {
        0..10_000 => format!("{}.{:03}s", millis / 1000, millis % 1000),
        10_000..100_000 => format!("{}.{}s", millis / 1000, millis % 1000 / 100),
        _ => duration::human(taken),
    }
}
