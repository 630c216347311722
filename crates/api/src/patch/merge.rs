//! JSON merge patch (RFC 7386): null deletes, objects merge, everything else replaces.

use super::{MAX_DEPTH, PatchError, depth};
use serde_json::{Map, Value};

/// The object with the patch merged into it.
pub fn merge(target: &Value, patch: &Value) -> Result<Value, PatchError> {
    if !patch.is_object() {
        let got = match patch {
            Value::Array(_) => "array",
            Value::String(_) => "string",
            Value::Number(_) => "number",
            Value::Bool(_) => "bool",
            Value::Null | Value::Object(_) => "null",
        };
        return Err(PatchError::Malformed(format!(
            "error decoding patch: json: cannot unmarshal {got} into Go value of type map[string]interface {{}}"
        )));
    }
    if depth(patch) > MAX_DEPTH {
        return Err(PatchError::Malformed("error decoding patch: exceeded max depth".into()));
    }
    let mut merged = target.clone();
    merge_into(&mut merged, patch);
    Ok(merged)
}

/// Merges without a bound on depth, for a patch that was checked.
pub fn merge_into(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(fields) = target else { return };
    for (name, change) in changes {
        if change.is_null() {
            fields.remove(name);
        } else {
            merge_into(fields.entry(name.as_str()).or_insert(Value::Null), change);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_122_null_deletes_objects_merge_and_lists_are_replaced() {
        for (target, patch, expected) in [
            (
                json!({"data": {"a": "1", "b": "2"}}),
                json!({"data": {"a": null, "n": "v"}}),
                json!({"data": {"b": "2", "n": "v"}}),
            ),
            (json!({"l": [1, 2]}), json!({"l": [3]}), json!({"l": [3]})),
            (json!({"a": 1}), json!({"a": {"b": null, "c": 1}}), json!({"a": {"c": 1}})),
            (json!({"a": {"b": 1}}), json!({}), json!({"a": {"b": 1}})),
        ] {
            assert_eq!(merge(&target, &patch), Ok(expected));
        }
    }

    #[test]
    fn a_121_a_merge_patch_must_be_an_object() {
        for patch in [json!([]), json!("x"), json!(null), json!(1)] {
            assert_eq!(merge(&json!({}), &patch).unwrap_err().code(), 400);
        }
    }
}
