//! Fields that the generated types require and the API server does not.
//!
//! Go reads a missing or null time as its zero time, so objects without it are stored. The generated types
//! have a default for every other required field, but `jiff::Timestamp` has none that means "not set".

use serde_json::{Result, Value};

/// Go's zero time. The API server reads it as "not set", so an object that was read can be written back.
const ZERO_TIME: &str = "0001-01-01T00:00:00.000000Z";

/// Required times by the name of the field or list that their object is in. A property test in `client`
/// generates objects of all kinds from the schema and fails if an entry is missing here.
const REQUIRED_TIMES: [(&str, &str); 2] =
    [("conditions", "lastTransitionTime"), ("series", "lastObservedTime")];

/// Maps of times, in which Go writes zero times as null.
const MAPS_OF_TIMES: [&str; 1] = ["disruptedPods"];

/// Decodes; if that fails, decodes again with the zero times filled in. The first error is the one returned:
/// it refers to the text as it was sent.
pub fn decode_with<T>(json: &str, decode: impl Fn(&str) -> Result<T>) -> Result<T> {
    decode(json).or_else(|error| match filled(json) {
        Some(text) => decode(&text).map_err(|_| error),
        None => Err(error),
    })
}

/// The text with all required times, or `None` if none is missing.
fn filled(json: &str) -> Option<String> {
    let value: Value = serde_json::from_str(json).ok()?;
    let mut filled = value.clone();
    fill(&mut filled, "");
    (filled != value).then(|| filled.to_string())
}

/// Sets missing times in `value`, which is the value of the field `parent` or an element of that list.
fn fill(value: &mut Value, parent: &str) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| fill(item, parent)),
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                fill(value, name);
            }
            for (_, time) in REQUIRED_TIMES.iter().filter(|(place, _)| *place == parent) {
                set_if_null(fields.entry(*time).or_insert(Value::Null));
            }
            if MAPS_OF_TIMES.contains(&parent) {
                fields.values_mut().for_each(set_if_null);
            }
        }
        _ => {}
    }
}

fn set_if_null(time: &mut Value) {
    if time.is_null() {
        *time = ZERO_TIME.into();
    }
}

#[cfg(test)]
mod tests {
    use crate::{Typed, from_value, to_value};
    use k8s_openapi::api::core::v1::Service;
    use k8s_openapi::api::events::v1::Event;
    use k8s_openapi::api::policy::v1::PodDisruptionBudget;
    use serde_json::json;

    #[test]
    fn missing_or_null_times_are_read_as_the_zero_time() {
        for condition in [
            json!({ "type": "X", "status": "True", "reason": "R", "message": "" }),
            json!({ "type": "X", "status": "True", "lastTransitionTime": null }),
            json!({}),
        ] {
            let value = json!({ "metadata": {}, "status": { "conditions": [condition] } });
            let service: Service = from_value(value).unwrap();
            let written = to_value(&service).unwrap();
            assert_eq!(
                written["status"]["conditions"][0]["lastTransitionTime"], "0001-01-01T00:00:00Z",
                "the server reads this as: not set"
            );
        }
        let budget = json!({ "metadata": {}, "status": { "disruptedPods": { "web-0": null } } });
        let budget: PodDisruptionBudget = from_value(budget).unwrap();
        assert_eq!(budget.status.unwrap().disrupted_pods.unwrap().len(), 1);
        let event: Event =
            from_value(json!({ "metadata": {}, "eventTime": null, "series": { "count": 2 } }))
                .unwrap();
        assert_eq!(event.series.unwrap().count, 2);
    }

    #[test]
    fn the_error_is_about_the_text_as_it_was_sent() {
        let text = r#"{"status":{"conditions":[{}]},"spec":7}"#;
        let error = Service::decode(text).unwrap_err();
        assert!(error.to_string().contains("lastTransitionTime"), "{error}");
        assert!(Service::decode("{").is_err());
    }
}
