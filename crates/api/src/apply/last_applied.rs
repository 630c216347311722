//! Coexistence with client-side apply.
//!
//! Client-side `kubectl apply` keeps its input in an annotation. When kubectl then uses server-side
//! apply, fields that have the value in the annotation are not conflicts. The annotation is updated
//! on each apply, so that an older kubectl can still take over.

use super::walk::Walk;
use crate::value::ValueExt;
use serde_json::Value;
use std::collections::BTreeSet;

const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// All annotations of an object together may be this long.
const MAX_ANNOTATIONS: usize = 256 * 1024;

/// Whether `kubectl apply` uses this manager name.
pub(super) fn manages(name: &str) -> bool {
    name == "kubectl"
}

/// The paths whose live value equals the value in the annotation.
pub(super) fn explained(walk: &Walk, live: &Value) -> BTreeSet<String> {
    let text = live.text(&["metadata", "annotations", ANNOTATION]);
    let Ok(last @ Value::Object(_)) = serde_json::from_str::<Value>(text) else {
        return BTreeSet::new();
    };
    let mut fields = walk.fields(&last);
    let difference = walk.compare(Some(&last), live);
    fields.subtract(&difference.changed);
    fields.subtract(&difference.removed);
    fields.paths().into_iter().collect()
}

/// Writes the applied document into the annotation, if the object has that annotation.
pub(super) fn update_annotation(object: &mut Value, applied: &Value) {
    if object.text(&["metadata", "annotations", ANNOTATION]).is_empty() {
        return;
    }
    let mut applied = applied.clone();
    let mut emptied = false;
    if let Some(Value::Object(annotations)) =
        applied.get_mut("metadata").and_then(|metadata| metadata.get_mut("annotations"))
    {
        annotations.remove(ANNOTATION);
        emptied = annotations.is_empty();
    }
    if emptied {
        applied["metadata"].remove("annotations");
    }
    let text = as_go_writes_it(&applied);
    let Some(Value::Object(annotations)) =
        object.get_mut("metadata").and_then(|metadata| metadata.get_mut("annotations"))
    else {
        return;
    };
    annotations.insert(ANNOTATION.into(), text.into());
    let length = |(key, value): (&String, &Value)| key.len() + value.as_str().map_or(0, str::len);
    if annotations.iter().map(length).sum::<usize>() > MAX_ANNOTATIONS {
        annotations.remove(ANNOTATION);
    }
}

/// JSON as Go encodes it: `<`, `>` and `&` are escaped, and a newline follows.
fn as_go_writes_it(value: &Value) -> String {
    let mut text = String::new();
    for c in value.to_string().chars() {
        match c {
            '<' => text.push_str("\\u003c"),
            '>' => text.push_str("\\u003e"),
            '&' => text.push_str("\\u0026"),
            '\u{2028}' => text.push_str("\\u2028"),
            '\u{2029}' => text.push_str("\\u2029"),
            other => text.push(other),
        }
    }
    text.push('\n');
    text
}
