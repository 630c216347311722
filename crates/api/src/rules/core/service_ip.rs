//! Addresses and address families of Services.

use super::checks::{self, Seen};
use super::service;
use crate::field::{At, Errors};
use crate::value::ValueExt;
use serde_json::{Value, json};

const POLICIES: &[&str] = &["PreferDualStack", "RequireDualStack", "SingleStack"];
const NOT_CONFIGURED: &str = "not configured on this cluster";

/// Fills in `ipFamilies` and `ipFamilyPolicy` for a cluster that has IPv4 only.
pub fn default_ip_families(object: &mut Value) {
    if !service::needs_cluster_ip(object) {
        return;
    }
    let selects = object
        .at(&["spec", "selector"])
        .and_then(Value::as_object)
        .is_some_and(|selector| !selector.is_empty());
    let headless = service::is_headless(object);
    let spec = object.object("spec");
    let given = spec.at(&["ipFamilies"]).and_then(Value::as_array).cloned().unwrap_or_default();
    if headless && !selects {
        // Nobody knows what its endpoints will be, so it is ready for both.
        spec.set_default("ipFamilyPolicy", "RequireDualStack");
        let families = match (given.as_slice(), spec.text(&["ipFamilyPolicy"])) {
            ([], "SingleStack") => json!(["IPv4"]),
            ([one], policy) if policy != "SingleStack" => {
                let other = if one.as_str() == Some("IPv4") { "IPv6" } else { "IPv4" };
                json!([one, other])
            }
            ([], _) => json!(["IPv4", "IPv6"]),
            _ => return,
        };
        spec.map().insert("ipFamilies".into(), families);
        return;
    }
    spec.set_default("ipFamilyPolicy", "SingleStack");
    if given.is_empty() {
        let first = service::first_cluster_ip(spec);
        let family = if first.contains(':') { "IPv6" } else { "IPv4" };
        spec.map().insert("ipFamilies".into(), json!([family]));
    }
}

/// What a cluster with IPv4 only cannot give. For the server to ask before it allocates.
pub fn validate_single_stack(service: &At, errors: &mut Errors) {
    let empty = Value::Null;
    let object = service.value().unwrap_or(&empty);
    if !service::needs_cluster_ip(object) {
        return;
    }
    let spec = service.field("spec");
    let headless = service::is_headless(object);
    if headless && spec.field("selector").is_empty() {
        return;
    }
    let policy = spec.field("ipFamilyPolicy");
    if policy.text() == "RequireDualStack" {
        errors.invalid(&policy, "this cluster is not configured for dual-stack services");
    }
    for family in spec.field("ipFamilies").items() {
        if family.text() == "IPv6" {
            errors.invalid(&family, NOT_CONFIGURED);
        }
    }
    for ip in spec.field("clusterIPs").items() {
        if ip.text().contains(':') {
            errors.invalid(&ip, NOT_CONFIGURED);
        }
    }
}

/// `clusterIP`, `clusterIPs`, `ipFamilies` and `ipFamilyPolicy` agree with each other.
pub(super) fn validate(spec: &At, errors: &mut Errors) {
    if spec.field("type").text() == "ExternalName" {
        return;
    }
    let (one, ips) = (spec.field("clusterIP"), spec.field("clusterIPs"));
    let first = ips.items().next().map(|ip| ip.text());
    match (one.text(), first) {
        ("", Some(_)) => errors.invalid(&ips, "must be empty when `clusterIP` is not specified"),
        ("", None) => {}
        (_, None) => errors.required(&ips, ""),
        (one, Some(first)) if one != first => {
            errors.invalid(&ips, "first value must match `clusterIP`");
        }
        _ => {}
    }
    let families = spec.field("ipFamilies");
    let mut seen = Seen::default();
    for family in families.items() {
        checks::optional_one_of(&family, &["IPv4", "IPv6"], errors);
        if seen.again(family.text()) {
            errors.duplicate(&family);
        }
    }
    checks::optional_one_of(&spec.field("ipFamilyPolicy"), POLICIES, errors);
    if !addresses(&ips, errors) {
        return;
    }
    if ips.len() > 1 {
        let sixes = ips.items().filter(|ip| ip.text().contains(':')).count();
        if sixes == 0 || sixes == ips.len() {
            errors.invalid(&ips, "may specify no more than one IP for each IP family");
        }
    }
    if first != Some("None") {
        for (index, (ip, family)) in ips.items().zip(families.items()).enumerate() {
            let six = ip.text().contains(':');
            let expected = family.text();
            if (expected == "IPv4" && six) || (expected == "IPv6" && !six) {
                let said =
                    format!("expected an {expected} value as indicated by `ipFamilies[{index}]`");
                errors.invalid(&ip, &said);
            }
        }
    }
}

/// False if there is no point in comparing them further.
fn addresses(ips: &At, errors: &mut Errors) -> bool {
    let mut good = true;
    for (index, ip) in ips.items().enumerate() {
        if index == 0 && ip.text() == "None" {
            if ips.len() > 1 {
                good = false;
                errors.invalid(ips, "'None' must be the first and only value");
            }
            continue;
        }
        good &= checks::ip(&ip, errors);
    }
    if ips.len() > 2 {
        errors.invalid(ips, "may only hold up to 2 values");
    }
    good
}

#[cfg(test)]
mod tests {
    use super::super::trial::{defaulted, said};
    use super::*;

    #[test]
    fn a_150_families_follow_from_the_address_and_the_selector() {
        for (spec, families, policy) in [
            (json!({}), json!(["IPv4"]), "SingleStack"),
            (json!({"ipFamilyPolicy": "PreferDualStack"}), json!(["IPv4"]), "PreferDualStack"),
            (json!({"clusterIP": "None", "selector": {"a": "b"}}), json!(["IPv4"]), "SingleStack"),
            (json!({"clusterIP": "None"}), json!(["IPv4", "IPv6"]), "RequireDualStack"),
        ] {
            let mut service = defaulted("Service", json!({ "spec": spec }));
            default_ip_families(&mut service);
            assert_eq!(service["spec"]["ipFamilies"], families);
            assert_eq!(service["spec"]["ipFamilyPolicy"], policy);
        }
    }

    #[test]
    fn a_150_two_families_are_more_than_there_are() {
        let service = json!({"spec": {"type": "ClusterIP", "ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv4", "IPv6"]}});
        let mut errors = Errors::default();
        validate_single_stack(&At::root(&service), &mut errors);
        assert_eq!(
            said(&errors),
            [
                "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack services",
                "spec.ipFamilies[1]: Invalid value: \"IPv6\": not configured on this cluster",
            ]
        );
    }
}
