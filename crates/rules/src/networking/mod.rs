//! Rules of the `networking.k8s.io` kinds: ingresses, network policies, IP addresses and ranges.

use super::{Generation, Rules, address_form, check};
use api::field::{At, Errors};
use api::names;
use api::names::NameRule;
use api::value::ValueExt;
use serde_json::json;
use std::net::IpAddr;

mod ingress;
mod network_policy;

pub(crate) fn rules(kind: &str) -> Rules {
    match kind {
        "Ingress" => Rules {
            default: ingress::default,
            prepare_create: ingress::default,
            validate: ingress::validate,
            generation: Generation::Spec,
            ..Rules::NONE
        },
        "IngressClass" => Rules {
            default: |class| {
                if class.at(&["spec", "parameters"]).is_some() {
                    class.object("spec").object("parameters").set_default("scope", "Cluster");
                }
                class.object("spec");
            },
            validate: ingress::validate_class,
            validate_update: |new, old, errors| {
                let (new, old) = (new.field("spec"), old.field("spec"));
                check::immutable(&new.field("controller"), &old.field("controller"), errors);
            },
            generation: Generation::Spec,
            ..Rules::NONE
        },
        "NetworkPolicy" => Rules {
            default: network_policy::default,
            validate: network_policy::validate,
            validate_update: network_policy::validate_update,
            generation: Generation::Spec,
            ..Rules::NONE
        },
        "IPAddress" => Rules {
            validate: validate_address,
            validate_update: |new, old, errors| {
                let (new, old) = (new.field("spec"), old.field("spec"));
                check::immutable(&new.field("parentRef"), &old.field("parentRef"), errors);
            },
            name: NameRule::Own,
            ..Rules::NONE
        },
        "ServiceCIDR" => Rules {
            default: |range| {
                range.object("spec");
                range.object("status");
            },
            prepare_create: |range| {
                range.map().insert("status".into(), json!({}));
            },
            validate: validate_range,
            validate_update: validate_range_update,
            ..Rules::NONE
        },
        _ => Rules::NONE,
    }
}

/// The name is the address in canonical form.
fn validate_address(address: &At, errors: &mut Errors) {
    let metadata = address.field("metadata");
    let name = metadata.field("name");
    let form = || address_form::ambiguous_ip(name.text()).filter(|_| check::is_new(address));
    if let Some(detail) = address_form::unreadable_ip(name.text()).or_else(form) {
        errors.invalid(&name, detail);
    } else if let Ok(canonical) = name.text().parse::<IpAddr>().map(|ip| ip.to_string())
        && canonical != name.text()
    {
        errors.invalid(&name, &format!("must be in canonical form ({canonical:?})"));
    }
    let spec = address.field("spec");
    let parent = spec.field("parentRef");
    if !parent.is_set() {
        errors.required(&parent, "");
        return;
    }
    for name in ["resource", "name"] {
        let at = parent.field(name);
        if at.text().is_empty() {
            errors.required(&at, "");
        } else {
            check::text(&at, names::path_segment, errors);
        }
    }
    for name in ["group", "namespace"] {
        let at = parent.field(name);
        if !at.text().is_empty() {
            let form =
                if name == "group" { names::dns1123_subdomain } else { names::dns1123_label };
            check::text(&at, form, errors);
        }
    }
}

fn validate_range(range: &At, errors: &mut Errors) {
    let spec = range.field("spec");
    let ranges = spec.field("cidrs");
    if ranges.is_empty() {
        errors.required(&ranges, "at least one CIDR required");
        return;
    }
    if ranges.len() > 2 {
        errors.invalid(&ranges, "may only hold up to 2 values");
        return;
    }
    let mut families = Vec::new();
    for text in ranges.items() {
        let form = || address_form::ambiguous_cidr(text.text()).filter(|_| check::is_new(range));
        if let Some(detail) = address_form::unreadable_cidr(text.text()).or_else(form) {
            errors.invalid(&text, detail);
        } else {
            families.push(!text.text().contains(':'));
        }
    }
    if families.len() == 2 && families[0] == families[1] {
        errors.invalid(
            &ranges,
            "must specify one IP range of each IP family when 2 IP ranges are specified",
        );
    }
}

/// A range of the other address family may be added; existing ranges are immutable.
fn validate_range_update(new: &At, old: &At, errors: &mut Errors) {
    let (new, old) = (new.field("spec"), old.field("spec"));
    let (new, old) = (new.field("cidrs"), old.field("cidrs"));
    let grown = old.len() == 1 && new.len() == 2 && {
        let first = |at: &At| at.items().next().map(|first| first.text().to_owned());
        first(&new) == first(&old)
    };
    if !grown {
        check::immutable(&new, &old, errors);
        return;
    }
    for added in new.items().skip(old.len()) {
        if let Some(detail) = address_form::ambiguous_cidr(added.text()) {
            errors.invalid(&added, detail);
        }
    }
}

#[cfg(test)]
mod tests;
