//! Validates an object against its schema, with the messages and in the order of upstream's OpenAPI
//! validator.
//!
//! Every value of the object is checked against its schema node. If none of several alternatives
//! (`anyOf`, `oneOf`) fits, the errors of the closest one are reported. Values that an update did not
//! change are not reported.

use super::format::Format;
use super::node::{Additional, Bound, ListType, Node, Range};
use crate::field::{At, Errors, Wrong};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Bounds the number of errors per object.
const ERRORS_MAX: usize = 1000;

/// The path that upstream prints for errors without a path.
const NO_PATH: &str = "<nil>";

pub(super) fn check(node: &Node, new: &At, old: Option<&Value>, errors: &mut Errors) {
    let mut reported = BTreeSet::new();
    for violation in visit(node, new, old).violations {
        if reported.insert((violation.field.clone(), violation.detail.clone())) {
            let Violation { wrong, field, value, detail } = violation;
            errors.push(wrong, field, value.as_ref(), &detail);
        }
    }
}

/// The result of checking a value against a node.
#[derive(Default)]
struct Outcome {
    violations: Vec<Violation>,
    /// How many schema keywords applied: the alternative with the highest number is the closest.
    matches: usize,
}

struct Violation {
    wrong: Wrong,
    field: String,
    value: Option<Value>,
    detail: String,
}

impl Outcome {
    fn is_valid(&self) -> bool {
        self.violations.is_empty()
    }

    fn add(&mut self, wrong: Wrong, field: String, value: Option<Value>, detail: String) {
        if self.violations.len() < ERRORS_MAX {
            self.violations.push(Violation { wrong, field, value, detail });
        }
    }

    /// `spec.n in body should …`
    fn invalid(&mut self, at: &At, value: impl Into<Value>, message: &str) {
        let path = at.path();
        let detail = format!("{path} in body {message}");
        self.add(Wrong::Invalid, path, Some(value.into()), detail);
    }

    fn wrong_type(&mut self, at: &At, expected: &str, found: &str) {
        let path = at.path();
        let detail = format!("{path} in body must be of type {expected}: {found:?}");
        self.add(Wrong::TypeInvalid, path, Some(found.into()), detail);
    }

    fn without_path(&mut self, detail: String) {
        self.add(Wrong::Invalid, NO_PATH.into(), Some("".into()), detail);
    }

    fn merge(&mut self, other: Outcome) {
        self.matches += other.matches;
        let room = ERRORS_MAX.saturating_sub(self.violations.len());
        self.violations.extend(other.violations.into_iter().take(room));
    }
}

fn visit(node: &Node, at: &At, old: Option<&Value>) -> Outcome {
    let mut out = Outcome { violations: Vec::new(), matches: 1 };
    let Some(value) = at.value() else { return out };
    types(node, at, value, &mut out);
    if !value.is_null() {
        combined(node, at, old, &mut out);
    }
    match value {
        Value::String(text) => string(node, at, text, &mut out),
        Value::Number(_) => number(node, at, value, &mut out),
        Value::Array(list) => items(node, at, list, old, &mut out),
        _ => {}
    }
    allowed(node, at, value, &mut out);
    if let Value::Object(map) = value {
        object(node, at, map, old, &mut out);
    }
    if !out.is_valid() && old == Some(value) {
        out.violations.clear();
    }
    out
}

fn types(node: &Node, at: &At, value: &Value, out: &mut Outcome) {
    if node.types.is_empty() {
        return;
    }
    out.matches += 2;
    let is = |ty: &str| node.types.iter().any(|known| known == ty);
    let (found, found_format) = match value {
        Value::Null => ("null", ""),
        Value::Bool(_) => ("boolean", ""),
        Value::String(_) => ("string", ""),
        Value::Array(_) => ("array", ""),
        Value::Object(_) => ("object", ""),
        Value::Number(number) if number.is_f64() => ("number", "float64"),
        Value::Number(_) => ("integer", "int64"),
    };
    let fits = match found {
        "null" => node.nullable || is("null"),
        "integer" => is("integer") || is("number"),
        "number" => is("number") || (is("integer") && value.as_f64().is_some_and(is_whole)),
        other => is(other),
    };
    if fits {
        return;
    }
    match &node.format {
        Some(format) if !matches!(found, "null" | "string" | "array") => {
            out.wrong_type(at, format.name(), found_format);
        }
        _ => out.wrong_type(at, &node.types.join(","), found),
    }
}

fn is_whole(number: f64) -> bool {
    number.fract() == 0.0 && number.abs() < 9_007_199_254_740_992.0
}

