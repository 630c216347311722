//! JSON patch (RFC 6902): a list of operations, all or nothing.
//!
//! Upstream's library differs from the RFC, and clients rely on it: `replace` adds an absent key, an
//! absent key equals null, an index may be negative. Operations and messages follow that library. The size
//! of copies and the depth of nesting are bounded.

use super::{MAX_DEPTH, PatchError, depth};
use serde_json::{Map, Value};

const MAX_OPERATIONS: usize = 10_000;

/// Total size of all `copy` operations of one patch in bytes of JSON, so that a small patch cannot create
/// a huge object. Upstream: `JSONPatchMaxCopyBytes`.
const MAX_COPIED: usize = 3 * 1024 * 1024;

const MISSING: &str = "missing value";
const TEST_FAILED: &str = "test failed";

type Operation = Map<String, Value>;

/// The object after all operations of the patch.
pub fn json(target: &Value, patch: &[u8]) -> Result<Value, PatchError> {
    let operations: Vec<Operation> = serde_json::from_slice(patch)
        .map_err(|error| PatchError::Malformed(format!("error decoding patch: {error}")))?;
    if operations.len() > MAX_OPERATIONS {
        return Err(PatchError::TooManyOperations { max: MAX_OPERATIONS, got: operations.len() });
    }
    let mut patched = target.clone();
    let mut copied = 0;
    for operation in operations {
        let done = match operation.get("op").and_then(Value::as_str).unwrap_or("unknown") {
            "add" => add(&mut patched, &operation),
            "remove" => remove(&mut patched, &operation),
            "replace" => replace(&mut patched, &operation),
            "move" => move_value(&mut patched, &operation),
            "test" => test(&mut patched, &operation),
            "copy" => copy(&mut patched, &operation, &mut copied),
            other => Err(format!("Unexpected kind: {other}")),
        };
        done.map_err(PatchError::NotApplicable)?;
    }
    Ok(patched)
}

fn add(document: &mut Value, operation: &Operation) -> Result<(), String> {
    let path = text(operation, "path")
        .ok_or_else(|| format!("add operation failed to decode path: {MISSING}"))?;
    let (container, key) = find(document, path).ok_or_else(|| {
        format!("add operation does not apply: doc is missing path: \"{path}\": {MISSING}")
    })?;
    insert(container, path, &key, value(operation))
        .map_err(|why| format!("error in add for path: '{path}': {why}"))
}

fn remove(document: &mut Value, operation: &Operation) -> Result<(), String> {
    let path = text(operation, "path")
        .ok_or_else(|| format!("remove operation failed to decode path: {MISSING}"))?;
    let (container, key) = find(document, path).ok_or_else(|| {
        format!("remove operation does not apply: doc is missing path: \"{path}\": {MISSING}")
    })?;
    take(container, &key)
        .map(drop)
        .map_err(|why| format!("error in remove for path: '{path}': {why}"))
}

fn replace(document: &mut Value, operation: &Operation) -> Result<(), String> {
    let path = path(operation, "replace")?;
    if path.is_empty() {
        let new = value(operation);
        if !new.is_object() && !new.is_array() {
            return Err("replace operation value must be object or array".into());
        }
        *document = new;
        return Ok(());
    }
    let (container, key) = find(document, path).ok_or_else(|| {
        format!("replace operation does not apply: doc is missing path: {path}: {MISSING}")
    })?;
    let new = bounded(path, value(operation))?;
    match container {
        Value::Array(list) => {
            let at = index(&key, list.len()).map_err(|_| {
                format!("replace operation does not apply: doc is missing key: {path}: {MISSING}")
            })?;
            list[at] = new;
        }
        Value::Object(map) => drop(map.insert(key, new)),
        _ => {}
    }
    Ok(())
}

fn move_value(document: &mut Value, operation: &Operation) -> Result<(), String> {
    let from = from(operation, "move")?;
    let (container, key) = find(document, from).ok_or_else(|| {
        format!("move operation does not apply: doc is missing from path: {from}: {MISSING}")
    })?;
    let carried =
        take(container, &key).map_err(|why| format!("error in move for path: '{key}': {why}"))?;
    let path = path(operation, "move")?;
    let (container, key) = find(document, path).ok_or_else(|| {
        format!("move operation does not apply: doc is missing destination path: {path}: {MISSING}")
    })?;
    insert(container, path, &key, carried)
        .map_err(|why| format!("error in move for path: '{path}': {why}"))
}

