//! Events: the older core form, which is stored, and the events.k8s.io form.

use serde_json::{Map, Value, json};

/// Fields with different names: the name in events.k8s.io and the name in core.
const RENAMED: [(&str, &str); 7] = [
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
];

pub(crate) fn to_core(event: &Value) -> Value {
    let mut core =
        renamed(event, |name| RENAMED.iter().find(|(new, _)| *new == name).map(|(_, core)| *core));
    core.insert("apiVersion".into(), json!("v1"));
    fill(&mut core, &["involvedObject", "source"], json!({}));
    fill(&mut core, &["eventTime", "firstTimestamp", "lastTimestamp"], Value::Null);
    fill(&mut core, &["reportingComponent", "reportingInstance"], json!(""));
    Value::Object(core)
}

pub(crate) fn from_core(core: &Value) -> Value {
    let mut event =
        renamed(core, |name| RENAMED.iter().find(|(_, core)| *core == name).map(|(new, _)| *new));
    event.insert("apiVersion".into(), json!("events.k8s.io/v1"));
    fill(&mut event, &["regarding", "deprecatedSource"], json!({}));
    let times = ["eventTime", "deprecatedFirstTimestamp", "deprecatedLastTimestamp"];
    fill(&mut event, &times, Value::Null);
    // Unlike the core form, this form omits empty strings.
    for name in ["reportingController", "reportingInstance"] {
        if event.get(name).and_then(Value::as_str) == Some("") {
            event.remove(name);
        }
    }
    Value::Object(event)
}

fn renamed(object: &Value, rename: impl Fn(&str) -> Option<&'static str>) -> Map<String, Value> {
    let fields = object.as_object().into_iter().flatten();
    fields.map(|(name, value)| (rename(name).unwrap_or(name).to_owned(), value.clone())).collect()
}

fn fill(object: &mut Map<String, Value>, names: &[&str], value: Value) {
    for name in names {
        object.entry(*name).or_insert_with(|| value.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_148_both_forms_of_an_event_convert_to_each_other() {
        let core = json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "n"},
            "involvedObject": {"kind": "Pod", "name": "p"}, "message": "hello", "reason": "Why",
            "source": {"component": "c"}, "firstTimestamp": "2026-01-01T00:00:00Z",
            "lastTimestamp": null, "count": 2, "eventTime": null, "type": "Normal",
            "reportingComponent": "c", "reportingInstance": "",
        });
        let event = from_core(&core);
        assert_eq!(
            event,
            json!({
                "apiVersion": "events.k8s.io/v1", "kind": "Event",
                "metadata": {"name": "e", "namespace": "n"},
                "regarding": {"kind": "Pod", "name": "p"}, "note": "hello", "reason": "Why",
                "deprecatedSource": {"component": "c"}, "deprecatedCount": 2,
                "deprecatedFirstTimestamp": "2026-01-01T00:00:00Z",
                "deprecatedLastTimestamp": null, "eventTime": null, "type": "Normal",
                "reportingController": "c",
            })
        );
        assert_eq!(to_core(&event), core);
    }
}
