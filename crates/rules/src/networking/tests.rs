//! Rules of the networking kinds, compared with answers of a real v1.36 server where available.

use super::rules;
use api::field::{At, Errors};
use serde_json::{Value, json};

fn messages(kind: &str, mut object: Value) -> Vec<String> {
    (rules(kind).default)(&mut object);
    let mut errors = Errors::default();
    (rules(kind).validate)(&At::root(&object), &mut errors);
    errors.iter().map(ToString::to_string).collect()
}

fn check(kind: &str, object: Value, expected: &[&str]) {
    assert_eq!(messages(kind, object.clone()), expected, "{kind} {object}");
}

#[test]
fn a_147_policy_types_follow_from_the_rules() {
    let mut policy = json!({"spec": {"podSelector": {}, "ingress": [{"ports": [{"port": 80}]}]}});
    (rules("NetworkPolicy").default)(&mut policy);
    assert_eq!(policy["spec"]["policyTypes"], json!(["Ingress"]));
    assert_eq!(policy["spec"]["ingress"][0]["ports"][0]["protocol"], "TCP");
    let mut policy = json!({"spec": {"egress": [{}]}});
    (rules("NetworkPolicy").default)(&mut policy);
    assert_eq!(policy["spec"]["policyTypes"], json!(["Ingress", "Egress"]));
}

#[test]
fn a_92_invalid_ingresses_are_rejected_with_upstreams_messages() {
    let path = |kind: &str, path: &str| {
        json!({"spec": {"rules": [{"http": {"paths": [{"path": path, "pathType": kind,
            "backend": {"service": {"name": "s", "port": {"number": 80}}}}]}}]}})
    };
    check("Ingress", path("Prefix", "/"), &[]);
    check(
        "Ingress",
        json!({}),
        &["spec: Invalid value: null: either `defaultBackend` or `rules` must be specified"],
    );
    check(
        "Ingress",
        path("Exact", "x"),
        &["spec.rules[0].http.paths[0].path: Invalid value: \"x\": must be an absolute path"],
    );
    check(
        "Ingress",
        path("Prefix", "/a//b"),
        &["spec.rules[0].http.paths[0].path: Invalid value: \"/a//b\": must not contain '//'"],
    );
    check(
        "Ingress",
        path("Any", "/"),
        &[
            "spec.rules[0].http.paths[0].pathType: Unsupported value: \"Any\": supported values: \"Exact\", \"ImplementationSpecific\", \"Prefix\"",
        ],
    );
    check(
        "Ingress",
        json!({"spec": {"defaultBackend": {"service": {"name": "s"}}}}),
        &["spec.defaultBackend: Required value: port name or number is required"],
    );
    check("IngressClass", json!({}), &["spec.controller: Required value"]);
}

