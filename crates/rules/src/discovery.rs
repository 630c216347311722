//! Rules of the `discovery.k8s.io` kinds: EndpointSlices.

use super::{Generation, Rules, check};
use api::field::{At, Errors};
use api::names;
use api::value::ValueExt;
use serde_json::Value;
use std::collections::HashSet;
use std::net::IpAddr;

const ENDPOINTS_MAX: usize = 1000;
const ADDRESSES_MAX: usize = 100;
const PORTS_MAX: usize = 20_000;
const ZONE_HINTS_MAX: usize = 8;
const NODE_HINTS_MAX: usize = 8;

pub(crate) fn rules(kind: &str) -> Rules {
    match kind {
        "EndpointSlice" => Rules {
            default,
            validate,
            validate_update: |new, old, errors| {
                check::immutable(&new.field("addressType"), &old.field("addressType"), errors);
            },
            generation: Generation::ContentOrLabels,
            ..Rules::NONE
        },
        _ => Rules::NONE,
    }
}

/// Defaults of an EndpointSlice. An empty slice has `endpoints: null` and `ports: null`.
fn default(slice: &mut Value) {
    for port in slice.list_mut("ports") {
        port.set_default("name", "");
        port.set_default("protocol", "TCP");
    }
    for endpoint in slice.list_mut("endpoints") {
        endpoint.object("conditions");
    }
    slice.set_default("endpoints", Value::Null);
    slice.set_default("ports", Value::Null);
}

fn validate(slice: &At, errors: &mut Errors) {
    let kind = slice.field("addressType");
    if kind.text().is_empty() {
        errors.required(&kind, "");
    } else {
        check::one_of(&kind, &["FQDN", "IPv4", "IPv6"], errors);
    }
    let endpoints = slice.field("endpoints");
    if endpoints.len() > ENDPOINTS_MAX {
        errors.too_many(&endpoints, ENDPOINTS_MAX);
    } else {
        for endpoint in endpoints.items() {
            validate_endpoint(&endpoint, kind.text(), errors);
        }
    }
    validate_ports(&slice.field("ports"), errors);
}

fn validate_endpoint(endpoint: &At, kind: &str, errors: &mut Errors) {
    let addresses = endpoint.field("addresses");
    if addresses.is_empty() {
        errors.required(&addresses, "must contain at least 1 address");
    } else if addresses.len() > ADDRESSES_MAX {
        errors.too_many(&addresses, ADDRESSES_MAX);
    }
    for address in addresses.items() {
        validate_endpoint_address(&address, kind, errors);
    }
    let node = endpoint.field("nodeName");
    if node.is_set() {
        check::text(&node, names::dns1123_subdomain, errors);
    }
    api::metadata::labels(&endpoint.field("deprecatedTopology"), errors);
    let host = endpoint.field("hostname");
    if host.is_set() {
        check::text(&host, names::dns1123_label, errors);
    }
    let hints = endpoint.field("hints");
    validate_hints(&hints.field("forZones"), ZONE_HINTS_MAX, names::label_value, errors);
    validate_hints(&hints.field("forNodes"), NODE_HINTS_MAX, names::dns1123_subdomain, errors);
}

fn validate_hints(hints: &At, max: usize, name: fn(&str) -> Vec<String>, errors: &mut Errors) {
    if hints.len() > max {
        errors.too_many(hints, max);
        return;
    }
    let mut seen = check::Unique::new();
    for hint in hints.items() {
        let at = hint.field("name");
        if !seen.add(at.text()) {
            errors.duplicate(&at);
        } else {
            check::text(&at, name, errors);
        }
    }
}

fn validate_endpoint_address(address: &At, kind: &str, errors: &mut Errors) {
    match (kind, address.text().parse::<IpAddr>()) {
        ("IPv4", Ok(ip @ IpAddr::V4(_))) | ("IPv6", Ok(ip @ IpAddr::V6(_))) => {
            if let Some(detail) = why_special(ip) {
                errors.invalid(address, &detail);
            }
        }
        ("IPv4", _) => errors.invalid(address, "must be a valid IPv4 address"),
        ("IPv6", _) => errors.invalid(address, "must be a valid IPv6 address"),
        ("FQDN", _) => check::text(address, names::dns1123_subdomain, errors),
        _ => {}
    }
}

