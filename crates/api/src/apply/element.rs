//! One step of a path in a field set, in the notation of `fieldsV1`.
//!
//! `f:name` a field, `k:{"name":"a"}` a list element by its keys, `v:"a"` one by its value,
//! `i:3` one by its place.

use crate::schema::MapKey;
use serde_json::Value;
use std::fmt::Write as _;

pub(super) fn field(name: &str) -> String {
    let mut element = String::with_capacity(name.len() + 2);
    element.push_str("f:");
    element.push_str(name);
    element
}

pub(super) fn value(value: &Value) -> String {
    format!("v:{value}")
}

/// The path element of an item in a list map. The error is the key field that the item lacks.
pub(super) fn keyed<'k>(item: &Value, keys: &'k [MapKey]) -> Result<String, &'k str> {
    let mut element = String::from("k:{");
    let mut sorted: Vec<&MapKey> = keys.iter().collect();
    sorted.sort_by(|a, b| a.field.cmp(&b.field));
    for (place, key) in sorted.into_iter().enumerate() {
        let value = item.get(&key.field).filter(|value| !value.is_null());
        let value = value.or(key.default.as_ref()).ok_or(key.field.as_str())?;
        let comma = if place == 0 { "" } else { "," };
        let _ = write!(element, "{comma}{}:{value}", Value::from(key.field.as_str()));
    }
    element.push('}');
    Ok(element)
}

/// The element in canonical notation, or `None` if it is not a path element.
pub(super) fn canonical(element: String) -> Option<String> {
    let (kind, rest) = element.split_at_checked(2)?;
    match kind {
        "f:" => Some(element),
        "k:" => match serde_json::from_str(rest).ok()? {
            keys @ Value::Object(_) => Some(format!("k:{keys}")),
            _ => None,
        },
        "v:" => Some(value(&serde_json::from_str(rest).ok()?)),
        "i:" => Some(format!("i:{}", rest.parse::<i64>().ok()?)),
        _ => None,
    }
}

/// Appends the element in readable form: `.image`, `[name="app"]`, `[="x"]`, `[3]`.
pub(super) fn show(element: &str, path: &mut String) {
    let (kind, rest) = element.split_at_checked(2).unwrap_or(("f:", element));
    let _ = match kind {
        "k:" => match serde_json::from_str::<Value>(rest) {
            Ok(Value::Object(keys)) => {
                let keys: Vec<_> =
                    keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
                write!(path, "[{}]", keys.join(","))
            }
            _ => write!(path, "[{rest}]"),
        },
        "v:" => write!(path, "[={rest}]"),
        "i:" => write!(path, "[{rest}]"),
        _ => write!(path, ".{rest}"),
    };
}
