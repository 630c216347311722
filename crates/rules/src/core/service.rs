//! Services: defaults and checks.
//!
//! The server allocates addresses and ports between `prepare_*` and `validate`.

use super::checks::{self, Duplicates, PROTOCOLS};
use super::service_ip;
use crate::{Rules, address_form, check};
use api::field::{At, Errors, Wrong};
use api::metadata;
use api::names;
use api::names::NameRule;
use api::value::ValueExt;
use serde_json::{Value, json};

const AFFINITY_SECONDS: i64 = 10800;
const AFFINITY_SECONDS_MAX: i64 = 86400;
const SOURCE_RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
const LOAD_BALANCER_ONLY: &str = "may only be used when `type` is 'LoadBalancer'";

pub(super) const RULES: Rules = Rules {
    default,
    prepare_create,
    prepare_update: super::service_update::prepare,
    validate,
    validate_update: super::service_update::validate,
    validate_status_update,
    fields: &[
        ("spec.clusterIP", |service| service.text(&["spec", "clusterIP"]).into()),
        ("spec.type", |service| service.text(&["spec", "type"]).into()),
    ],
    name: NameRule::Label,
    create_on_update: true,
    returns_deleted: true,
    ..Rules::NONE
};

/// Every type except ExternalName has an address, or is headless.
pub(super) fn needs_cluster_ip(service: &Value) -> bool {
    ["ClusterIP", "NodePort", "LoadBalancer"].contains(&service.text(&["spec", "type"]))
}

pub(super) fn is_headless(service: &Value) -> bool {
    service.text(&["spec", "clusterIP"]) == "None"
}

/// Whether the Service gets ports on every node.
pub(super) fn needs_node_ports(service: &Value) -> bool {
    match service.text(&["spec", "type"]) {
        "NodePort" => true,
        "LoadBalancer" => {
            service.at(&["spec", "allocateLoadBalancerNodePorts"]) != Some(&Value::Bool(false))
        }
        _ => false,
    }
}

/// The node ports of a Service.
pub(super) fn node_ports(service: &Value) -> Vec<i64> {
    let ports = service.at(&["spec", "ports"]).and_then(Value::as_array);
    ports.into_iter().flatten().map(node_port).filter(|port| *port != 0).collect()
}

pub(super) fn node_port(port: &Value) -> i64 {
    port.at(&["nodePort"]).and_then(Value::as_i64).unwrap_or_default()
}

/// Load balancers with `externalTrafficPolicy: Local` check the health of nodes on a separate port.
pub fn needs_health_check_port(service: &Value) -> bool {
    service.text(&["spec", "type"]) == "LoadBalancer"
        && service.text(&["spec", "externalTrafficPolicy"]) == "Local"
}

/// Whether clients outside of the cluster can reach the Service.
pub(super) fn externally_accessible(service: &Value) -> bool {
    match service.text(&["spec", "type"]) {
        "LoadBalancer" | "NodePort" => true,
        "ClusterIP" => {
            let ips = service.at(&["spec", "externalIPs"]).and_then(Value::as_array);
            ips.is_some_and(|ips| !ips.is_empty())
        }
        _ => false,
    }
}

/// Defaults of a Service, except its addresses and ports, which the server allocates (A-149).
fn default(service: &mut Value) {
    let spec = service.object("spec");
    set_text(spec, "sessionAffinity", "None");
    match spec.text(&["sessionAffinity"]) {
        "None" => {
            spec.remove("sessionAffinityConfig");
        }
        "ClientIP" => spec
            .object("sessionAffinityConfig")
            .object("clientIP")
            .set_default("timeoutSeconds", AFFINITY_SECONDS),
        _ => {}
    }
    set_text(spec, "type", "ClusterIP");
    for port in spec.list_mut("ports") {
        set_text(port, "protocol", "TCP");
        let unset = match port.at(&["targetPort"]) {
            None => true,
            Some(Value::String(name)) => name.is_empty(),
            Some(number) => number.as_i64() == Some(0),
        };
        if let (true, Some(number)) = (unset, port.at(&["port"]).cloned()) {
            port.map().insert("targetPort".into(), number);
        }
    }
    let balanced = spec.text(&["type"]) == "LoadBalancer";
    if balanced {
        spec.set_default("allocateLoadBalancerNodePorts", true);
    }
    match needs_cluster_ip(service) {
        true => service.object("spec").set_default("internalTrafficPolicy", "Cluster"),
        // No client sees it there (NET-22).
        false => {
            service.object("spec").remove("internalTrafficPolicy");
        }
    }
    if externally_accessible(service) {
        set_text(service.object("spec"), "externalTrafficPolicy", "Cluster");
    }
    if balanced {
        default_ingress(service);
    }
}

