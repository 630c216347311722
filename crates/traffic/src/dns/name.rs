//! What a name asks for, by its form alone (NET-96). No objects, no I/O.

use hickory_proto::rr::Name;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The object that a name would belong to, if it exists. All texts are lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Subject {
    /// `<zone>`
    Zone,
    /// `svc.<zone>` or `pod.<zone>`
    Branch,
    /// `dns-version.<zone>`
    Version,
    /// `<ns>.svc.<zone>` or `<ns>.pod.<zone>`
    Namespace(String),
    /// `<svc>.<ns>.svc.<zone>`
    Service(ServiceName),
    /// `<host>.<svc>.<ns>.svc.<zone>`
    Endpoint(ServiceName, String),
    /// `_<port>._<protocol>.<svc>.<ns>.svc.<zone>`
    Port(ServiceName, PortName),
    /// `<a>-<b>-<c>-<d>.<ns>.pod.<zone>`
    Pod { namespace: String, address: IpAddr },
    /// The name of an address in `in-addr.arpa` or `ip6.arpa`.
    Reverse(IpAddr),
    /// In the zone, but no object can have this name.
    Nothing,
    /// Not in the zone and not the name of an address.
    Outside,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServiceName {
    pub(crate) namespace: String,
    pub(crate) service: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PortName {
    pub(crate) port: String,
    pub(crate) protocol: String,
}

/// Says what `name` asks for. `zone` is the cluster domain.
pub(crate) fn subject_of(name: &Name, zone: &Name) -> Subject {
    if !zone.zone_of(name) {
        return reverse(name).map_or(Subject::Outside, Subject::Reverse);
    }
    let below = usize::from(name.num_labels()).saturating_sub(usize::from(zone.num_labels()));
    // The longest pattern has five labels.
    if below > 5 {
        return Subject::Nothing;
    }
    let labels: Option<Vec<String>> = name.iter().take(below).map(object_name).collect();
    let Some(labels) = labels else {
        return Subject::Nothing;
    };
    let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
    in_zone(&labels)
}

/// `labels` are those before the zone, from left to right.
fn in_zone(labels: &[&str]) -> Subject {
    let service = |service: &str, namespace: &str| ServiceName {
        namespace: namespace.to_owned(),
        service: service.to_owned(),
    };
    match labels {
        [] => Subject::Zone,
        ["svc" | "pod"] => Subject::Branch,
        ["dns-version"] => Subject::Version,
        [namespace, "svc" | "pod"] => Subject::Namespace((*namespace).to_owned()),
        [name, namespace, "svc"] => Subject::Service(service(name, namespace)),
        [host, name, namespace, "svc"] => {
            Subject::Endpoint(service(name, namespace), (*host).to_owned())
        }
        [port, protocol, name, namespace, "svc"] => {
            match (port.strip_prefix('_'), protocol.strip_prefix('_')) {
                (Some(port), Some(protocol)) => {
                    let port = PortName { port: port.to_owned(), protocol: protocol.to_owned() };
                    Subject::Port(service(name, namespace), port)
                }
                _ => Subject::Nothing,
            }
        }
        [address, namespace, "pod"] => match dashed_address(address) {
            Some(address) => Subject::Pod { namespace: (*namespace).to_owned(), address },
            None => Subject::Nothing,
        },
        _ => Subject::Nothing,
    }
}

/// The label in lower case; `None` if no object can have that name.
fn object_name(label: &[u8]) -> Option<String> {
    let possible = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let text = label.iter().all(possible).then(|| str::from_utf8(label).ok())??;
    Some(text.to_ascii_lowercase())
}

/// Reads the name of an endpoint without a host name: its address with dashes.
pub(crate) fn dashed_address(label: &str) -> Option<IpAddr> {
    let v4 = label.replace('-', ".").parse::<Ipv4Addr>().map(IpAddr::V4);
    v4.or_else(|_| label.replace('-', ":").parse::<Ipv6Addr>().map(IpAddr::V6)).ok()
}

/// Reverses [`dashed_address`].
pub(crate) fn dashed(address: IpAddr) -> String {
    address.to_string().replace(['.', ':'], "-")
}

/// The address that a complete name in `in-addr.arpa` or `ip6.arpa` belongs to.
fn reverse(name: &Name) -> Option<IpAddr> {
    let labels: Vec<&[u8]> = name.iter().collect();
    let (arpa, labels) = labels.split_last()?;
    let (family, labels) = labels.split_last()?;
    if !arpa.eq_ignore_ascii_case(b"arpa") {
        return None;
    }
    if family.eq_ignore_ascii_case(b"in-addr") {
        return reverse_v4(labels);
    }
    family.eq_ignore_ascii_case(b"ip6").then(|| reverse_v6(labels))?
}

fn reverse_v4(labels: &[&[u8]]) -> Option<IpAddr> {
    let [d, c, b, a] = labels else {
        return None;
    };
    let byte = |label: &[u8]| -> Option<u8> {
        let text = str::from_utf8(label).ok()?;
        let byte: u8 = text.parse().ok()?;
        // Only one way to write it: neither `+1` nor `01`.
        (byte.to_string() == text).then_some(byte)
    };
    Some(Ipv4Addr::new(byte(a)?, byte(b)?, byte(c)?, byte(d)?).into())
}

fn reverse_v6(labels: &[&[u8]]) -> Option<IpAddr> {
    if labels.len() != 32 {
        return None;
    }
    let mut bits: u128 = 0;
    for label in labels.iter().rev() {
        let [digit] = label else {
            return None;
        };
        bits = bits << 4 | u128::from(char::from(*digit).to_digit(16)?);
    }
    Some(Ipv6Addr::from_bits(bits).into())
}

/// The zone of the names of addresses of this family.
pub(crate) fn reverse_zone(address: IpAddr) -> Name {
    let family: &[u8] = if address.is_ipv4() { b"in-addr" } else { b"ip6" };
    Name::from_labels([family, b"arpa"]).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(text: &str) -> Name {
        Name::from_labels(text.split('.').filter(|label| !label.is_empty()).map(str::as_bytes))
            .unwrap()
    }

    fn subject(text: &str) -> Subject {
        subject_of(&name(text), &name("cluster.local"))
    }

    fn service(namespace: &str, service: &str) -> ServiceName {
        ServiceName { namespace: namespace.into(), service: service.into() }
    }

    /// NET-96, NET-101: which patterns exist, and that everything else in the zone is nothing.
    #[test]
    fn net_96_names_are_read_by_their_form() {
        let port = |port: &str, protocol: &str| PortName {
            port: port.to_owned(),
            protocol: protocol.to_owned(),
        };
        let web = service("shop", "web");
        let rows = [
            ("cluster.local", Subject::Zone),
            ("CLUSTER.Local", Subject::Zone),
            ("svc.cluster.local", Subject::Branch),
            ("pod.cluster.local", Subject::Branch),
            ("dns-version.cluster.local", Subject::Version),
            ("shop.svc.cluster.local", Subject::Namespace("shop".into())),
            ("shop.pod.cluster.local", Subject::Namespace("shop".into())),
            ("web.shop.svc.cluster.local", Subject::Service(web.clone())),
            ("WEB.Shop.sVc.cluster.local", Subject::Service(web.clone())),
            ("db-0.web.shop.svc.cluster.local", Subject::Endpoint(web.clone(), "db-0".into())),
            (
                "_HTTP._tcp.web.shop.svc.cluster.local",
                Subject::Port(web.clone(), port("http", "tcp")),
            ),
            ("http._tcp.web.shop.svc.cluster.local", Subject::Nothing),
            ("_http.tcp.web.shop.svc.cluster.local", Subject::Nothing),
            ("a._http._tcp.web.shop.svc.cluster.local", Subject::Nothing),
            ("other.cluster.local", Subject::Nothing),
            ("web.shop.other.cluster.local", Subject::Nothing),
            ("we/b.shop.svc.cluster.local", Subject::Nothing),
            ("w\u{e4}b.shop.svc.cluster.local", Subject::Nothing),
            ("not-an-ip.shop.pod.cluster.local", Subject::Nothing),
            ("1-2-3-4.x.shop.pod.cluster.local", Subject::Nothing),
            ("local", Subject::Outside),
            ("", Subject::Outside),
            ("example.com", Subject::Outside),
            ("mycluster.local", Subject::Outside),
            ("cluster.local.example.com", Subject::Outside),
        ];
        for (text, expected) in rows {
            assert_eq!(subject(text), expected, "{text}");
        }
        for (text, address) in [("10-0-0-7", "10.0.0.7"), ("fd00--7", "fd00::7"), ("--1", "::1")] {
            let expected =
                Subject::Pod { namespace: "shop".into(), address: address.parse().unwrap() };
            assert_eq!(subject(&format!("{text}.shop.pod.cluster.local")), expected, "{text}");
        }
    }

    #[test]
    fn net_96_names_of_addresses_are_complete_and_written_in_one_way() {
        let v6 = "7.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.D.F.ip6.arpa";
        for (text, expected) in [
            ("7.0.96.10.in-addr.arpa", Some("10.96.0.7")),
            ("7.0.96.10.IN-ADDR.ARPA", Some("10.96.0.7")),
            (v6, Some("fd00::7")),
            ("0.96.10.in-addr.arpa", None),
            ("1.7.0.96.10.in-addr.arpa", None),
            ("07.0.96.10.in-addr.arpa", None),
            ("+7.0.96.10.in-addr.arpa", None),
            ("256.0.96.10.in-addr.arpa", None),
            ("x.0.96.10.in-addr.arpa", None),
            ("in-addr.arpa", None),
            ("arpa", None),
            ("7.0.ip6.arpa", None),
            (&v6.replacen('7', "77", 1), None),
            (&v6.replacen('7', "g", 1), None),
        ] {
            let found = match subject(text) {
                Subject::Reverse(address) => Some(address.to_string()),
                Subject::Outside => None,
                other => panic!("{text} is {other:?}"),
            };
            assert_eq!(found.as_deref(), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_address_is_read_back_from_its_names(bits: u128, v4: bool) {
            let address: IpAddr = match v4 {
                true => Ipv4Addr::from_bits(bits as u32).into(),
                false => Ipv6Addr::from_bits(bits).into(),
            };
            // An IPv4-mapped address is written with dots, which endpoints never have.
            if !matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some()) {
                prop_assert_eq!(dashed_address(&dashed(address)), Some(address));
            }
            let name = Name::from(address);
            prop_assert_eq!(subject_of(&name, &self::name("cluster.local")), Subject::Reverse(address));
            prop_assert!(reverse_zone(address).zone_of(&name));
        }

        #[test]
        fn no_name_panics(labels in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..20), 0..8)) {
            let in_zone = labels.iter().map(Vec::as_slice).chain([&b"cluster"[..], b"local"]);
            for name in [Name::from_labels(in_zone), Name::from_labels(labels.clone())].into_iter().flatten() {
                subject_of(&name, &self::name("cluster.local"));
            }
        }
    }
}
