//! JSON patch (RFC 6902): a list of operations, all or nothing.
//!
//! The operations themselves are the json-patch crate's. Here is what a server must add: bounds
//! on how many there are, how much they may copy and how deep they may nest.

use super::{MAX_DEPTH, PatchError, depth};
use json_patch::PatchOperation;
use serde_json::Value;

const MAX_OPERATIONS: usize = 10_000;

/// How much all copies and moves of one patch may carry together, in bytes of JSON, so that a
/// small patch cannot grow an object without end. Upstream: `JSONPatchMaxCopyBytes`.
const MAX_CARRIED: usize = 3 * 1024 * 1024;

/// The object after all operations of the patch.
pub fn json(target: &Value, patch: &[u8]) -> Result<Value, PatchError> {
    let operations: Vec<serde_json::Map<String, Value>> = serde_json::from_slice(patch)
        .map_err(|error| PatchError::Malformed(format!("error decoding patch: {error}")))?;
    if operations.len() > MAX_OPERATIONS {
        return Err(PatchError::TooManyOperations { max: MAX_OPERATIONS, got: operations.len() });
    }
    let mut patched = target.clone();
    let mut carried = 0;
    for operation in operations {
        let operation: PatchOperation = serde_json::from_value(Value::Object(operation))
            .map_err(|error| PatchError::NotApplicable(error.to_string()))?;
        bound(&patched, &operation, &mut carried)?;
        json_patch::patch_unsafe(&mut patched, std::slice::from_ref(&operation))
            .map_err(|error| PatchError::NotApplicable(error.to_string()))?;
    }
    Ok(patched)
}

/// Refuses an operation that would grow the object too far.
fn bound(
    object: &Value,
    operation: &PatchOperation,
    carried: &mut usize,
) -> Result<(), PatchError> {
    let inserted = match operation {
        PatchOperation::Add(add) => depth(&add.value),
        PatchOperation::Replace(replace) => depth(&replace.value),
        PatchOperation::Move(op) => carry(object, op.from.as_str(), carried)?,
        PatchOperation::Copy(op) => carry(object, op.from.as_str(), carried)?,
        PatchOperation::Remove(_) | PatchOperation::Test(_) => return Ok(()),
    };
    if operation.path().count() + inserted > MAX_DEPTH {
        return Err(PatchError::NotApplicable("the patched object is nested too deeply".into()));
    }
    Ok(())
}

/// Charges a copy or move, and answers how deep what it carries is nested.
fn carry(object: &Value, from: &str, carried: &mut usize) -> Result<usize, PatchError> {
    let Some(value) = object.pointer(from) else {
        return Ok(0); // The operation itself will say so.
    };
    *carried += size(value);
    if *carried > MAX_CARRIED {
        return Err(PatchError::NotApplicable(format!(
            "Unable to complete the copy, the accumulated size increase of copy is {carried}, exceeding the limit {MAX_CARRIED}"
        )));
    }
    Ok(depth(value))
}

/// About the length of the value as JSON.
fn size(value: &Value) -> usize {
    let mut total = 0;
    let mut left = vec![value];
    while let Some(value) = left.pop() {
        total += match value {
            Value::String(text) => text.len() + 2,
            Value::Array(list) => {
                left.extend(list);
                list.len() + 1
            }
            Value::Object(map) => {
                left.extend(map.values());
                map.keys().map(|key| key.len() + 4).sum::<usize>() + 1
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => 4,
        };
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn patched(target: Value, patch: Value) -> Result<Value, u16> {
        json(&target, patch.to_string().as_bytes()).map_err(|error| error.code())
    }

    #[test]
    fn a_122_operations_do_what_rfc_6902_says() {
        let cases = [
            (
                json!({"a": 1}),
                json!([{"op": "add", "path": "/a", "value": 2}]),
                Ok(json!({"a": 2})),
            ),
            (
                json!({"l": [1]}),
                json!([{"op": "add", "path": "/l/-", "value": 2}]),
                Ok(json!({"l": [1, 2]})),
            ),
            (
                json!({"a/b": 1, "c~d": 2}),
                json!([{"op": "remove", "path": "/a~1b"}, {"op": "remove", "path": "/c~0d"}]),
                Ok(json!({})),
            ),
            (json!({"a": 1}), json!([{"op": "test", "path": "/a", "value": 2}]), Err(422)),
            (json!({"a": 1}), json!([{"op": "remove", "path": "/b"}]), Err(422)),
            (json!({"a": 1}), json!([{"op": "add", "path": "/b/c", "value": 1}]), Err(422)),
            (json!({"a": 1}), json!([{"op": "jump", "path": "/a"}]), Err(422)),
            (json!({"a": 1}), json!({"not": "a list"}), Err(400)),
            (json!({"a": 1}), json!([1]), Err(400)),
        ];
        for (target, patch, expected) in cases {
            assert_eq!(patched(target, patch.clone()), expected, "{patch}");
        }
    }

    #[test]
    fn a_121_more_than_ten_thousand_operations_are_too_many() {
        let one = json!({"op": "add", "path": "/a", "value": 1});
        assert!(patched(json!({}), Value::Array(vec![one.clone(); 10_000])).is_ok());
        assert_eq!(patched(json!({}), Value::Array(vec![one; 10_001])), Err(413));
    }

    #[test]
    fn a_patch_cannot_grow_an_object_without_end() {
        let doubling = vec![json!({"op": "copy", "from": "/l", "path": "/l/-"}); 60];
        assert_eq!(patched(json!({"l": ["0123456789"]}), Value::Array(doubling)), Err(422));
        let deep = format!("/a{}", "/a".repeat(200));
        let mut nested = json!({});
        for _ in 0..100 {
            nested = json!({ "a": nested });
        }
        let patch = json!([{"op": "copy", "from": "/n", "path": deep}]);
        assert_eq!(patched(json!({"n": nested}), patch), Err(422));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = json(&json!({"a": [1, {"b": 2}]}), &bytes);
        }

        #[test]
        fn arbitrary_operations_never_panic(
            operations in proptest::collection::vec(
                ("add|remove|replace|move|copy|test", "(/(a|b|-|0|1|5|~0|~2)){0,4}", "(/(a|b|0)){0,3}"),
                0..12,
            )
        ) {
            let operations: Vec<Value> = operations
                .into_iter()
                .map(|(op, path, from)| json!({"op": op, "path": path, "from": from, "value": {"a": [1]}}))
                .collect();
            let target = json!({"a": [1, {"b": 2}], "b": {"a": 1}});
            let _ = json(&target, Value::Array(operations).to_string().as_bytes());
        }
    }
}
