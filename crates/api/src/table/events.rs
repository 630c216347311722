//! Events in both API groups: v1 and events.k8s.io/v1 have different names for the same fields.

use super::column::{NAME, Printed, text};
use super::subject::{Subject, or};

pub(super) const EVENT: &[Printed] = &[
    text("Last Seen", "How long ago it last happened.", |o| last_seen(o).into()),
    text("Type", "Whether it is normal or a warning.", |o| o.text("type").into()),
    text("Reason", "Why it happened, in one word.", |o| o.text("reason").into()),
    text("Object", "What it happened to.", |o| object(o).into()),
    text("Subobject", "Which part of it.", |o| regarding(o, "fieldPath").into()).wide(),
    text("Source", "Who reported it.", |o| source(o).into()).wide(),
    text("Message", "What happened.", |o| or(o.text("message"), o.text("note")).trim().into()),
    text("First Seen", "How long ago it first happened.", |o| first_seen(o).into()).wide(),
    text("Count", "How often it has happened.", count).wide(),
    NAME.wide(),
];

const FIRST: [&str; 2] = ["firstTimestamp", "deprecatedFirstTimestamp"];
const LAST: [&str; 2] = ["lastTimestamp", "deprecatedLastTimestamp"];
const COUNT: [&str; 2] = ["count", "deprecatedCount"];

fn first_seen(o: &Subject) -> String {
    o.age_of(or(or(o.text(FIRST[0]), o.text(FIRST[1])), o.text("eventTime")))
}

fn last_seen(o: &Subject) -> String {
    if o.get("series").is_some() {
        return o.age("series.lastObservedTime");
    }
    match or(o.text(LAST[0]), o.text(LAST[1])) {
        "" => first_seen(o),
        time => o.age_of(time),
    }
}

fn count(o: &Subject) -> serde_json::Value {
    match o.get("series") {
        Some(_) => o.int("series.count"),
        // In events.k8s.io, an event that happened once has no count.
        None => o.int(COUNT[0]).max(o.int(COUNT[1])).max(1),
    }
    .into()
}

fn regarding<'v>(o: &Subject<'v>, field: &str) -> &'v str {
    or(o.text(&format!("involvedObject.{field}")), o.text(&format!("regarding.{field}")))
}

/// `pod/web-1`
fn object(o: &Subject) -> String {
    let kind = regarding(o, "kind").to_lowercase();
    match regarding(o, "name") {
        "" => kind,
        name => format!("{kind}/{name}"),
    }
}

fn source(o: &Subject) -> String {
    let component = or(o.text("source.component"), o.text("deprecatedSource.component"));
    let (component, instance) = if component.is_empty() {
        let reporter = or(o.text("reportingComponent"), o.text("reportingController"));
        (reporter, o.text("reportingInstance"))
    } else {
        (component, or(o.text("source.host"), o.text("deprecatedSource.host")))
    };
    if instance.is_empty() { component.to_owned() } else { format!("{component}, {instance}") }
}