fn set_text(value: &mut Value, field: &str, text: &str) {
    if value.text(&[field]).is_empty() {
        value.map().insert(field.into(), text.into());
    }
}

fn default_ingress(service: &mut Value) {
    let Some(balancer) = service.get_mut("status").and_then(|s| s.get_mut("loadBalancer")) else {
        return;
    };
    for ingress in balancer.list_mut("ingress") {
        if !ingress.text(&["ip"]).is_empty() {
            ingress.set_default("ipMode", "VIP");
        }
    }
}

fn prepare_create(service: &mut Value) {
    service.map().insert("status".into(), json!({"loadBalancer": {}}));
    let spec = service.object("spec");
    let one = spec.text(&["clusterIP"]).to_owned();
    let first = first_cluster_ip(spec).to_owned();
    match (one.as_str(), first.as_str()) {
        ("", "") => {}
        (one, "") => {
            spec.map().insert("clusterIPs".into(), json!([one]));
        }
        ("", first) => {
            spec.map().insert("clusterIP".into(), first.into());
        }
        _ => {}
    }
}

pub(super) fn first_cluster_ip(spec: &Value) -> &str {
    spec.get("clusterIPs").and_then(|ips| ips.get(0)).and_then(Value::as_str).unwrap_or_default()
}

fn validate(service: &At, errors: &mut Errors) {
    let spec = service.field("spec");
    let ips = spec.field("clusterIPs");
    let headless = ips.len() == 1 && ips.items().any(|ip| ip.text() == "None");
    let kind = spec.field("type");
    let ports = spec.field("ports");
    if ports.is_empty() && !headless && kind.text() != "ExternalName" {
        errors.required(&ports, "");
    }
    match kind.text() {
        "LoadBalancer" | "NodePort" if headless => {
            let detail = format!("may not be set to 'None' for {} services", kind.text());
            ips.items().for_each(|ip| errors.invalid(&ip, &detail));
        }
        "ExternalName" => external_name(&spec, errors),
        _ => {}
    }
    let mut seen = Duplicates::default();
    for port in ports.items() {
        let name = port.field("name");
        if !name.text().is_empty() {
            checks::each(&name, names::dns1123_label(name.text()), errors);
            if seen.repeats(name.text()) {
                errors.duplicate(&name);
            }
        } else if ports.len() > 1 {
            errors.required(&name, "");
        }
        validate_port(&port, errors);
    }
    metadata::labels(&spec.field("selector"), errors);
    session_affinity(&spec, errors);
    service_ip::validate(&spec, errors);
    for ip in spec.field("externalIPs").items() {
        if checks::ip(&ip, errors) {
            checks::non_special_ip(&ip, errors);
        }
    }
    let kinds = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
    checks::one_of(&kind, &kinds, errors);
    ports_are_distinct(&spec, errors);
    load_balancer(service, &spec, errors);
    traffic_policies(service, &spec, errors);
    if check::is_new(service) {
        unambiguous_addresses(&spec, None, errors);
    }
}

/// Addresses and ranges that programs read in different ways are refused, unless the old object has them (NET-23).
pub(super) fn unambiguous_addresses(spec: &At, old: Option<&At>, errors: &mut Errors) {
    type Form = fn(&str) -> Option<&'static str>;
    let lists: [(&str, &str, Form); 3] = [
        ("clusterIPs", "clusterIPs", address_form::ambiguous_ip),
        ("externalIPs", "externalIPs", address_form::ambiguous_ip),
        ("loadBalancerSourceRanges", "LoadBalancerSourceRanges", address_form::ambiguous_cidr),
    ];
    for (field, shown, form) in lists {
        for (index, new) in spec.field(field).items().enumerate() {
            let text = new.text().trim();
            let known = old.is_some_and(|old| {
                old.field(field).items().any(|before| before.text().trim() == text)
            });
            if let Some(detail) = form(text).filter(|_| !known) {
                let path = format!("{}.{shown}[{index}]", spec.path());
                errors.push(Wrong::Invalid, path, Some(&text.into()), detail);
            }
        }
    }
}

