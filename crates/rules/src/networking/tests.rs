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

fn updates(kind: &str, old: &Value, new: &Value) -> Vec<String> {
    let mut errors = Errors::default();
    (rules(kind).validate_update)(&At::root(new), &At::root(old), &mut errors);
    errors.iter().map(ToString::to_string).collect()
}

/// NET-144: one or two ranges, of different families.
#[test]
fn a_77_a_service_cidr_can_only_add_the_other_family() {
    let range = |cidrs: Value| json!({"spec": {"cidrs": cidrs}});
    let update = |old: Value, new: Value| updates("ServiceCIDR", &range(old), &range(new)).len();
    assert_eq!(update(json!(["10.0.0.0/16"]), json!(["10.0.0.0/16", "fd00::/108"])), 0);
    assert_eq!(update(json!(["10.0.0.0/16"]), json!(["10.1.0.0/16"])), 1);
    assert_eq!(update(json!(["10.0.0.0/16"]), json!(["10.0.0.0/16", "fd00::1/108"])), 1);
    assert_eq!(update(json!(["10.0.0.0/16", "fd00::/108"]), json!(["10.0.0.0/16"])), 1);
    let created = |cidrs: Value| messages("ServiceCIDR", range(cidrs));
    assert!(created(json!(["10.0.0.0/16", "fd00::/108"])).is_empty());
    for (cidrs, expected) in [
        (json!([]), "at least one CIDR required"),
        (json!(["10.0.0.0/16", "10.1.0.0/16"]), "one IP range of each IP family"),
        (json!(["10.0.0.0/16", "fd00::/108", "fd01::/108"]), "may only hold up to 2 values"),
        (json!(["10.0.0.7/16"]), "must not have bits set beyond the prefix length"),
    ] {
        let found = created(cidrs.clone());
        assert!(found.len() == 1 && found[0].contains(expected), "{cidrs}: {found:?}");
    }
}

#[test]
fn net_23_ranges_of_policies_have_no_bits_beyond_the_prefix_unless_they_are_stored() {
    let policy = |cidr: &str, except: &str| {
        json!({"spec": {"egress": [{"to": [
        {"ipBlock": {"cidr": cidr, "except": [except]}}]}]}})
    };
    let bits = "must not have bits set beyond the prefix length";
    let at = "spec.egress[0].to[0].ipBlock";
    check("NetworkPolicy", policy("10.0.0.0/8", "10.1.0.0/16"), &[]);
    let wrong = [
        format!("{at}.cidr: Invalid value: \"10.0.0.1/8\": {bits}"),
        format!("{at}.except[0]: Invalid value: \"10.1.0.1/16\": {bits}"),
    ];
    let stored = policy("10.0.0.1/8", "10.1.0.1/16");
    check("NetworkPolicy", stored.clone(), &[&wrong[0], &wrong[1]]);
    assert!(updates("NetworkPolicy", &stored, &stored).is_empty());
    let changed = policy("10.0.0.0/8", "10.1.0.2/16");
    assert_eq!(
        updates("NetworkPolicy", &stored, &changed),
        [wrong[1].replace("10.1.0.1", "10.1.0.2")]
    );
}

/// NET-145: the owner is required and does not change; any address has its place, whatever the ranges of Services are.
#[test]
fn net_145_an_ip_address_names_its_owner() {
    let address = |name: &str, parent: Value| json!({"metadata": {"name": name}, "spec": {"parentRef": parent}});
    let parent =
        json!({"group": "example.com", "resource": "routers", "name": "r", "namespace": "n"});
    for name in ["255.255.255.255", "fe80::42:1dff:fe84:f9e2"] {
        check("IPAddress", address(name, parent.clone()), &[]);
    }
    check(
        "IPAddress",
        address("10.0.0.1", json!({})),
        &["spec.parentRef.resource: Required value", "spec.parentRef.name: Required value"],
    );
    check(
        "IPAddress",
        json!({"metadata": {"name": "10.0.0.1"}, "spec": {}}),
        &["spec.parentRef: Required value"],
    );
    for (name, wrong) in [
        ("010.0.0.1", "must not have leading 0s"),
        ("::ffff:10.0.0.1", "must not be an IPv4-mapped IPv6 address"),
    ] {
        let expected = format!("metadata.name: Invalid value: {name:?}: {wrong}");
        check("IPAddress", address(name, parent.clone()), &[&expected]);
    }
    let (old, mut new) = (address("10.0.0.1", parent.clone()), address("10.0.0.1", parent));
    assert!(updates("IPAddress", &old, &new).is_empty());
    new["spec"]["parentRef"]["name"] = "other".into();
    assert!(updates("IPAddress", &old, &new)[0].contains("field is immutable"));
}

