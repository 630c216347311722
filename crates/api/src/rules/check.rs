//! Checks that several groups share: counts, percentages, names in fields, what may not change.
//!
//! Each one reports in upstream's words. Not here: label selectors (`label_selector`).

use crate::field::{At, Errors, Wrong};
use serde_json::{Value, json};

pub(crate) const IMMUTABLE: &str = "field is immutable";
pub(crate) const NOT_NEGATIVE: &str = "must be greater than or equal to 0";

/// The field may not differ from the old object's.
pub(crate) fn immutable(new: &At, old: &At, errors: &mut Errors) {
    if !same(new, old) {
        errors.invalid(new, IMMUTABLE);
    }
}

/// Absent and null are the same.
pub(crate) fn same(new: &At, old: &At) -> bool {
    new.value().unwrap_or(&Value::Null) == old.value().unwrap_or(&Value::Null)
}

pub(crate) fn not_negative(at: &At, errors: &mut Errors) {
    if at.int().is_some_and(|value| value < 0) {
        errors.invalid(at, NOT_NEGATIVE);
    }
}

pub(crate) fn fields_not_negative(at: &At, names: &[&str], errors: &mut Errors) {
    for name in names {
        not_negative(&at.field(name), errors);
    }
}

/// Invalid, with the value spelled as the caller says: upstream prints some Go structs whose field
/// names and order are not those of the JSON.
pub(crate) fn invalid_shown(errors: &mut Errors, at: &At, shown: &str, detail: &str) {
    errors.push(Wrong::Invalid, at.path(), None, &format!("{shown}: {detail}"));
}

pub(crate) fn required_text(at: &At, detail: &str, errors: &mut Errors) {
    if at.text().is_empty() {
        errors.required(at, detail);
    }
}

/// An empty string is also unsupported here.
pub(crate) fn one_of(at: &At, supported: &[&str], errors: &mut Errors) {
    if !supported.contains(&at.text()) {
        errors.not_supported(at, supported);
    }
}

pub(crate) fn one_of_if_set(at: &At, supported: &[&str], errors: &mut Errors) {
    if at.is_set() {
        one_of(at, supported, errors);
    }
}

/// Reports each complaint of a check on the text at this place.
pub(crate) fn text(at: &At, check: fn(&str) -> Vec<String>, errors: &mut Errors) {
    for complaint in check(at.text()) {
        errors.invalid(at, &complaint);
    }
}

/// A count or a percentage, neither negative.
pub(crate) fn int_or_percent(at: &At, errors: &mut Errors) {
    match at.value() {
        Some(Value::String(text)) if percent(text).is_none() => {
            let expected = "a valid percent string must be a numeric string followed by an ending '%' \
                            (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";
            errors.invalid(at, expected);
        }
        _ => not_negative(at, errors),
    }
}

pub(crate) fn at_most_100_percent(at: &At, errors: &mut Errors) {
    if at.str().and_then(percent).is_some_and(|value| value > 100) {
        errors.invalid(at, "must not be greater than 100%");
    }
}

/// The number in a count or percentage, 0 if it is neither.
pub(crate) fn int_or_percent_value(at: &At) -> i64 {
    at.str().and_then(percent).or(at.int()).unwrap_or(0)
}

fn percent(text: &str) -> Option<i64> {
    let digits = text.strip_suffix('%')?;
    let all_digits = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    all_digits.then(|| digits.parse().unwrap_or(i64::MAX))
}

pub(crate) fn port_number(at: &At, errors: &mut Errors) {
    if !at.int().is_some_and(|port| (1..=65535).contains(&port)) {
        errors.invalid_value(at, at.int().unwrap_or(0), "must be between 1 and 65535, inclusive");
    }
}

/// A port by number or by name.
pub(crate) fn port(at: &At, errors: &mut Errors) {
    match at.str() {
        Some(name) => {
            for complaint in port_name(name) {
                errors.invalid(at, &complaint);
            }
        }
        None => port_number(at, errors),
    }
}

/// What is wrong with an IANA service name.
pub(crate) fn port_name(name: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if name.len() > 15 {
        wrong.push("must be no more than 15 characters".to_owned());
    }
    if !name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-') {
        wrong.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".into());
    }
    if !name.bytes().any(|b| b.is_ascii_lowercase()) {
        wrong.push("must contain at least one letter (a-z)".into());
    }
    if name.contains("--") {
        wrong.push("must not contain consecutive hyphens".into());
    }
    if name.starts_with('-') || name.ends_with('-') {
        wrong.push("must not begin or end with a hyphen".into());
    }
    wrong
}

/// Two values of one list that must differ; reports the later ones.
pub(crate) struct Unique(Vec<Value>);

impl Unique {
    pub(crate) fn new() -> Self {
        Unique(Vec::new())
    }

    /// False if the value was seen before.
    pub(crate) fn add(&mut self, value: impl Into<Value>) -> bool {
        let value = value.into();
        let new = !self.0.contains(&value);
        if new {
            self.0.push(value);
        }
        new
    }
}

/// Puts a zero into every counter that Go would write even when unset.
pub(crate) fn zeroes(object: &mut Value, names: &[&str]) {
    use crate::value::ValueExt as _;
    for name in names {
        object.set_default(name, json!(0));
    }
}
