//! Checks that several groups share: counts, percentages, names, immutable fields.
//!
//! Messages are upstream's. Not here: label selectors (`label_selector`).

use api::field::{At, Errors, Wrong};
use api::{metadata, names};
use serde_json::{Value, json};

pub(crate) use api::metadata::{IMMUTABLE, immutable};

pub(crate) const NOT_NEGATIVE: &str = "must be greater than or equal to 0";

/// Only stored objects have a resourceVersion. They may violate rules that became stricter later.
pub(crate) fn is_new(object: &At) -> bool {
    object.field("metadata").field("resourceVersion").text().is_empty()
}

/// Equal as clients see it.
pub(crate) fn same(new: &At, old: &At) -> bool {
    metadata::same(new.value(), old.value())
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

/// Invalid, with the given text as value: upstream prints some Go structs, whose field names and order
/// differ from the JSON.
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

/// Reports each error of a check of the text at this place.
pub(crate) fn text(at: &At, check: fn(&str) -> Vec<String>, errors: &mut Errors) {
    for complaint in check(at.text()) {
        errors.invalid(at, &complaint);
    }
}

/// A count or a percentage, neither negative.
pub(crate) fn int_or_percent(at: &At, errors: &mut Errors) {
    match at.value() {
        Some(Value::String(_)) => text(at, names::percent, errors),
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
    let port = at.int().unwrap_or(0);
    for complaint in names::port_number(port) {
        errors.invalid_value(at, port, &complaint);
    }
}

/// A port by number or by name.
pub(crate) fn port(at: &At, errors: &mut Errors) {
    match at.str() {
        Some(_) => text(at, names::port_name, errors),
        None => port_number(at, errors),
    }
}

/// A DNS subdomain, a slash and something: `acme.io/foo`.
pub(crate) fn domain_prefixed_path(at: &At, errors: &mut Errors) {
    let prefixed = at.text().split_once('/').is_some_and(|(domain, path)| {
        names::dns1123_subdomain(domain).is_empty() && !path.is_empty()
    });
    if !prefixed {
        errors.invalid(at, "must be a domain-prefixed path (such as \"acme.io/foo\")");
    }
}

/// The values of a list that must all differ.
pub(crate) struct Unique(Vec<Value>);

impl Unique {
    pub(crate) fn new() -> Self {
        Unique(Vec::new())
    }

    /// False if the value was added before.
    pub(crate) fn add(&mut self, value: impl Into<Value>) -> bool {
        let value = value.into();
        let new = !self.0.contains(&value);
        if new {
            self.0.push(value);
        }
        new
    }
}

/// Sets counters to zero that Go writes even when they are unset.
pub(crate) fn zeroes(object: &mut Value, names: &[&str]) {
    use api::value::ValueExt as _;
    for name in names {
        object.set_default(name, json!(0));
    }
}