#[test]
fn net_140_hosts_backends_and_classes_of_ingresses() {
    let backend = |backend: Value| json!({"spec": {"defaultBackend": backend}});
    let service = |port: Value| backend(json!({"service": {"name": "s", "port": port}}));
    check("Ingress", service(json!({"number": 80})), &[]);
    check("Ingress", service(json!({"name": "http"})), &[]);
    let resource = json!({"kind": "Bucket", "name": "b", "apiGroup": "example.com"});
    check("Ingress", backend(json!({ "resource": resource })), &[]);
    let at = "spec.defaultBackend: Invalid value: \"\"";
    check(
        "Ingress",
        service(json!({"number": 80, "name": "http"})),
        &[&format!("{at}: cannot set both port name & port number")],
    );
    check(
        "Ingress",
        backend(json!({"resource": resource, "service": {"name": "s", "port": {"number": 80}}})),
        &[&format!("{at}: cannot set both resource and service backends")],
    );
    check(
        "Ingress",
        backend(json!({})),
        &[&format!("{at}: resource or service backend is required")],
    );

    let host = |host: &str| messages("Ingress", json!({"spec": {"rules": [{"host": host}]}}));
    for good in ["example.com", "*.example.com"] {
        assert!(host(good).is_empty(), "{good}");
    }
    assert!(host("10.0.0.1")[0].contains("must be a DNS name, not an IP address"));
    for bad in ["*.*.example.com", "a.*.com", "Example.com", "*"] {
        assert!(!host(bad).is_empty(), "{bad}");
    }
    let path = |kind: Value, path: &str| {
        let backend = json!({"service": {"name": "s", "port": {"number": 80}}});
        let path = json!({"path": path, "pathType": kind, "backend": backend});
        messages("Ingress", json!({"spec": {"rules": [{"http": {"paths": [path]}}]}}))
    };
    for (kind, good) in [
        ("Exact", "/"),
        ("Prefix", "/a/b"),
        ("ImplementationSpecific", ""),
        ("ImplementationSpecific", "/a//b"),
    ] {
        assert!(path(json!(kind), good).is_empty(), "{kind} {good}");
    }
    for (kind, bad) in [
        ("Exact", ""),
        ("Prefix", "/./a"),
        ("Prefix", "/../a"),
        ("Exact", "/a%2fb"),
        ("Prefix", "/a/.."),
        ("ImplementationSpecific", "a"),
    ] {
        assert!(!path(json!(kind), bad).is_empty(), "{kind} {bad}");
    }
    assert!(path(Value::Null, "/")[0].contains("pathType must be specified"));

    let mut both = service(json!({"number": 80}));
    both["metadata"] = json!({"annotations": {"kubernetes.io/ingress.class": "a"}});
    both["spec"]["ingressClassName"] = "a".into();
    check("Ingress", both.clone(), &[]);
    both["spec"]["ingressClassName"] = "b".into();
    check(
        "Ingress",
        both.clone(),
        &[
            "annotations.kubernetes.io/ingress.class: Invalid value: \"a\": must match `ingressClassName` when both are specified",
        ],
    );
    both["metadata"]["resourceVersion"] = "7".into();
    check("Ingress", both, &[]);
}

#[test]
fn net_141_the_controller_of_an_ingress_class_is_a_path_with_a_domain() {
    let class = |controller: &str| json!({"spec": {"controller": controller}});
    check("IngressClass", class("example.com/controller"), &[]);
    for bad in ["controller", "/controller", "Example.com/x", "example.com/"] {
        let expected = format!(
            "spec.controller: Invalid value: {bad:?}: must be a domain-prefixed path (such as \"acme.io/foo\")"
        );
        check("IngressClass", class(bad), &[&expected]);
    }
    let long = messages("IngressClass", class(&format!("example.com/{}", "x".repeat(239))));
    assert!(long.len() == 1 && long[0].contains("250"), "{long:?}");
    let changed = updates("IngressClass", &class("example.com/a"), &class("example.com/b"));
    assert!(changed[0].contains("field is immutable"), "{changed:?}");
    let mut with = class("example.com/a");
    with["spec"]["parameters"] = json!({"kind": "K", "name": "n"});
    (rules("IngressClass").default)(&mut with);
    assert_eq!(with["spec"]["parameters"]["scope"], "Cluster");
}