fn external_name(spec: &At, errors: &mut Errors) {
    let detail = "may not be set for ExternalName services";
    for list in ["clusterIPs", "ipFamilies"] {
        if !spec.field(list).is_empty() {
            errors.forbidden(&spec.field(list), detail);
        }
    }
    if spec.field("ipFamilyPolicy").is_set() {
        errors.forbidden(&spec.field("ipFamilyPolicy"), detail);
    }
    let name = spec.field("externalName");
    let plain = name.text().strip_suffix('.').unwrap_or(name.text());
    if plain.is_empty() {
        errors.required(&name, "");
    }
    for wrong in names::dns1123_subdomain(plain).into_iter().filter(|_| !plain.is_empty()) {
        errors.invalid_value(&name, plain, &wrong);
    }
}

fn validate_port(port: &At, errors: &mut Errors) {
    checks::port_number(&port.field("port"), errors);
    checks::one_of(&port.field("protocol"), PROTOCOLS, errors);
    checks::port(&port.field("targetPort"), errors);
    let application = port.field("appProtocol");
    if application.is_set() {
        checks::each(&application, names::qualified_name(application.text()), errors);
    }
}

fn session_affinity(spec: &At, errors: &mut Errors) {
    let affinity = spec.field("sessionAffinity");
    checks::one_of(&affinity, &["ClientIP", "None"], errors);
    let config = spec.field("sessionAffinityConfig");
    let client = config.field("clientIP");
    let timeout = client.field("timeoutSeconds");
    match affinity.text() {
        "ClientIP" => {
            for field in [&config, &client, &timeout] {
                if !field.is_set() {
                    errors.required(field, "when session affinity type is ClientIP");
                    return;
                }
            }
            let seconds = timeout.int().unwrap_or_default();
            if !(1..=AFFINITY_SECONDS_MAX).contains(&seconds) {
                let detail = format!("must be greater than 0 and less than {AFFINITY_SECONDS_MAX}");
                errors.invalid(&timeout, &detail);
            }
        }
        "None" if config.is_set() => {
            errors.forbidden(&config, "must not be set when session affinity is None");
        }
        _ => {}
    }
}

fn ports_are_distinct(spec: &At, errors: &mut Errors) {
    let ports = spec.field("ports");
    if spec.field("type").text() == "ClusterIP" {
        for port in ports.items() {
            let node = port.field("nodePort");
            if node.int().unwrap_or_default() != 0 {
                errors.forbidden(&node, "may not be used when `type` is 'ClusterIP'");
            }
        }
    }
    let (mut nodes, mut numbers) = (Duplicates::default(), Duplicates::default());
    for port in ports.items() {
        let node = port.field("nodePort");
        let protocol = port.field("protocol").text();
        let number = node.int().unwrap_or_default();
        if number != 0 && nodes.repeats((protocol, number)) {
            errors.duplicate(&node);
        }
    }
    for port in ports.items() {
        let (protocol, number) = (port.field("protocol").text(), port.field("port").int());
        if numbers.repeats((protocol, number)) {
            let key = json!({"port": number, "protocol": protocol});
            errors.push(Wrong::Duplicate, port.path(), Some(&key), "");
        }
    }
}

fn load_balancer(service: &At, spec: &At, errors: &mut Errors) {
    let balanced = spec.field("type").text() == "LoadBalancer";
    let ranges = spec.field("loadBalancerSourceRanges");
    let metadata = service.field("metadata");
    let annotations = metadata.field("annotations");
    let annotation = annotations.key(SOURCE_RANGES);
    if !ranges.is_empty() {
        let path = format!("{}.LoadBalancerSourceRanges", spec.path());
        if !balanced {
            errors.push(Wrong::Forbidden, path.clone(), None, LOAD_BALANCER_ONLY);
        }
        for (index, range) in ranges.items().enumerate() {
            let range = range.text().trim();
            if let Some(detail) = address_form::unreadable_cidr(range) {
                let path = format!("{path}[{index}]");
                errors.push(Wrong::Invalid, path, Some(&range.into()), detail);
            }
        }
    } else if annotation.is_set() {
        if !balanced {
            errors.forbidden(&annotation, LOAD_BALANCER_ONLY);
        }
        for range in annotation.text().split(',').map(str::trim).filter(|range| !range.is_empty()) {
            if let Some(detail) = address_form::unreadable_cidr(range) {
                errors.invalid_value(&annotation, range, detail);
            }
        }
    }
    let allocate = spec.field("allocateLoadBalancerNodePorts");
    if allocate.is_set() && !balanced {
        errors.forbidden(&allocate, LOAD_BALANCER_ONLY);
    }
    if balanced && !allocate.is_set() {
        let path = "allocateLoadBalancerNodePorts".to_owned();
        errors.push(Wrong::Required, path, None, "");
    }
    load_balancer_class(spec, errors);
}