fn combined(node: &Node, at: &At, old: Option<&Value>, out: &mut Outcome) {
    if !node.any_of.is_empty() {
        let (valid, closest) = alternatives(&node.any_of, at, old, 1);
        if valid == 0 {
            out.without_path(format!("{:?} must validate at least one schema (anyOf)", at.path()));
        }
        closest.into_iter().for_each(|closest| out.merge(closest));
    }
    if !node.one_of.is_empty() {
        let (valid, closest) = alternatives(&node.one_of, at, old, usize::MAX);
        if valid != 1 {
            let found = match valid {
                0 => "Found none valid".into(),
                many => format!("Found {many} valid alternatives"),
            };
            let path = at.path();
            out.without_path(format!(
                "{path:?} must validate one and only one schema (oneOf). {found}"
            ));
            closest.into_iter().for_each(|closest| out.merge(closest));
        }
    }
    if !node.all_of.is_empty() {
        let mut valid = 0;
        for part in &node.all_of {
            let outcome = visit(part, at, old);
            valid += usize::from(outcome.is_valid());
            out.merge(outcome);
        }
        if valid != node.all_of.len() {
            let none = if valid == 0 { ". None validated" } else { "" };
            out.without_path(format!(
                "{:?} must validate all the schemas (allOf){none}",
                at.path()
            ));
        }
    }
    if let Some(not) = &node.not
        && visit(not, at, old).is_valid()
    {
        out.without_path(format!("{:?} must not validate the schema (not)", at.path()));
    }
}

/// How many of the alternatives fit (stopping at `enough`), and if none does, the violations of the
/// closest one.
fn alternatives(
    parts: &[Node],
    at: &At,
    old: Option<&Value>,
    enough: usize,
) -> (usize, Option<Outcome>) {
    let mut valid = 0;
    let mut closest: Option<Outcome> = None;
    for part in parts {
        let outcome = visit(part, at, old);
        if outcome.is_valid() {
            valid += 1;
            closest = None;
            if valid >= enough {
                break;
            }
        } else if valid == 0 && closest.as_ref().is_none_or(|best| outcome.matches > best.matches) {
            closest = Some(outcome);
        }
    }
    (valid, closest)
}

fn string(node: &Node, at: &At, text: &str, out: &mut Outcome) {
    out.matches += 1;
    // Reports the first failed check, then the format.
    let Range { min, max } = node.length;
    let length = if min.is_some() || max.is_some() { text.chars().count() as u64 } else { 0 };
    if let Some(max) = max.filter(|max| length > *max) {
        let bytes = if max == 1 { "byte" } else { "bytes" };
        let detail = format!("may not be more than {max} {bytes}");
        out.add(Wrong::TooLong, at.path(), None, detail);
    } else if let Some(min) = min.filter(|min| length < *min) {
        out.invalid(at, text, &format!("should be at least {min} chars long"));
    } else if let Some(pattern) = node.pattern.as_ref().filter(|p| !p.matches(text)) {
        out.invalid(at, text, &format!("should match '{}'", pattern.text()));
    }
    if let Some(Format::Text { name, fits }) = &node.format {
        out.matches += 2;
        if !fits(text) {
            let path = at.path();
            let detail = format!("{path} in body must be of type {name}: {text:?}");
            out.add(Wrong::TypeInvalid, path, Some(text.into()), detail);
        }
    }
}

fn number(node: &Node, at: &At, value: &Value, out: &mut Outcome) {
    let Some(number) = value.as_f64() else { return };
    out.matches += 2;
    if let Some(format) = &node.format
        && !format.holds(value)
    {
        let path = at.path();
        out.without_path(format!(
            "Checked value must be of type {} with format {} in {path}",
            node.types.join(","),
            format.name()
        ));
    }
    if let Some(factor) = node.multiple_of
        && !is_multiple(value, factor)
    {
        let detail = format!("should be a multiple of {}", plain(factor));
        out.invalid(at, value.clone(), &detail);
    }
    if let Some(Bound { at: min, exclusive }) = node.minimum {
        let below = match value.as_i64() {
            Some(whole) if is_whole(min) => (whole as i128) < min as i128,
            _ => number < min,
        };
        if below || (exclusive && number == min) {
            let than = if exclusive { "greater than" } else { "greater than or equal to" };
            out.invalid(at, value.clone(), &format!("should be {than} {}", plain(min)));
        }
    }
    if let Some(Bound { at: max, exclusive }) = node.maximum {
        let above = match value.as_i64() {
            Some(whole) if is_whole(max) => (whole as i128) > max as i128,
            _ => number > max,
        };
        if above || (exclusive && number == max) {
            let than = if exclusive { "less than" } else { "less than or equal to" };
            out.invalid(at, value.clone(), &format!("should be {than} {}", plain(max)));
        }
    }
}

fn is_multiple(value: &Value, factor: f64) -> bool {
    match (value.as_i64(), value.as_f64()) {
        (Some(whole), _) if is_whole(factor) && factor != 0.0 => whole % (factor as i64) == 0,
        (_, Some(number)) if factor > 0.0 => {
            // Multiplying by the inverse is more exact than dividing by a fraction.
            let times = if factor < 1.0 { 1.0 / factor * number } else { number / factor };
            (times - times.round()).abs() < 1e-9
        }
        _ => true,
    }
}

