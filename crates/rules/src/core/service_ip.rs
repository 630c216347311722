//! Addresses and address families of Services.

use super::checks::{self, Duplicates};
use super::service;
use super::service_update::at_element;
use api::field::{At, Errors};
use api::value::ValueExt;
use serde_json::{Value, json};

const POLICIES: &[&str] = &["PreferDualStack", "RequireDualStack", "SingleStack"];
const NOT_CONFIGURED: &str = "not configured on this cluster";

/// Sets `ipFamilies` and `ipFamilyPolicy` before the server allocates addresses. `cluster` is the families that
/// the cluster has, the default first; returns errors for requests that need another one (A-150, NET-26).
/// Upstream: `initIPFamilyFields`.
pub fn settle_ip_families(service: &mut Value, old: Option<&Value>, cluster: &[&str]) -> Errors {
    let mut errors = Errors::default();
    if !service::needs_cluster_ip(service)
        || old.is_some_and(|old| still_prefers_both(service, old))
    {
        return errors;
    }
    let selectorless = service::is_headless(service) && !selects(service);
    default_policy(service, old, selectorless);
    validate(&At::root(service).field("spec"), &mut errors);
    if !errors.is_empty() {
        return errors;
    }
    if let Some(old) = old {
        release_second(service, old, &mut errors);
    }
    check_policy(&At::root(service).field("spec"), &mut errors);
    infer_families(service, cluster, &mut errors);
    if !errors.is_empty() {
        return errors;
    }
    if !selectorless {
        check_cluster(&At::root(service).field("spec"), cluster, &mut errors);
    }
    if errors.is_empty() {
        // The endpoints of a headless Service without a selector may be of either family, whatever the cluster has.
        let may_have_both = selectorless || cluster.len() > 1;
        complete_families(service.object("spec"), cluster, may_have_both);
    }
    errors
}

fn list(spec: &Value, field: &str) -> Vec<Value> {
    spec.at(&[field]).and_then(Value::as_array).cloned().unwrap_or_default()
}

fn selects(service: &Value) -> bool {
    let selector = service.at(&["spec", "selector"]).and_then(Value::as_object);
    selector.is_some_and(|selector| !selector.is_empty())
}

/// A Service with PreferDualStack keeps its families, whatever the cluster supports now.
fn still_prefers_both(service: &Value, old: &Value) -> bool {
    let same =
        |field: &str| api::metadata::same(service.at(&["spec", field]), old.at(&["spec", field]));
    service::needs_cluster_ip(old)
        && service.text(&["spec", "ipFamilyPolicy"]) == "PreferDualStack"
        && ["ipFamilyPolicy", "ipFamilies", "clusterIPs"].into_iter().all(same)
}

fn default_policy(service: &mut Value, old: Option<&Value>, selectorless: bool) {
    let before = old.map_or("", |old| old.text(&["spec", "ipFamilyPolicy"]));
    let policy = match before {
        // Its endpoints may be of either family, so it prefers both.
        "" if selectorless => "RequireDualStack",
        "" => "SingleStack",
        before => before,
    };
    service.object("spec").set_default("ipFamilyPolicy", policy);
}

/// An update to SingleStack releases the second address and family. No other update may remove them.
fn release_second(service: &mut Value, old: &Value, errors: &mut Errors) {
    let single = service.text(&["spec", "ipFamilyPolicy"]) == "SingleStack";
    for (field, what) in [("clusterIPs", "cluster IP"), ("ipFamilies", "IP family")] {
        let (now, before) = (list(&service["spec"], field), list(&old["spec"], field));
        if single && now.len() > 1 && now == before {
            service.object("spec")[field] = json!([now[0]]);
        } else if !single && before.len() == 2 && now.len() == 1 {
            let root = At::root(service);
            let detail = format!("must be 'SingleStack' to release the secondary {what}");
            errors.invalid(&root.field("spec").field("ipFamilyPolicy"), &detail);
        }
    }
}

fn check_policy(spec: &At, errors: &mut Errors) {
    let policy = spec.field("ipFamilyPolicy");
    for (field, what) in [("clusterIPs", "cluster IPs"), ("ipFamilies", "IP families")] {
        if policy.text() == "SingleStack" && spec.field(field).len() == 2 {
            let detail = format!(
                "must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified"
            );
            errors.invalid(&policy, &detail);
        }
    }
}

/// Derives `ipFamilies` from the addresses that the client sets.
fn infer_families(service: &mut Value, cluster: &[&str], errors: &mut Errors) {
    let ips = list(&service["spec"], "clusterIPs");
    let mut families = list(&service["spec"], "ipFamilies");
    for (index, ip) in ips.iter().enumerate().skip(families.len()) {
        let ip = ip.as_str().unwrap_or_default();
        if ip == "None" {
            break;
        }
        let family = if ip.contains(':') { "IPv6" } else { "IPv4" };
        if cluster.contains(&family) {
            families.push(family.into());
        } else {
            let root = At::root(service);
            let detail = format!("{family} is {NOT_CONFIGURED}");
            at_element(&root.field("spec").field("clusterIPs"), index, &detail, errors);
        }
    }
    if !families.is_empty() {
        service.object("spec")["ipFamilies"] = families.into();
    }
}