pub(super) fn load_balancer_class(spec: &At, errors: &mut Errors) {
    let class = spec.field("loadBalancerClass");
    if !class.is_set() {
        return;
    }
    if spec.field("type").text() == "LoadBalancer" {
        checks::each(&class, names::qualified_name(class.text()), errors);
    } else {
        errors.forbidden(&class, LOAD_BALANCER_ONLY);
    }
}

fn traffic_policies(service: &At, spec: &At, errors: &mut Errors) {
    let empty = Value::Null;
    let whole = service.value().unwrap_or(&empty);
    let external = spec.field("externalTrafficPolicy");
    if externally_accessible(whole) {
        checks::one_of(&external, &["Cluster", "Local"], errors);
    } else if !external.text().is_empty() {
        errors.invalid(&external, "may only be set for externally-accessible services");
    }
    let port = spec.field("healthCheckNodePort");
    let number = port.int().unwrap_or_default();
    if !needs_health_check_port(whole) {
        if number != 0 {
            errors.invalid(&port, "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'");
        }
    } else if number == 0 {
        errors.required(&port, "");
    } else {
        checks::in_range(&port, 1, 65535, errors);
    }
    let internal = spec.field("internalTrafficPolicy");
    if internal.is_set() {
        checks::optional_one_of(&internal, &["Cluster", "Local"], errors);
    } else if needs_cluster_ip(whole) {
        errors.required(&internal, "");
    }
    let distribution = spec.field("trafficDistribution");
    let known = ["PreferClose", "PreferSameNode", "PreferSameZone"];
    checks::optional_one_of(&distribution, &known, errors);
}