/// A number as Go prints it: whole numbers without a fraction, very large or small ones with an exponent.
fn plain(number: f64) -> String {
    let size = number.abs();
    if number == 0.0 {
        "0".into()
    } else if !(1e-4..1e21).contains(&size) {
        let text = format!("{number:e}");
        match text.split_once('e') {
            Some((digits, exponent)) => {
                let (sign, power) = match exponent.strip_prefix('-') {
                    Some(power) => ('-', power),
                    None => ('+', exponent),
                };
                format!("{digits}e{sign}{power:0>2}")
            }
            None => text,
        }
    } else {
        number.to_string()
    }
}

fn items(node: &Node, at: &At, list: &[Value], old: Option<&Value>, out: &mut Outcome) {
    out.matches += 2;
    if let Some(items) = &node.items {
        let before = OldItems::of(&node.list, old);
        for item in at.items() {
            let old = item.value().and_then(|value| before.find(value));
            out.merge(visit(items, &item, old));
        }
    }
    let count = list.len() as u64;
    if let Some(min) = node.count.min.filter(|min| count < *min) {
        out.invalid(at, count, &format!("should have at least {min} items"));
    }
    if let Some(max) = node.count.max.filter(|max| count > *max) {
        too_many(at, count, max, out);
    }
}

fn too_many(at: &At, count: u64, max: u64, out: &mut Outcome) {
    let items = if max == 1 { "item" } else { "items" };
    let detail = format!("must have at most {max} {items}");
    out.add(Wrong::TooMany, at.path(), Some(count.into()), detail);
}

/// The elements of the old list by their keys. Elements of other lists have no identity, so an update
/// cannot be compared with them.
struct OldItems<'o> {
    keys: &'o [String],
    by_key: BTreeMap<String, &'o Value>,
}

impl<'o> OldItems<'o> {
    fn of(list: &'o ListType, old: Option<&'o Value>) -> Self {
        let (ListType::Map(keys), Some(Value::Array(old))) = (list, old) else {
            return OldItems { keys: &[], by_key: BTreeMap::new() };
        };
        let by_key = old.iter().map(|item| (key(keys, item), item)).collect();
        OldItems { keys, by_key }
    }

    fn find(&self, item: &Value) -> Option<&'o Value> {
        if self.by_key.is_empty() {
            return None;
        }
        self.by_key.get(&key(self.keys, item)).copied()
    }
}

fn key(keys: &[String], item: &Value) -> String {
    let values: Vec<_> =
        keys.iter().map(|key| item.get(key).cloned().unwrap_or_default()).collect();
    Value::from(values).to_string()
}

fn allowed(node: &Node, at: &At, value: &Value, out: &mut Outcome) {
    if node.allowed.is_empty() || node.allowed.iter().any(|allowed| same(allowed, value)) {
        return;
    }
    let shown = node.allowed.iter().map(|allowed| match allowed {
        Value::String(text) => format!("{text:?}"),
        other => format!("{:?}", other.to_string()),
    });
    let detail = format!("supported values: {}", shown.collect::<Vec<_>>().join(", "));
    out.add(Wrong::NotSupported, at.path(), Some(value.clone()), detail);
}

/// 1 and 1.0 are the same number.
fn same(a: &Value, b: &Value) -> bool {
    a == b || matches!((a.as_f64(), b.as_f64()), (Some(a), Some(b)) if a == b)
}

fn object(node: &Node, at: &At, map: &Map<String, Value>, old: Option<&Value>, out: &mut Outcome) {
    out.matches += 1;
    let count = map.len() as u64;
    if let Some(min) = node.size.min.filter(|min| count < *min) {
        let detail = format!("{} in body should have at least {min} properties", at.path());
        out.add(Wrong::Invalid, at.path(), Some("".into()), detail);
        return;
    }
    if let Some(max) = node.size.max.filter(|max| count > *max) {
        too_many(at, count, max, out);
        return;
    }
    let before = |name: &str| old.and_then(|old| old.get(name));
    for name in map.keys().filter(|name| !node.properties.contains_key(*name)) {
        match &node.additional {
            Additional::Of(values) => out.merge(visit(values, &at.field(name), before(name))),
            Additional::Refused => {
                let path = at.path();
                let detail = format!("{path}.{name} in body is a forbidden property");
                out.add(Wrong::Invalid, path, Some("".into()), detail);
            }
            Additional::Unsaid | Additional::Allowed => {}
        }
    }
    for (name, property) in &node.properties {
        if map.contains_key(name) {
            out.merge(visit(property, &at.field(name), before(name)));
        }
    }
    for name in &node.required {
        let defaulted = || node.properties.get(name).is_some_and(|node| node.default.is_some());
        if !map.contains_key(name) && !defaulted() {
            out.add(Wrong::Required, at.field(name).path(), None, String::new());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_printed_as_go_prints_them() {
        for (number, text) in [
            (9.0, "9"),
            (-0.5, "-0.5"),
            (1e20, "100000000000000000000"),
            (1e21, "1e+21"),
            (2.5e-7, "2.5e-07"),
            (0.0, "0"),
        ] {
            assert_eq!(plain(number), text);
        }
    }
}
