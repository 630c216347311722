//! NetworkPolicies.

use crate::{address_form, check, label_selector};
use api::field::{At, Errors};
use api::value::ValueExt;
use serde_json::{Value, json};
use std::net::IpAddr;

/// Defaults of a NetworkPolicy.
pub(super) fn default(policy: &mut Value) {
    let spec = policy.object("spec");
    spec.object("podSelector");
    for rules in ["ingress", "egress"] {
        for port in spec.list_mut(rules).flat_map(|rule| rule.list_mut("ports")) {
            port.set_default("protocol", "TCP");
        }
    }
    let list = |spec: &Value, name| spec.at(&[name]).and_then(Value::as_array).map_or(0, Vec::len);
    if list(spec, "policyTypes") == 0 {
        let both = list(spec, "egress") > 0;
        let types = if both { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
        spec.map().insert("policyTypes".into(), types);
    }
}

pub(super) fn validate(policy: &At, errors: &mut Errors) {
    let spec = policy.field("spec");
    label_selector::validate(&spec.field("podSelector"), errors);
    for (rules, peers) in [("ingress", "from"), ("egress", "to")] {
        for rule in spec.field(rules).items() {
            for port in rule.field("ports").items() {
                validate_port(&port, errors);
            }
            for peer in rule.field(peers).items() {
                validate_peer(&peer, errors);
            }
        }
    }
    if check::is_new(policy) {
        unambiguous_ranges(policy, &[], errors);
    }
    let types = spec.field("policyTypes");
    if types.len() > 2 {
        errors.invalid(&types, "may not specify more than two policyTypes");
        return;
    }
    for kind in types.items() {
        check::one_of(&kind, &["Egress", "Ingress"], errors);
    }
}

fn validate_port(at: &At, errors: &mut Errors) {
    check::one_of_if_set(&at.field("protocol"), &["TCP", "UDP", "SCTP"], errors);
    let (port, end) = (at.field("port"), at.field("endPort"));
    if port.is_set() {
        check::port(&port, errors);
        match (port.int(), end.int()) {
            (Some(first), Some(last)) => {
                if last < first {
                    errors.invalid(&end, "must be greater than or equal to `port`");
                }
                check::port_number(&end, errors);
            }
            (None, Some(_)) => {
                errors.invalid(&end, "may not be specified when `port` is non-numeric");
            }
            (_, None) => {}
        }
    } else if end.is_set() {
        errors.invalid(&end, "may not be specified when `port` is not specified");
    }
}

fn validate_peer(peer: &At, errors: &mut Errors) {
    let mut selectors = 0;
    for name in ["podSelector", "namespaceSelector"] {
        let selector = peer.field(name);
        if selector.is_set() {
            selectors += 1;
            label_selector::validate(&selector, errors);
        }
    }
    let block = peer.field("ipBlock");
    if block.is_set() {
        validate_block(&block, errors);
    }
    match (selectors, block.is_set()) {
        (0, false) => errors.required(peer, "must specify a peer"),
        (1.., true) => {
            errors.forbidden(peer, "may not specify both ipBlock and another peer");
        }
        _ => {}
    }
}

fn validate_block(block: &At, errors: &mut Errors) {
    let range = block.field("cidr");
    if range.text().is_empty() {
        errors.required(&range, "");
        return;
    }
    let Some(whole) = readable(&range, errors) else { return };
    for except in block.field("except").items() {
        match readable(&except, errors) {
            None => {}
            Some(part) if !is_strictly_inside(part, whole) => {
                errors.invalid(&except, "must be a strict subset of `cidr`");
            }
            Some(_) => {}
        }
    }
}

/// The range, or an error.
fn readable(at: &At, errors: &mut Errors) -> Option<(IpAddr, u8)> {
    if let Some(detail) = address_form::unreadable_cidr(at.text()) {
        errors.invalid(at, detail);
    }
    address_form::cidr(at.text())
}

pub(super) fn validate_update(new: &At, old: &At, errors: &mut Errors) {
    let mut known = Vec::new();
    each_range(old, |range| known.push(range.text().to_owned()));
    unambiguous_ranges(new, &known, errors);
}

/// Ranges that programs read in different ways are refused, unless they are known (NET-23).
fn unambiguous_ranges(policy: &At, known: &[String], errors: &mut Errors) {
    each_range(policy, |range| {
        let is_known = known.iter().any(|known| known == range.text());
        if let Some(detail) = address_form::ambiguous_cidr(range.text()).filter(|_| !is_known) {
            errors.invalid(range, detail);
        }
    });
}

fn each_range(policy: &At, mut visit: impl FnMut(&At)) {
    let spec = policy.field("spec");
    for (rules, peers) in [("ingress", "from"), ("egress", "to")] {
        for rule in spec.field(rules).items() {
            for peer in rule.field(peers).items() {
                let block = peer.field("ipBlock");
                visit(&block.field("cidr"));
                block.field("except").items().for_each(|except| visit(&except));
            }
        }
    }
}

fn is_strictly_inside(part: (IpAddr, u8), whole: (IpAddr, u8)) -> bool {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(address) => (u128::from(u32::from(address)), 32u32),
        IpAddr::V6(address) => (u128::from(address), 128),
    };
    let ((a, width), (b, other)) = (bits(part.0), bits(whole.0));
    let shift = width.saturating_sub(u32::from(whole.1));
    let network = |address: u128| address.checked_shr(shift).unwrap_or(0);
    width == other && part.1 > whole.1 && network(a) == network(b)
}
