//! Events in the core group. The same objects in `events.k8s.io` are in `crate::events`.

use super::checks;
use crate::Rules;
use api::field::{At, Errors};
use api::names;
use api::names::NameRule;
use api::value::ValueExt;
use serde_json::{Value, json};

const TEXT_MAX: usize = 128;
const MESSAGE_MAX: usize = 1024;

pub(super) const RULES: Rules = Rules {
    default,
    validate,
    fields: &[
        ("involvedObject.kind", |event| event.text(&["involvedObject", "kind"]).into()),
        ("involvedObject.namespace", |event| event.text(&["involvedObject", "namespace"]).into()),
        ("involvedObject.name", |event| event.text(&["involvedObject", "name"]).into()),
        ("involvedObject.uid", |event| event.text(&["involvedObject", "uid"]).into()),
        ("involvedObject.apiVersion", |event| event.text(&["involvedObject", "apiVersion"]).into()),
        ("involvedObject.resourceVersion", |event| {
            event.text(&["involvedObject", "resourceVersion"]).into()
        }),
        ("involvedObject.fieldPath", |event| event.text(&["involvedObject", "fieldPath"]).into()),
        ("reason", |event| event.text(&["reason"]).into()),
        ("reportingComponent", |event| event.text(&["reportingComponent"]).into()),
        ("source", |event| match event.text(&["source", "component"]) {
            "" => event.text(&["reportingComponent"]).into(),
            component => component.into(),
        }),
        ("type", |event| event.text(&["type"]).into()),
    ],
    name: NameRule::PathSegment,
    create_on_update: true,
    ..Rules::NONE
};

/// No defaults, but some fields are written even when they are empty.
fn default(event: &mut Value) {
    for time in ["eventTime", "firstTimestamp", "lastTimestamp"] {
        event.set_default(time, Value::Null);
    }
    for text in ["reportingComponent", "reportingInstance"] {
        event.set_default(text, "");
    }
    event.set_default("source", json!({}));
}

fn validate(event: &At, errors: &mut Errors) {
    let involved = event.field("involvedObject");
    let object = involved.field("namespace");
    let metadata = event.field("metadata");
    let own = metadata.field("namespace").text();
    let modern = event.field("eventTime").is_set();
    // Events about cluster-scoped objects are in the namespace `default`.
    let fits = match (object.text(), modern) {
        ("", false) => ["", "default"].contains(&own),
        ("", true) => ["default", "kube-system"].contains(&own),
        (object, false) => object == own,
        (_, true) => true,
    };
    if !fits {
        errors.invalid_value(&object, object.text(), "does not match event.namespace");
    }
    if modern {
        validate_modern(event, errors);
    }
    for wrong in names::dns1123_subdomain(own) {
        errors.invalid_value(&event.field("namespace"), own, &wrong);
    }
}

/// An event with `eventTime` must name its reporter and action.
fn validate_modern(event: &At, errors: &mut Errors) {
    let component = event.field("reportingComponent");
    checks::required(&component, errors);
    for wrong in names::qualified_name(component.text()) {
        errors.invalid_value(&component, component.text(), &wrong);
    }
    for field in ["reportingInstance", "action", "reason"] {
        let field = event.field(field);
        if checks::required(&field, errors) && field.text().len() > TEXT_MAX {
            errors.invalid_value(&field, "", &format!("can have at most {TEXT_MAX} characters"));
        }
    }
    let message = event.field("message");
    if message.text().len() > MESSAGE_MAX {
        errors.invalid_value(&message, "", &format!("can have at most {MESSAGE_MAX} characters"));
    }
}

#[cfg(test)]
mod tests {
    use super::super::trial::{NOTHING, defaulted};
    use super::*;

    fn event(namespace: &str, more: Value) -> Vec<String> {
        let mut event = defaulted("Event", json!({"metadata": {"namespace": namespace}}));
        super::super::trial::merge(&mut event, more);
        let mut errors = Errors::default();
        validate(&At::root(&event), &mut errors);
        super::super::trial::messages(&errors)
    }

    #[test]
    fn a_148_an_event_is_in_the_namespace_of_its_object() {
        let wrong =
            ["involvedObject.namespace: Invalid value: \"b\": does not match event.namespace"];
        assert_eq!(event("a", json!({"involvedObject": {"namespace": "a"}})), NOTHING);
        assert_eq!(event("a", json!({"involvedObject": {"namespace": "b"}})), wrong);
        assert_eq!(event("default", json!({"involvedObject": {"kind": "Node"}})), NOTHING);
        assert_eq!(event("kube-system", json!({"involvedObject": {"kind": "Node"}})).len(), 1);
    }

    #[test]
    fn a_148_an_event_with_a_time_names_its_reporter() {
        let messages = event("default", json!({"eventTime": "2026-01-01T00:00:00.000000Z"}));
        let required: Vec<&str> =
            messages.iter().filter_map(|s| s.strip_suffix(": Required value")).collect();
        assert_eq!(required, ["reportingComponent", "reportingInstance", "action", "reason"]);
    }
}