#[test]
fn a_92_invalid_policies_are_rejected_with_upstreams_messages() {
    let from = |peer: Value| json!({"spec": {"ingress": [{"from": [peer]}]}});
    let at = "spec.ingress[0].from[0]";
    check("NetworkPolicy", from(json!({"podSelector": {}})), &[]);
    check(
        "NetworkPolicy",
        from(json!({})),
        &[&format!("{at}: Required value: must specify a peer")],
    );
    check(
        "NetworkPolicy",
        from(json!({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16", "11.0.0.0/16"]}})),
        &[&format!(
            "{at}.ipBlock.except[1]: Invalid value: \"11.0.0.0/16\": must be a strict subset of `cidr`"
        )],
    );
    check(
        "NetworkPolicy",
        from(json!({"ipBlock": {"cidr": "ten"}})),
        &[&format!(
            "{at}.ipBlock.cidr: Invalid value: \"ten\": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
        )],
    );
}

#[test]
fn net_122_a_policy_without_selector_selects_all_pods_of_its_namespace() {
    let mut policy = json!({"spec": {"policyTypes": [], "egress": []}});
    (rules("NetworkPolicy").default)(&mut policy);
    assert_eq!(policy["spec"]["podSelector"], json!({}));
    assert_eq!(policy["spec"]["policyTypes"], json!(["Ingress"]), "no egress rule");
}

#[test]
fn net_123_invalid_ports_and_types_are_rejected() {
    let port = |port: Value| json!({"spec": {"egress": [{"ports": [port]}]}});
    let at = "spec.egress[0].ports[0]";
    check("NetworkPolicy", port(json!({"port": 80, "endPort": 80})), &[]);
    check("NetworkPolicy", port(json!({"protocol": "SCTP"})), &[]);
    check("NetworkPolicy", port(json!({"port": "serve-80-tcp", "protocol": "UDP"})), &[]);
    for (invalid, expected) in [
        (
            json!({"port": 80, "endPort": 79}),
            "endPort: Invalid value: 79: must be greater than or equal to `port`",
        ),
        (
            json!({"port": "http", "endPort": 90}),
            "endPort: Invalid value: 90: may not be specified when `port` is non-numeric",
        ),
        (
            json!({"endPort": 90}),
            "endPort: Invalid value: 90: may not be specified when `port` is not specified",
        ),
        (json!({"port": 0}), "port: Invalid value: 0: must be between 1 and 65535, inclusive"),
        (
            json!({"port": 80, "endPort": 65536}),
            "endPort: Invalid value: 65536: must be between 1 and 65535, inclusive",
        ),
        (json!({"port": "-x"}), "port: Invalid value: \"-x\": must not begin or end with a hyphen"),
        (
            json!({"port": 80, "protocol": "ICMP"}),
            "protocol: Unsupported value: \"ICMP\": supported values: \"TCP\", \"UDP\", \"SCTP\"",
        ),
    ] {
        let found = messages("NetworkPolicy", port(invalid.clone()));
        assert!(found.contains(&format!("{at}.{expected}")), "{invalid}: {found:?}");
    }
    let types = |types: Value| messages("NetworkPolicy", json!({"spec": {"policyTypes": types}}));
    assert!(types(json!(["Ingress", "Egress"])).is_empty());
    assert!(
        types(json!(["Ingress", "Egress", "Egress"]))[0]
            .contains("may not specify more than two policyTypes")
    );
    assert!(types(json!(["ingress"]))[0].contains("Unsupported value: \"ingress\""));
    let both = json!({"spec": {"ingress": [{"from": [{"podSelector": {}, "ipBlock": {"cidr": "10.0.0.0/8"}}]}]}});
    check(
        "NetworkPolicy",
        both,
        &["spec.ingress[0].from[0]: Forbidden: may not specify both ipBlock and another peer"],
    );
    let block = |except: &str| json!({"spec": {"ingress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": [except]}}]}]}});
    check("NetworkPolicy", block("10.1.0.0/16"), &[]);
    assert!(
        messages("NetworkPolicy", block("10.0.0.0/8"))[0].contains("strict subset"),
        "the whole block"
    );
}

#[test]
fn a_75_the_name_of_an_ip_address_is_canonical() {
    let address = |name: &str| {
        json!({"metadata": {"name": name},
        "spec": {"parentRef": {"resource": "services", "name": "s"}}})
    };
    check("IPAddress", address("10.0.0.1"), &[]);
    check("IPAddress", address("2001:db8::1"), &[]);
    check(
        "IPAddress",
        address("2001:0db8::1"),
        &[
            "metadata.name: Invalid value: \"2001:0db8::1\": must be in canonical form (\"2001:db8::1\")",
        ],
    );
}

#[test]
fn a_77_a_service_cidr_can_only_add_the_other_family() {
    let range = |cidrs: Value| json!({"spec": {"cidrs": cidrs}});
    let update = |old: Value, new: Value| {
        let (old, new) = (range(old), range(new));
        let mut errors = Errors::default();
        (rules("ServiceCIDR").validate_update)(&At::root(&new), &At::root(&old), &mut errors);
        errors.iter().count()
    };
    assert_eq!(update(json!(["10.0.0.0/16"]), json!(["10.0.0.0/16", "fd00::/108"])), 0);
    assert_eq!(update(json!(["10.0.0.0/16"]), json!(["10.1.0.0/16"])), 1);
}