fn validate_status_update(new: &At, _old: &At, errors: &mut Errors) {
    let spec = new.field("spec");
    let status = new.field("status");
    let balancer = status.field("loadBalancer");
    let list = balancer.field("ingress");
    if spec.field("type").text() != "LoadBalancer" && !list.is_empty() {
        errors.forbidden(&list, "may only be used when `spec.type` is 'LoadBalancer'");
        return;
    }
    for ingress in list.items() {
        let (ip, mode, host) =
            (ingress.field("ip"), ingress.field("ipMode"), ingress.field("hostname"));
        if !ip.text().is_empty() {
            checks::ip(&ip, errors);
        }
        if !mode.is_set() {
            if !ip.text().is_empty() {
                errors.required(&mode, "must be specified when `ip` is set");
            }
        } else if ip.text().is_empty() {
            errors.forbidden(&mode, "may not be specified when `ip` is not set");
        } else {
            checks::optional_one_of(&mode, &["Proxy", "VIP"], errors);
        }
        checks::optional_name(&host, names::dns1123_subdomain, errors);
        if host.text().parse::<std::net::IpAddr>().is_ok() {
            errors.invalid(&host, "must be a DNS name, not an IP address");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::trial::{NOTHING, create, created, defaulted, merge, update, update_status};
    use super::*;

    fn service(more: Value) -> Value {
        let mut service = json!({"spec": {"clusterIP": "10.0.0.1", "ports": [{"port": 80}]}});
        merge(&mut service["spec"], more);
        service
    }

    #[test]
    fn a_149_services_get_their_defaults() {
        let made = created("Service", json!({"spec": {"ports": [{"port": 80}]}}));
        assert_eq!(
            made["spec"],
            json!({
                "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}],
                "sessionAffinity": "None", "type": "ClusterIP", "internalTrafficPolicy": "Cluster",
            })
        );
        assert_eq!(made["status"], json!({"loadBalancer": {}}));
        let balanced = defaulted(
            "Service",
            json!({"spec": {"type": "LoadBalancer", "sessionAffinity": "ClientIP"}}),
        );
        assert_eq!(
            balanced["spec"],
            json!({
                "sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 10800}},
                "type": "LoadBalancer", "internalTrafficPolicy": "Cluster", "externalTrafficPolicy": "Cluster",
                "allocateLoadBalancerNodePorts": true,
            })
        );
        let external =
            defaulted("Service", json!({"spec": {"type": "ExternalName", "externalName": "x"}}));
        assert_eq!(external["spec"].get("internalTrafficPolicy"), None);
    }

    #[test]
    fn a_151_a_service_needs_node_ports_and_a_health_check_port() {
        let node = defaulted(
            "Service",
            json!({"spec": {"type": "NodePort", "ports": [{"port": 1, "nodePort": 30001}, {"port": 2}]}}),
        );
        assert!(needs_node_ports(&node));
        assert_eq!(node_ports(&node), [30001]);
        assert!(!needs_node_ports(&defaulted("Service", service(json!({})))));
        let local = defaulted(
            "Service",
            json!({"spec": {"type": "LoadBalancer", "externalTrafficPolicy": "Local"}}),
        );
        assert!(needs_health_check_port(&local));
    }

    #[test]
    fn a_92_invalid_services_are_rejected_with_upstreams_messages() {
        let rows: &[(Value, &str)] = &[
            (json!({"ports": []}), "spec.ports: Required value"),
            (
                json!({"type": "Fancy"}),
                "spec.type: Unsupported value: \"Fancy\": supported values: \"ClusterIP\", \"ExternalName\", \"LoadBalancer\", \"NodePort\"",
            ),
            (
                json!({"clusterIP": "x"}),
                "spec.clusterIPs[0]: Invalid value: \"x\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
            ),
            (
                json!({"type": "NodePort", "clusterIP": "None"}),
                "spec.clusterIPs[0]: Invalid value: \"None\": may not be set to 'None' for NodePort services",
            ),
            (
                json!({"ports": [{"port": 80, "nodePort": 30000}]}),
                "spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'",
            ),
            (
                json!({"externalTrafficPolicy": "Local"}),
                "spec.externalTrafficPolicy: Invalid value: \"Local\": may only be set for externally-accessible services",
            ),
            (
                json!({"externalIPs": ["127.0.0.1"]}),
                "spec.externalIPs[0]: Invalid value: \"127.0.0.1\": may not be in the loopback range (127.0.0.0/8, ::1/128)",
            ),
            (
                json!({"loadBalancerClass": "a/b"}),
                "spec.loadBalancerClass: Forbidden: may only be used when `type` is 'LoadBalancer'",
            ),
            (
                json!({"loadBalancerSourceRanges": ["10.0.0.0/8"]}),
                "spec.LoadBalancerSourceRanges: Forbidden: may only be used when `type` is 'LoadBalancer'",
            ),
            (
                json!({"type": "ExternalName", "clusterIP": null, "externalName": ""}),
                "spec.externalName: Required value",
            ),
        ];
        for (spec, message) in rows {
            assert_eq!(create("Service", service(spec.clone())), [*message]);
        }
        assert_eq!(
            create("Service", service(json!({"ports": [{"port": 80}, {"port": 81}]}))),
            ["spec.ports[0].name: Required value", "spec.ports[1].name: Required value"]
        );
        assert_eq!(create("Service", service(json!({}))), NOTHING);
        assert_eq!(create("Service", service(json!({"clusterIP": "None", "ports": []}))), NOTHING);
    }

    #[test]
    fn net_20_ports_are_named_and_distinct() {
        let ports = |ports: Value| create("Service", service(json!({ "ports": ports })));
        let both = json!([{"name": "a", "port": 53}, {"name": "b", "port": 53, "protocol": "UDP"}]);
        assert_eq!(ports(both), NOTHING, "one number, two protocols");
        let twice = ports(json!([{"name": "a", "port": 53}, {"name": "b", "port": 53}]));
        let key = r#"{"port":53,"protocol":"TCP"}"#;
        assert_eq!(twice, [format!("spec.ports[1]: Duplicate value: {key}")]);
        let names = ports(json!([{"name": "a", "port": 53}, {"name": "a", "port": 54}]));
        assert_eq!(names, ["spec.ports[1].name: Duplicate value: \"a\""]);
        assert!(ports(json!([{"name": "A_b", "port": 53}]))[0].contains("RFC 1123 label"));
        let node = |second: Value| {
            let first = json!({"name": "a", "port": 53, "nodePort": 30001});
            let spec = json!({"type": "NodePort", "ports": [first, second]});
            create("Service", service(spec))
        };
        assert_eq!(
            node(json!({"name": "b", "port": 54, "nodePort": 30001})),
            ["spec.ports[1].nodePort: Duplicate value: 30001"]
        );
        assert_eq!(
            node(json!({"name": "b", "port": 54, "nodePort": 30001, "protocol": "UDP"})),
            NOTHING
        );
        for without in [
            json!({"clusterIP": "None", "ports": []}),
            json!({"type": "ExternalName", "clusterIP": null, "externalName": "x.y", "ports": []}),
        ] {
            assert_eq!(create("Service", service(without)), NOTHING, "no port is needed");
        }
    }

    #[test]
    fn net_22_some_fields_belong_to_some_types() {
        let external = ["NodePort", "LoadBalancer"].map(|kind| json!({ "type": kind }));
        let with_ips = json!({"externalIPs": ["192.0.2.7"]});
        for spec in external.into_iter().chain([with_ips]) {
            let made = created("Service", service(spec.clone()));
            assert_eq!(made["spec"]["externalTrafficPolicy"], "Cluster", "{spec}");
        }
        let only = "may only be used when `type` is 'LoadBalancer'";
        let check =
            "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
        for (spec, expected) in [
            (
                json!({"type": "NodePort", "allocateLoadBalancerNodePorts": true}),
                format!("spec.allocateLoadBalancerNodePorts: Forbidden: {only}"),
            ),
            (
                json!({"type": "LoadBalancer", "healthCheckNodePort": 30001}),
                format!("spec.healthCheckNodePort: Invalid value: 30001: {check}"),
            ),
            (
                json!({"type": "NodePort", "externalTrafficPolicy": "Local", "healthCheckNodePort": 30001}),
                format!("spec.healthCheckNodePort: Invalid value: 30001: {check}"),
            ),
            (
                json!({"externalTrafficPolicy": "Cluster"}),
                "spec.externalTrafficPolicy: Invalid value: \"Cluster\": may only be set for externally-accessible services".into(),
            ),
        ] {
            assert_eq!(create("Service", service(spec.clone())), [expected], "{spec}");
        }
        let name = json!({"type": "ExternalName", "clusterIP": null, "externalName": "x.y",
                          "internalTrafficPolicy": "Local"});
        let made = created("Service", service(name));
        assert_eq!(made["spec"].get("internalTrafficPolicy"), None);
    }

    #[test]
    fn net_23_ambiguous_addresses_are_refused_unless_they_are_stored() {
        let balanced = |ranges: Value| {
            service(json!({"type": "LoadBalancer", "loadBalancerSourceRanges": ranges}))
        };
        let bits = "must not have bits set beyond the prefix length";
        let refused =
            format!("spec.LoadBalancerSourceRanges[1]: Invalid value: \"10.1.2.3/8\": {bits}");
        let ranges = json!(["10.0.0.0/8", " 10.1.2.3/8 "]);
        assert_eq!(create("Service", balanced(ranges.clone())), std::slice::from_ref(&refused));
        let mapped = "spec.externalIPs[0]: Invalid value: \"::ffff:192.0.2.7\": must not be an IPv4-mapped IPv6 address";
        let given = json!({"externalIPs": ["::ffff:192.0.2.7"]});
        assert_eq!(create("Service", service(given)), [mapped]);
        let zeros = "spec.externalIPs[0]: Invalid value: \"192.0.2.07\": must not have leading 0s";
        assert_eq!(create("Service", service(json!({"externalIPs": ["192.0.2.07"]}))), [zeros]);

        let old = created("Service", balanced(ranges));
        assert_eq!(update("Service", &old, json!({"metadata": {"labels": {"a": "b"}}})), NOTHING);
        let change = json!({"spec": {"loadBalancerSourceRanges": ["10.0.0.0/8", "10.1.2.4/8"]}});
        assert_eq!(update("Service", &old, change), [refused.replace("2.3", "2.4")]);
    }

    #[test]
    fn a_84_only_load_balancers_have_ingress_addresses() {
        let plain = created("Service", service(json!({})));
        let ingress = json!({"loadBalancer": {"ingress": [{"ip": "1.2.3.4", "ipMode": "VIP"}]}});
        assert_eq!(
            update_status("Service", &plain, ingress.clone()),
            [
                "status.loadBalancer.ingress: Forbidden: may only be used when `spec.type` is 'LoadBalancer'"
            ]
        );
        let balanced = created("Service", service(json!({"type": "LoadBalancer"})));
        assert_eq!(update_status("Service", &balanced, ingress), NOTHING);
    }
}
