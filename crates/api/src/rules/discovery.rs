//! Rules of the `discovery.k8s.io` kinds: which addresses stand behind a service.

use super::{Generation, Rules, check};
use crate::field::{At, Errors};
use crate::names;
use crate::value::ValueExt;
use serde_json::Value;
use std::net::IpAddr;

const ENDPOINTS_MAX: usize = 1000;
const ADDRESSES_MAX: usize = 100;
const PORTS_MAX: usize = 20_000;
const ZONE_HINTS_MAX: usize = 8;

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

/// A-147; an empty slice shows `endpoints: null` and `ports: null`.
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
    crate::metadata::labels(&endpoint.field("deprecatedTopology"), errors);
    let host = endpoint.field("hostname");
    if host.is_set() {
        check::text(&host, names::dns1123_label, errors);
    }
    let hints = endpoint.field("hints");
    let zones = hints.field("forZones");
    if zones.len() > ZONE_HINTS_MAX {
        errors.too_many(&zones, ZONE_HINTS_MAX);
        return;
    }
    let mut seen = check::Unique::new();
    for zone in zones.items() {
        let name = zone.field("name");
        if !seen.add(name.text()) {
            errors.duplicate(&name);
        } else {
            check::text(&name, names::label_value, errors);
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

/// Addresses that mean something else on every machine cannot be endpoints.
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
    let mut seen = check::Unique::new();
    for port in ports.items() {
        let name = port.field("name");
        if !name.text().is_empty() {
            check::text(&name, names::dns1123_label, errors);
        }
        if !seen.add(name.text()) {
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

    ///
    #[test]
    fn a_92_wrong_slices_are_refused_in_upstreams_words() {
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
            let said: Vec<_> = errors.iter().map(ToString::to_string).collect();
            assert_eq!(said, expected, "{slice}");
        }
    }
}