/// Adds the default family, and the other one unless the policy is SingleStack.
fn complete_families(spec: &mut Value, cluster: &[&str], may_have_both: bool) {
    let mut families = list(spec, "ipFamilies");
    if families.is_empty() {
        families.push(cluster.first().copied().unwrap_or("IPv4").into());
    }
    if may_have_both && families.len() == 1 && spec.text(&["ipFamilyPolicy"]) != "SingleStack" {
        let other = if families[0].as_str() == Some("IPv4") { "IPv6" } else { "IPv4" };
        families.push(other.into());
    }
    spec["ipFamilies"] = families.into();
}

fn check_cluster(spec: &At, cluster: &[&str], errors: &mut Errors) {
    let policy = spec.field("ipFamilyPolicy");
    if policy.text() == "RequireDualStack" && cluster.len() < 2 {
        errors.invalid(&policy, "this cluster is not configured for dual-stack services");
    }
    for family in spec.field("ipFamilies").items() {
        if !cluster.contains(&family.text()) {
            errors.invalid(&family, NOT_CONFIGURED);
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
    let mut seen = Duplicates::default();
    for family in families.items() {
        checks::optional_one_of(&family, &["IPv4", "IPv6"], errors);
        if seen.repeats(family.text()) {
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
                let detail =
                    format!("expected an {expected} value as indicated by `ipFamilies[{index}]`");
                errors.invalid(&ip, &detail);
            }
        }
    }
}

/// Returns false if no further checks are useful.
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
    use super::super::trial::{NOTHING, created, messages};
    use super::*;

    const FOUR: &[&str] = &["IPv4"];
    const BOTH: &[&str] = &["IPv4", "IPv6"];

    fn settled_in(cluster: &[&str], spec: Value) -> (Value, Vec<String>) {
        let mut service = created("Service", json!({ "spec": spec }));
        let errors = settle_ip_families(&mut service, None, cluster);
        (service, messages(&errors))
    }

    fn settled(spec: Value) -> (Value, Vec<String>) {
        settled_in(FOUR, spec)
    }

    #[test]
    fn a_150_families_follow_from_the_address_and_the_selector() {
        for (spec, families, policy) in [
            (json!({}), json!(["IPv4"]), "SingleStack"),
            (json!({"clusterIP": "10.96.0.9"}), json!(["IPv4"]), "SingleStack"),
            (json!({"ipFamilyPolicy": "PreferDualStack"}), json!(["IPv4"]), "PreferDualStack"),
            (json!({"clusterIP": "None", "selector": {"a": "b"}}), json!(["IPv4"]), "SingleStack"),
            (json!({"clusterIP": "None"}), json!(["IPv4", "IPv6"]), "RequireDualStack"),
            (
                json!({"clusterIP": "None", "ipFamilyPolicy": "SingleStack"}),
                json!(["IPv4"]),
                "SingleStack",
            ),
            (
                json!({"clusterIP": "None", "ipFamilies": ["IPv6"]}),
                json!(["IPv6", "IPv4"]),
                "RequireDualStack",
            ),
        ] {
            let (service, wrong) = settled(spec);
            assert_eq!(wrong, NOTHING);
            assert_eq!(service["spec"]["ipFamilies"], families);
            assert_eq!(service["spec"]["ipFamilyPolicy"], policy);
        }
    }

    #[test]
    fn a_150_a_second_family_is_rejected() {
        const DUAL: &str = "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for dual-stack services";
        let second = "spec.ipFamilies[1]: Invalid value: \"IPv6\": not configured on this cluster";
        let first = "spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured on this cluster";
        let cases: &[(Value, &[&str])] = &[
            (json!({"ipFamilyPolicy": "RequireDualStack"}), &[DUAL]),
            (json!({"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv4"]}), &[DUAL]),
            (
                json!({"ipFamilyPolicy": "RequireDualStack", "ipFamilies": ["IPv4", "IPv6"]}),
                &[DUAL, second],
            ),
            (
                json!({"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv4", "IPv6"]}),
                &[second],
            ),
            (json!({"ipFamilies": ["IPv6"]}), &[first]),
            (
                json!({"clusterIP": "None", "selector": {"a": "b"}, "ipFamilies": ["IPv6"]}),
                &[first],
            ),
            (
                json!({"clusterIP": "fd00::1"}),
                &[
                    "spec.clusterIPs[0]: Invalid value: [\"fd00::1\"]: IPv6 is not configured on this cluster",
                ],
            ),
            (
                json!({"clusterIP": "fd00::1", "ipFamilies": ["IPv4"]}),
                &[
                    "spec.clusterIPs[0]: Invalid value: \"fd00::1\": expected an IPv4 value as indicated by `ipFamilies[0]`",
                ],
            ),
            (
                json!({"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4", "IPv6"]}),
                &[
                    "spec.ipFamilyPolicy: Invalid value: \"SingleStack\": must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified",
                ],
            ),
        ];
        for (spec, expected) in cases {
            let (_, wrong) = settled(spec.clone());
            assert_eq!(wrong, *expected, "{spec}");
        }
    }

    #[test]
    fn a_150_a_stored_service_with_both_families_keeps_them() {
        let (old, _) = settled(json!({"ipFamilyPolicy": "PreferDualStack"}));
        let mut new = old.clone();
        assert_eq!(messages(&settle_ip_families(&mut new, Some(&old), FOUR)), NOTHING);
        assert_eq!(new, old);
        new["spec"]["ipFamilyPolicy"] = "RequireDualStack".into();
        let wrong = messages(&settle_ip_families(&mut new, Some(&old), FOUR));
        assert!(wrong[0].contains("not configured for dual-stack"), "{wrong:?}");
    }

    #[test]
    fn net_26_a_cluster_with_both_families_gives_what_the_policy_says() {
        let six_first: &[&str] = &["IPv6", "IPv4"];
        for (cluster, spec, families, policy) in [
            (BOTH, json!({}), json!(["IPv4"]), "SingleStack"),
            (six_first, json!({}), json!(["IPv6"]), "SingleStack"),
            (&["IPv6"], json!({}), json!(["IPv6"]), "SingleStack"),
            (BOTH, json!({"ipFamilies": ["IPv6"]}), json!(["IPv6"]), "SingleStack"),
            (BOTH, json!({"clusterIP": "fd00::9"}), json!(["IPv6"]), "SingleStack"),
            (
                BOTH,
                json!({"ipFamilyPolicy": "PreferDualStack"}),
                json!(["IPv4", "IPv6"]),
                "PreferDualStack",
            ),
            (
                six_first,
                json!({"ipFamilyPolicy": "RequireDualStack"}),
                json!(["IPv6", "IPv4"]),
                "RequireDualStack",
            ),
            (
                BOTH,
                json!({"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv6"]}),
                json!(["IPv6", "IPv4"]),
                "PreferDualStack",
            ),
            (
                BOTH,
                json!({"ipFamilyPolicy": "RequireDualStack", "clusterIPs": ["fd00::9", "10.0.0.9"]}),
                json!(["IPv6", "IPv4"]),
                "RequireDualStack",
            ),
            (
                BOTH,
                json!({"clusterIP": "None", "selector": {"a": "b"}, "ipFamilyPolicy": "RequireDualStack"}),
                json!(["IPv4", "IPv6"]),
                "RequireDualStack",
            ),
        ] {
            let (service, wrong) = settled_in(cluster, spec.clone());
            assert_eq!(wrong, NOTHING, "{spec}");
            assert_eq!(service["spec"]["ipFamilies"], families, "{spec}");
            assert_eq!(service["spec"]["ipFamilyPolicy"], policy, "{spec}");
        }
        let (_, wrong) = settled_in(&["IPv6"], json!({"clusterIP": "10.0.0.9"}));
        assert!(wrong[0].contains("IPv4 is not configured on this cluster"), "{wrong:?}");
    }

    #[test]
    fn net_26_updates_add_the_second_family_and_only_single_stack_releases_it() {
        let ips = |ips: Value| json!({"clusterIPs": ips, "clusterIP": ips[0]});
        let (single, _) = settled_in(BOTH, ips(json!(["10.0.0.9"])));
        let change = |old: &Value, change: Value| {
            let mut new = old.clone();
            for (field, value) in change.as_object().unwrap() {
                new["spec"][field] = value.clone();
            }
            let wrong = messages(&settle_ip_families(&mut new, Some(old), BOTH));
            (new, wrong)
        };
        for policy in ["PreferDualStack", "RequireDualStack"] {
            let (new, wrong) = change(&single, json!({ "ipFamilyPolicy": policy }));
            assert_eq!(wrong, NOTHING);
            assert_eq!(new["spec"]["ipFamilies"], json!(["IPv4", "IPv6"]));
            assert_eq!(new["spec"]["clusterIPs"], json!(["10.0.0.9"]), "to be allocated");
        }
        let (mut both, _) = change(&single, json!({"ipFamilyPolicy": "RequireDualStack"}));
        both["spec"]["clusterIPs"] = json!(["10.0.0.9", "fd00::9"]);
        let (new, wrong) = change(&both, json!({"ipFamilyPolicy": "SingleStack"}));
        assert_eq!(wrong, NOTHING);
        assert_eq!(new["spec"]["ipFamilies"], json!(["IPv4"]));
        assert_eq!(new["spec"]["clusterIPs"], json!(["10.0.0.9"]));
        let (_, wrong) = change(&both, json!({"clusterIPs": ["10.0.0.9"]}));
        assert_eq!(
            wrong,
            [
                "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": must be 'SingleStack' to release the secondary cluster IP"
            ]
        );
        let (_, wrong) = change(&both, json!({"ipFamilies": ["IPv4"]}));
        assert_eq!(
            wrong,
            [
                "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": must be 'SingleStack' to release the secondary IP family"
            ]
        );
    }
}