fn test(document: &mut Value, operation: &Operation) -> Result<(), String> {
    let path = path(operation, "test")?;
    let expected = value(operation);
    let equal = if path.is_empty() {
        *document == expected
    } else {
        let (container, key) = find(document, path).ok_or_else(|| {
            format!("test operation does not apply: is missing path: {path}: {MISSING}")
        })?;
        let found = get(container, &key)
            .map_err(|why| format!("error in test for path: '{path}': {why}"))?;
        *found.unwrap_or(&Value::Null) == expected
    };
    if equal { Ok(()) } else { Err(format!("testing value {path} failed: {TEST_FAILED}")) }
}

fn copy(document: &mut Value, operation: &Operation, copied: &mut usize) -> Result<(), String> {
    let from = from(operation, "copy")?;
    let (container, key) = find(document, from).ok_or_else(|| {
        format!("copy operation does not apply: doc is missing from path: {from}: {MISSING}")
    })?;
    let carried = get(container, &key)
        .map_err(|why| format!("error in copy for from: '{from}': {why}"))?
        .cloned()
        .unwrap_or_default();
    let path = text(operation, "path")
        .ok_or_else(|| format!("copy operation failed to decode path: {MISSING}"))?;
    let (container, key) = find(document, path).ok_or_else(|| {
        format!("copy operation does not apply: doc is missing destination path: {path}: {MISSING}")
    })?;
    *copied += size(&carried);
    if *copied > MAX_COPIED {
        return Err(format!(
            "Unable to complete the copy, the accumulated size increase of copy is {copied}, exceeding the limit {MAX_COPIED}"
        ));
    }
    insert(container, path, &key, carried)
        .map_err(|why| format!("error while adding value during copy: {why}"))
}

fn text<'o>(operation: &'o Operation, field: &str) -> Option<&'o str> {
    operation.get(field).and_then(Value::as_str)
}

fn path<'o>(operation: &'o Operation, name: &str) -> Result<&'o str, String> {
    text(operation, "path").ok_or_else(|| {
        format!("{name} operation failed to decode path: operation missing path field: {MISSING}")
    })
}

fn from<'o>(operation: &'o Operation, name: &str) -> Result<&'o str, String> {
    text(operation, "from").ok_or_else(|| {
        format!("{name} operation failed to decode from: operation, missing from field: {MISSING}")
    })
}

/// An operation without a value has the value null.
fn value(operation: &Operation) -> Value {
    operation.get("value").cloned().unwrap_or_default()
}

/// The list or object that a path leads into, and the last part of the path.
fn find<'v>(document: &'v mut Value, path: &str) -> Option<(&'v mut Value, String)> {
    let (_, rest) = path.split_once('/')?;
    let (parents, key) = rest.rsplit_once('/').map_or((None, rest), |(a, b)| (Some(a), b));
    let mut at = document;
    for part in parents.into_iter().flat_map(|parents| parents.split('/')) {
        let part = unescaped(part);
        at = match at {
            Value::Object(map) => map.get_mut(&part)?,
            Value::Array(list) => {
                let place = index(&part, list.len()).ok()?;
                &mut list[place]
            }
            _ => return None,
        };
    }
    (at.is_object() || at.is_array()).then(|| (at, unescaped(key)))
}

fn unescaped(part: &str) -> String {
    part.replace("~1", "/").replace("~0", "~")
}

/// The value under a key; `None` if an object lacks the key.
fn get<'v>(container: &'v Value, key: &str) -> Result<Option<&'v Value>, String> {
    match container {
        Value::Array(list) => index(key, list.len()).map(|at| list.get(at)),
        _ => Ok(container.get(key)),
    }
}

fn insert(container: &mut Value, path: &str, key: &str, value: Value) -> Result<(), String> {
    let value = bounded(path, value)?;
    match container {
        Value::Array(list) if key == "-" => list.push(value),
        Value::Array(list) => {
            number(key)
                .map_err(|why| format!("value was not a proper array index: '{key}': {why}"))?;
            let at = index(key, list.len() + 1)?;
            list.insert(at, value);
        }
        Value::Object(map) => drop(map.insert(key.to_owned(), value)),
        _ => {}
    }
    Ok(())
}

fn take(container: &mut Value, key: &str) -> Result<Value, String> {
    match container {
        Value::Array(list) => index(key, list.len()).map(|at| list.remove(at)),
        Value::Object(map) => map
            .remove(key)
            .ok_or_else(|| format!("Unable to remove nonexistent key: {key}: {MISSING}")),
        _ => Ok(Value::Null),
    }
}

