//! The object of a row, with the accessors and formats that many columns share.

use super::duration;
use crate::selector::LabelSelector;
use crate::value::ValueExt as _;
use jiff::Timestamp;
use serde_json::Value;

/// Upstream's placeholders for missing values; which one depends on the column.
pub(super) const NONE: &str = "<none>";
pub(super) const UNSET: &str = "<unset>";
pub(super) const UNKNOWN: &str = "<unknown>";

/// An object to be printed, and the time to which its ages are relative.
pub(super) struct Subject<'v> {
    pub(super) object: &'v Value,
    pub(super) now: Timestamp,
}

/// Paths are fields joined by dots: `spec.replicas`.
impl<'v> Subject<'v> {
    /// The value at the path, unless absent or null.
    pub(super) fn get(&self, path: &str) -> Option<&'v Value> {
        path.split('.')
            .try_fold(self.object, |value, field| value.get(field))
            .filter(|value| !value.is_null())
    }

    /// The string at the path, or "".
    pub(super) fn text(&self, path: &str) -> &'v str {
        self.get(path).and_then(Value::as_str).unwrap_or_default()
    }

    /// The string at the path, or `missing` if it is absent or empty.
    pub(super) fn text_or(&self, path: &str, missing: &'static str) -> &'v str {
        or(self.text(path), missing)
    }

    pub(super) fn int(&self, path: &str) -> i64 {
        self.get(path).and_then(Value::as_i64).unwrap_or_default()
    }

    pub(super) fn flag(&self, path: &str) -> bool {
        self.get(path).and_then(Value::as_bool).unwrap_or_default()
    }

    pub(super) fn list(&self, path: &str) -> &'v [Value] {
        self.get(path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    /// How many entries the list or map has.
    pub(super) fn count(&self, path: &str) -> usize {
        match self.get(path) {
            Some(Value::Array(list)) => list.len(),
            Some(Value::Object(map)) => map.len(),
            _ => 0,
        }
    }

    /// `metadata.annotations`, whose keys have dots.
    pub(super) fn annotation(&self, key: &str) -> &'v str {
        self.object.text(&["metadata", "annotations", key])
    }

    /// The time since the timestamp at the path.
    pub(super) fn age(&self, path: &str) -> String {
        self.age_of(self.text(path))
    }

    pub(super) fn age_of(&self, time: &str) -> String {
        match time.parse::<Timestamp>() {
            Ok(time) => duration::human(self.now.duration_since(time)),
            Err(_) => UNKNOWN.to_owned(),
        }
    }

    pub(super) fn is_deleting(&self) -> bool {
        self.get("metadata.deletionTimestamp").is_some()
    }

    /// The condition of that type in `status.conditions`.
    pub(super) fn condition(&self, r#type: &str) -> Option<&'v Value> {
        self.list("status.conditions").iter().find(|condition| condition["type"] == r#type)
    }

    pub(super) fn has_true_condition(&self, r#type: &str) -> bool {
        self.condition(r#type).is_some_and(|condition| condition["status"] == "True")
    }

    /// A `metav1.LabelSelector` in text form.
    pub(super) fn selector(&self, path: &str) -> String {
        match LabelSelector::from_object(self.get(path).unwrap_or(&Value::Null)) {
            Ok(selector) => or(&selector.to_string(), NONE).to_owned(),
            Err(_) => "<error>".to_owned(),
        }
    }

    /// A plain map of labels: `a=b,c=d`.
    pub(super) fn labels(&self, path: &str) -> String {
        or(&LabelSelector::from_labels(self.get(path).unwrap_or(&Value::Null)).to_string(), NONE)
            .to_owned()
    }

    /// The names of the containers in a pod spec.
    pub(super) fn container_names(&self, pod_spec: &str) -> String {
        self.containers(pod_spec, "name")
    }

    pub(super) fn images(&self, pod_spec: &str) -> String {
        self.containers(pod_spec, "image")
    }

    fn containers(&self, pod_spec: &str, field: &str) -> String {
        let pod_spec = self.get(pod_spec).unwrap_or(&Value::Null);
        let containers = Subject { object: pod_spec, now: self.now }.list("containers");
        join(containers.iter().map(|container| container.text(&[field])), ",")
    }
}

/// The text, or `missing` if it is empty.
pub(super) fn or<'t>(text: &'t str, missing: &'t str) -> &'t str {
    if text.is_empty() { missing } else { text }
}

pub(super) fn join<T: AsRef<str>>(parts: impl IntoIterator<Item = T>, between: &str) -> String {
    let mut joined = String::new();
    for (i, part) in parts.into_iter().enumerate() {
        if i > 0 {
            joined.push_str(between);
        }
        joined.push_str(part.as_ref());
    }
    joined
}

/// The first `max`, and how many more there are: `a,b,c + 2 more...`.
pub(super) fn join_first(parts: &[String], max: usize, between: &str) -> String {
    let shown = join(parts.iter().take(max), between);
    match parts.len().checked_sub(max) {
        Some(more) if more > 0 => format!("{shown} + {more} more..."),
        _ => shown,
    }
}

/// A quantity, number or int-or-string as text, without quotes.
pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
