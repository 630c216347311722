//! Rules of the `events.k8s.io` kinds: events in their newer form.
//!
//! They are stored in the core form (`convert`). Events that were written in the core form are also read
//! in this form, so only new events must be complete.

use super::{Rules, check};
use crate::convert::event;
use api::field::{At, Errors};
use api::names;
use api::value::ValueExt;
use serde_json::Value;

const TEXT_MAX: usize = 128;
const NOTE_MAX: usize = 1024;

pub(crate) fn rules(kind: &str) -> Rules {
    match kind {
        "Event" => Rules {
            // Converting to the core form and back sets the fields that this form always has.
            default: |value| *value = event::from_core(&event::to_core(value)),
            validate,
            validate_update,
            fields: &[
                ("regarding.kind", |event| regarding(event, "kind")),
                ("regarding.namespace", |event| regarding(event, "namespace")),
                ("regarding.name", |event| regarding(event, "name")),
                ("regarding.uid", |event| regarding(event, "uid")),
                ("regarding.apiVersion", |event| regarding(event, "apiVersion")),
                ("regarding.resourceVersion", |event| regarding(event, "resourceVersion")),
                ("regarding.fieldPath", |event| regarding(event, "fieldPath")),
                ("reason", |event| event.text(&["reason"]).into()),
                ("reportingController", |event| {
                    either(event, &["reportingController"], &["reportingComponent"])
                }),
                ("type", |event| event.text(&["type"]).into()),
            ],
            create_on_update: true,
            ..Rules::NONE
        },
        _ => Rules::NONE,
    }
}

fn regarding(event: &Value, field: &str) -> String {
    either(event, &["regarding", field], &["involvedObject", field])
}

/// A selectable field, read from either form.
fn either(event: &Value, new: &[&str], core: &[&str]) -> String {
    match event.text(new) {
        "" => event.text(core).into(),
        text => text.into(),
    }
}

fn validate(event: &At, errors: &mut Errors) {
    validate_namespace(event, errors);
    // A stored event may have been written in the core form, which requires less.
    if event.field("metadata").field("resourceVersion").text().is_empty() {
        validate_new(event, errors);
    }
}

fn validate_namespace(event: &At, errors: &mut Errors) {
    let own = event.field("metadata").field("namespace").text();
    let regarding = event.field("regarding");
    let namespace = regarding.field("namespace");
    let fits = match namespace.text() {
        "" => ["", "default", "kube-system"].contains(&own),
        other => other == own,
    };
    if !fits {
        // Upstream validates the stored form and names its fields.
        errors.push(
            api::field::Wrong::Invalid,
            "involvedObject.namespace".into(),
            Some(&namespace.text().into()),
            "does not match event.namespace",
        );
    }
}

fn validate_new(event: &At, errors: &mut Errors) {
    if !event.field("eventTime").is_set() {
        errors.required(&event.field("eventTime"), "");
    }
    let controller = event.field("reportingController");
    if controller.text().is_empty() {
        errors.required(&controller, "");
    } else {
        check::text(&controller, names::qualified_name, errors);
    }
    for name in ["reportingInstance", "action", "reason"] {
        let at = event.field(name);
        if at.text().is_empty() {
            errors.required(&at, "");
        } else if at.text().len() > TEXT_MAX {
            let detail = format!("can have at most {TEXT_MAX} characters");
            errors.invalid_value(&at, "", &detail);
        }
    }
    let note = event.field("note");
    if note.text().len() > NOTE_MAX {
        errors.invalid_value(&note, "", &format!("can have at most {NOTE_MAX} characters"));
    }
    let kind = event.field("type");
    if !["Normal", "Warning"].contains(&kind.text()) {
        errors.invalid_value(&kind, "", &format!("has invalid value: {}", kind.text()));
    }
    for (name, core) in [
        ("deprecatedFirstTimestamp", "firstTimestamp"),
        ("deprecatedLastTimestamp", "lastTimestamp"),
        ("deprecatedCount", "count"),
        ("deprecatedSource", "source"),
    ] {
        let at = event.field(name);
        let set = at.is_set()
            && at.int() != Some(0)
            && !(at.value().is_some_and(Value::is_object) && at.is_empty());
        if set {
            let detail = "needs to be unset";
            errors.push(api::field::Wrong::Invalid, core.into(), Some(&"".into()), detail);
        }
    }
}

/// Only the series (count and time) may change.
fn validate_update(new: &At, old: &At, errors: &mut Errors) {
    if !old.field("eventTime").is_set() {
        return;
    }
    for name in [
        "regarding",
        "reason",
        "reportingController",
        "reportingInstance",
        "action",
        "type",
        "note",
        "related",
        "eventTime",
    ] {
        check::immutable(&new.field(name), &old.field(name), errors);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn messages(mut event: Value) -> Vec<String> {
        (rules("Event").default)(&mut event);
        let mut errors = Errors::default();
        validate(&At::root(&event), &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_148_a_new_event_is_complete_and_has_no_deprecated_fields() {
        let event = json!({"metadata": {"name": "e", "namespace": "n"}, "type": "Normal",
            "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "c.io/x",
            "reportingInstance": "i", "action": "Do", "reason": "Why",
            "regarding": {"kind": "Pod", "namespace": "n"}});
        assert!(messages(event.clone()).is_empty(), "{:?}", messages(event.clone()));
        let mut old = event.clone();
        old["deprecatedCount"] = json!(3);
        assert_eq!(messages(old), ["count: Invalid value: \"\": needs to be unset"]);
        let mut elsewhere = event;
        elsewhere["regarding"]["namespace"] = json!("m");
        assert_eq!(
            messages(elsewhere),
            ["involvedObject.namespace: Invalid value: \"m\": does not match event.namespace"]
        );
        let bare = json!({"metadata": {"name": "e", "namespace": "default"}});
        let fields: Vec<_> =
            messages(bare).iter().map(|s| s.split(':').next().unwrap_or("").to_owned()).collect();
        assert_eq!(
            fields,
            ["eventTime", "reportingController", "reportingInstance", "action", "reason", "type"]
        );
    }

    #[test]
    fn a_103_events_of_both_forms_are_selected_by_their_object() {
        let field = |name: &str, event: &Value| {
            let (_, read) = rules("Event").fields.iter().find(|(field, _)| *field == name).unwrap();
            read(event)
        };
        assert_eq!(field("regarding.name", &json!({"regarding": {"name": "p"}})), "p");
        assert_eq!(field("regarding.name", &json!({"involvedObject": {"name": "p"}})), "p");
    }
}
