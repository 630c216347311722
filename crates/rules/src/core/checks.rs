//! Small checks that many fields share, with upstream's messages.

use crate::address_form;
use api::field::{At, Errors};
use api::quantity::Quantity;
use std::net::IpAddr;

pub(super) use crate::check::{port, port_number};

pub(super) const NEGATIVE: &str = "must be greater than or equal to 0";
pub(super) const NOT_POSITIVE: &str = "must be greater than zero";
pub(super) const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];

/// Reports every message as an invalid value.
pub(super) fn each(at: &At, wrong: Vec<String>, errors: &mut Errors) {
    for wrong in wrong {
        errors.invalid_value(at, at.value().cloned().unwrap_or_else(|| "".into()), &wrong);
    }
}

/// A required name that must be valid.
pub(super) fn named(at: &At, check: fn(&str) -> Vec<String>, errors: &mut Errors) {
    if at.text().is_empty() {
        errors.required(at, "");
    } else {
        each(at, check(at.text()), errors);
    }
}

/// An optional name.
pub(super) fn optional_name(at: &At, check: fn(&str) -> Vec<String>, errors: &mut Errors) {
    if !at.text().is_empty() {
        each(at, check(at.text()), errors);
    }
}

/// True if there is text; otherwise the field is required.
pub(super) fn required(at: &At, errors: &mut Errors) -> bool {
    if at.text().is_empty() {
        errors.required(at, "");
        return false;
    }
    true
}

/// One of the supported values; an absent value is an error.
pub(super) fn one_of(at: &At, supported: &[&str], errors: &mut Errors) {
    if required(at, errors) {
        optional_one_of(at, supported, errors);
    }
}

/// One of the supported values, or absent.
pub(super) fn optional_one_of(at: &At, supported: &[&str], errors: &mut Errors) {
    if at.is_set() && !supported.contains(&at.text()) {
        errors.not_supported(at, supported);
    }
}

pub(super) fn non_negative(at: &At, errors: &mut Errors) {
    if at.int().is_some_and(|number| number < 0) {
        errors.invalid(at, NEGATIVE);
    }
}

pub(super) fn in_range(at: &At, min: i64, max: i64, errors: &mut Errors) {
    if let Some(number) = at.int() {
        each(at, api::names::in_range(number, min, max), errors);
    }
}

/// File modes: octal digits for owner, group and others.
pub(super) fn file_mode(at: &At, errors: &mut Errors) {
    if at.int().is_some_and(|mode| !(0..=0o777).contains(&mode)) {
        errors.invalid(at, "must be a number between 0 and 0777 (octal), both inclusive");
    }
}

pub(super) fn ip(at: &At, errors: &mut Errors) -> bool {
    let wrong = address_form::unreadable_ip(at.text());
    if let Some(detail) = wrong {
        errors.invalid_value(at, at.text(), detail);
    }
    wrong.is_none()
}

/// An address that other machines can reach: not loopback, link-local or unspecified.
pub(super) fn non_special_ip(at: &At, errors: &mut Errors) {
    let Ok(address) = at.text().parse::<IpAddr>() else {
        errors.invalid_value(at, at.text(), "must be a valid IP address");
        return;
    };
    if address.is_unspecified() {
        errors.invalid(at, &format!("may not be unspecified ({})", at.text()));
    }
    if address.is_loopback() {
        errors.invalid(at, "may not be in the loopback range (127.0.0.0/8, ::1/128)");
    }
    let (local, multicast) = match address {
        IpAddr::V4(v4) => (v4.is_link_local(), v4.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(v6) => {
            (v6.segments()[0] & 0xffc0 == 0xfe80, v6.segments()[0] & 0xff0f == 0xff02)
        }
    };
    if local {
        errors.invalid(at, "may not be in the link-local range (169.254.0.0/16, fe80::/10)");
    }
    if multicast {
        errors
            .invalid(at, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)");
    }
}

/// A relative path without `..`.
pub(super) fn descending_path(at: &At, errors: &mut Errors) {
    if at.text().starts_with('/') {
        errors.invalid(at, "must be a relative path");
    }
    no_backsteps(at, errors);
}

pub(super) fn no_backsteps(at: &At, errors: &mut Errors) {
    if at.text().split('/').any(|part| part == "..") {
        errors.invalid(at, "must not contain '..'");
    }
}

/// A relative path without `..` that also does not begin with `..`, which agents use themselves.
pub(super) fn local_path(at: &At, errors: &mut Errors) {
    descending_path(at, errors);
    if at.text().starts_with("..") && !at.text().starts_with("../") {
        errors.invalid(at, "must not start with '..'");
    }
}

/// The quantity in a field. The decoder has rejected malformed quantities.
pub(super) fn quantity(at: &At) -> Option<Quantity> {
    at.value().and_then(Quantity::from_value)
}

/// Finds duplicates in a sequence of values.
#[derive(Default)]
pub(super) struct Duplicates<T>(Vec<T>);

impl<T: PartialEq> Duplicates<T> {
    /// Adds a value; true if it was added before.
    pub(super) fn repeats(&mut self, value: T) -> bool {
        let before = self.0.contains(&value);
        if !before {
            self.0.push(value);
        }
        before
    }

    pub(super) fn contains(&self, value: &T) -> bool {
        self.0.contains(value)
    }
}