/// An index into a list of that length; a negative one counts from the end.
fn index(key: &str, length: usize) -> Result<usize, String> {
    let place = number(key)?;
    let from_start =
        if place < 0 { place.checked_add_unsigned(length as u64) } else { Some(place) };
    from_start
        .and_then(|at| usize::try_from(at).ok())
        .filter(|at| *at < length)
        .ok_or_else(|| format!("Unable to access invalid index: {place}: invalid index referenced"))
}

fn number(key: &str) -> Result<i64, String> {
    use std::num::IntErrorKind::{NegOverflow, PosOverflow};
    key.parse().map_err(|error: std::num::ParseIntError| {
        let why = match error.kind() {
            PosOverflow | NegOverflow => "value out of range",
            _ => "invalid syntax",
        };
        format!("strconv.Atoi: parsing {key:?}: {why}")
    })
}

/// Rejects a value that would be nested too deep at this path.
fn bounded(path: &str, value: Value) -> Result<Value, String> {
    if path.matches('/').count() + depth(&value) > MAX_DEPTH {
        return Err("the patched object is nested too deeply".into());
    }
    Ok(value)
}

/// Approximate length of the value as JSON.
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

    /// Where upstream's library differs from the RFC.
    #[test]
    fn a_122_absent_keys_are_null_and_indices_may_be_negative() {
        let object = || json!({"a": null, "l": [1, 2, 3], "m": {"x": "y"}});
        let op =
            |op: &str, path: &str, value: Value| json!({"op": op, "path": path, "value": value});
        let cases = [
            (op("replace", "/b", json!(1)), Ok("/b"), json!(1)),
            (op("replace", "/m/z", json!("w")), Ok("/m"), json!({"x": "y", "z": "w"})),
            (op("replace", "/l/-1", json!(4)), Ok("/l"), json!([1, 2, 4])),
            (op("test", "/b", json!(null)), Ok("/m"), json!({"x": "y"})),
            (op("test", "/a", json!(null)), Ok("/m"), json!({"x": "y"})),
            (json!({"op": "test", "path": "/b"}), Ok("/m"), json!({"x": "y"})),
            (op("add", "/l/-1", json!(4)), Ok("/l"), json!([1, 2, 3, 4])),
            (op("remove", "/l/-3", json!(null)), Ok("/l"), json!([2, 3])),
            (json!({"op": "copy", "from": "/b", "path": "/c"}), Ok("/c"), json!(null)),
            (
                json!({"op": "move", "from": "/m/x", "path": "/l/0"}),
                Ok("/l"),
                json!(["y", 1, 2, 3]),
            ),
            (
                op("replace", "/l/3", json!(1)),
                Err("replace operation does not apply: doc is missing key: /l/3: missing value"),
                json!(null),
            ),
            (
                op("replace", "/b/c", json!(1)),
                Err("replace operation does not apply: doc is missing path: /b/c: missing value"),
                json!(null),
            ),
            (op("test", "/b", json!(1)), Err("testing value /b failed: test failed"), json!(null)),
            (
                op("test", "/m", json!(null)),
                Err("testing value /m failed: test failed"),
                json!(null),
            ),
            (
                op("remove", "/b", json!(null)),
                Err(
                    "error in remove for path: '/b': Unable to remove nonexistent key: b: missing value",
                ),
                json!(null),
            ),
            (
                op("add", "/l/-5", json!(1)),
                Err(
                    "error in add for path: '/l/-5': Unable to access invalid index: -5: invalid index referenced",
                ),
                json!(null),
            ),
            (
                op("add", "/l/x", json!(1)),
                Err(
                    "error in add for path: '/l/x': value was not a proper array index: 'x': strconv.Atoi: parsing \"x\": invalid syntax",
                ),
                json!(null),
            ),
            (op("jump", "/l", json!(1)), Err("Unexpected kind: jump"), json!(null)),
        ];
        for (operation, expected, value) in cases {
            let patch = json!([operation]).to_string();
            match (json(&object(), patch.as_bytes()), expected) {
                (Ok(patched), Ok(path)) => {
                    assert_eq!(patched.pointer(path), Some(&value), "{operation}");
                }
                (result, expected) => {
                    let outcome = result.map_err(|error| error.to_string());
                    assert_eq!(
                        outcome,
                        expected.map(Value::from).map_err(str::to_owned),
                        "{operation}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_121_more_than_ten_thousand_operations_are_rejected() {
        let one = json!({"op": "add", "path": "/a", "value": 1});
        assert!(patched(json!({}), Value::Array(vec![one.clone(); 10_000])).is_ok());
        assert_eq!(patched(json!({}), Value::Array(vec![one; 10_001])), Err(413));
    }

    #[test]
    fn the_size_of_copies_is_bounded() {
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