/// Loopback, link-local and similar addresses cannot be endpoints.
pub(crate) fn why_special(ip: IpAddr) -> Option<String> {
    let (link_local, link_local_multicast) = match ip {
        IpAddr::V4(ip) => (ip.is_link_local(), ip.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(ip) => (ip.is_unicast_link_local(), ip.segments()[0] == 0xff02),
    };
    if ip.is_unspecified() {
        Some(format!("may not be unspecified ({ip})"))
    } else if ip.is_loopback() {
        Some("may not be in the loopback range (127.0.0.0/8, ::1/128)".into())
    } else if link_local {
        Some("may not be in the link-local range (169.254.0.0/16, fe80::/10)".into())
    } else if link_local_multicast {
        Some("may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)".into())
    } else {
        None
    }
}

fn validate_ports(ports: &At, errors: &mut Errors) {
    if ports.len() > PORTS_MAX {
        errors.too_many(ports, PORTS_MAX);
        return;
    }
    // There may be many ports, so duplicates are found with a set instead of a scan.
    let mut seen = HashSet::new();
    for port in ports.items() {
        let name = port.field("name");
        if !name.text().is_empty() {
            check::text(&name, names::dns1123_label, errors);
        }
        if !seen.insert(name.text().to_owned()) {
            errors.duplicate(&name);
        }
        check::one_of(&port.field("protocol"), &["SCTP", "TCP", "UDP"], errors);
        if port.field("port").is_set() {
            check::port_number(&port.field("port"), errors);
        }
        let protocol = port.field("appProtocol");
        if protocol.is_set() {
            check::text(&protocol, names::qualified_name, errors);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_147_ports_have_a_name_and_a_protocol() {
        let mut slice = json!({"addressType": "IPv4", "ports": [{"port": 80}]});
        default(&mut slice);
        assert_eq!(slice["ports"], json!([{"name": "", "port": 80, "protocol": "TCP"}]));
        assert_eq!(slice["endpoints"], json!(null));
    }

    #[test]
    fn a_92_invalid_slices_are_rejected_with_upstreams_messages() {
        for (slice, expected) in [
            (json!({"addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"]}]}), vec![]),
            (json!({}), vec!["addressType: Required value"]),
            (
                json!({"addressType": "IPv5"}),
                vec![
                    "addressType: Unsupported value: \"IPv5\": supported values: \"FQDN\", \"IPv4\", \"IPv6\"",
                ],
            ),
            (
                json!({"addressType": "IPv4", "endpoints": [{"addresses": []}]}),
                vec!["endpoints[0].addresses: Required value: must contain at least 1 address"],
            ),
            (
                json!({"addressType": "IPv4", "endpoints": [{"addresses": ["fd00::1", "127.0.0.1"]}]}),
                vec![
                    "endpoints[0].addresses[0]: Invalid value: \"fd00::1\": must be a valid IPv4 address",
                    "endpoints[0].addresses[1]: Invalid value: \"127.0.0.1\": may not be in the loopback range (127.0.0.0/8, ::1/128)",
                ],
            ),
            (
                json!({"addressType": "IPv4", "ports": [{}, {}]}),
                vec!["ports[1].name: Duplicate value: \"\""],
            ),
        ] {
            let mut slice = slice;
            default(&mut slice);
            let mut errors = Errors::default();
            validate(&At::root(&slice), &mut errors);
            let messages: Vec<_> = errors.iter().map(ToString::to_string).collect();
            assert_eq!(messages, expected, "{slice}");
        }
    }

    fn messages(mut slice: Value) -> Vec<String> {
        default(&mut slice);
        let mut errors = Errors::default();
        validate(&At::root(&slice), &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn net_87_the_size_of_a_slice_is_limited() {
        let slice = |endpoint: Value, ports: Value| -> Value {
            json!({"addressType": "IPv4", "endpoints": [endpoint], "ports": ports})
        };
        let addresses = |number: usize| -> Value {
            (0..number).map(|n| format!("10.0.0.{n}")).collect::<Vec<_>>().into()
        };
        let hinted = |field: &str, number: usize| {
            let names: Vec<Value> = (0..number).map(|n| json!({"name": format!("n{n}")})).collect();
            slice(json!({"addresses": ["10.0.0.1"], "hints": {field: names}}), Value::Null)
        };
        let endpoints = |number: usize| {
            let all = vec![json!({"addresses": ["10.0.0.1"]}); number];
            json!({"addressType": "IPv4", "endpoints": all})
        };
        let ports = |number: usize| {
            let all: Vec<Value> = (0..number).map(|n| json!({"name": format!("p{n}")})).collect();
            slice(json!({"addresses": ["10.0.0.1"]}), all.into())
        };
        for (within, beyond, field, max) in [
            (endpoints(1000), endpoints(1001), "endpoints", 1000),
            (
                slice(json!({"addresses": addresses(100)}), Value::Null),
                slice(json!({"addresses": addresses(101)}), Value::Null),
                "endpoints[0].addresses",
                100,
            ),
            (ports(20_000), ports(20_001), "ports", 20_000),
            (hinted("forZones", 8), hinted("forZones", 9), "endpoints[0].hints.forZones", 8),
            (hinted("forNodes", 8), hinted("forNodes", 9), "endpoints[0].hints.forNodes", 8),
        ] {
            assert_eq!(messages(within), Vec::<String>::new(), "{field}");
            let why = format!("{field}: Too many: {}: must have at most {max} items", max + 1);
            assert_eq!(messages(beyond), [why]);
        }
        let twice = json!({"addresses": ["10.0.0.1"], "hints": {"forNodes": [{"name": "n"}, {"name": "n"}]}});
        assert_eq!(
            messages(slice(twice, Value::Null)),
            ["endpoints[0].hints.forNodes[1].name: Duplicate value: \"n\""]
        );
        let wrong = json!({"addresses": ["10.0.0.1"], "hints": {"forNodes": [{"name": "N"}]}});
        assert_eq!(messages(slice(wrong, Value::Null)).len(), 1);
    }

    #[test]
    fn net_87_special_addresses_cannot_be_endpoints() {
        let of = |kind: &str, address: &str| {
            messages(json!({"addressType": kind, "endpoints": [{"addresses": [address]}]}))
        };
        for (kind, address, why) in [
            ("IPv4", "127.0.0.1", "loopback range"),
            ("IPv4", "127.9.9.9", "loopback range"),
            ("IPv6", "::1", "loopback range"),
            ("IPv4", "169.254.0.7", "link-local range"),
            ("IPv6", "fe80::1", "link-local range"),
            ("IPv4", "0.0.0.0", "unspecified"),
            ("IPv6", "::", "unspecified"),
            ("IPv4", "224.0.0.1", "link-local multicast range"),
            ("IPv6", "ff02::1", "link-local multicast range"),
        ] {
            let messages = of(kind, address);
            assert!(messages.len() == 1 && messages[0].contains(why), "{address}: {messages:?}");
        }
        for (kind, address) in [("IPv4", "10.0.0.1"), ("IPv6", "fd00::1"), ("FQDN", "example.com")]
        {
            assert_eq!(of(kind, address), Vec::<String>::new(), "{address}");
        }
    }

    #[test]
    fn net_87_the_address_type_of_a_slice_is_immutable() {
        let (old, new) = (json!({"addressType": "IPv4"}), json!({"addressType": "IPv6"}));
        let update = |new: &Value| {
            let mut errors = Errors::default();
            (rules("EndpointSlice").validate_update)(&At::root(new), &At::root(&old), &mut errors);
            errors.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(update(&old), Vec::<String>::new());
        assert_eq!(update(&new), ["addressType: Invalid value: \"IPv6\": field is immutable"]);
    }
}
