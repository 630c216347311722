//! Selects the addresses of the node (N-8).

use k8s_openapi::api::core::v1::NodeAddress;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Candidates for the node's addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Addresses {
    /// Addresses of this machine's interfaces.
    pub(crate) local: Vec<IpAddr>,
    /// What the node's name resolves to.
    pub(crate) resolved: Vec<IpAddr>,
    /// Source addresses of packets to the internet.
    pub(crate) outward: Vec<IpAddr>,
}

impl Addresses {
    pub(crate) async fn read(name: &str) -> Addresses {
        let resolved = tokio::net::lookup_host((name, 0)).await;
        let resolved = resolved.map(|found| found.map(|address| address.ip()).collect());
        Addresses { resolved: resolved.unwrap_or_default(), ..Addresses::unresolved() }
    }

    /// Without resolving the name.
    pub(crate) fn unresolved() -> Addresses {
        Addresses { local: local(), resolved: Vec::new(), outward: outward() }
    }
}

fn local() -> Vec<IpAddr> {
    let interfaces = nix::ifaddrs::getifaddrs().into_iter().flatten();
    let addresses = interfaces.filter_map(|interface| interface.address);
    addresses
        .filter_map(|address| {
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
        })
        .collect()
}

/// Connecting a datagram socket consults the routing table and sends nothing.
fn outward() -> Vec<IpAddr> {
    let documentation: [(IpAddr, IpAddr); 2] = [
        (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(192, 0, 2, 1).into()),
        (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into()),
    ];
    let source = |(from, to): (IpAddr, IpAddr)| -> Option<IpAddr> {
        let socket = UdpSocket::bind(SocketAddr::new(from, 0)).ok()?;
        socket.connect(SocketAddr::new(to, 9)).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    documentation.into_iter().filter_map(source).collect()
}

/// InternalIP (two if two are configured), then Hostname.
pub(super) fn choose(
    name: &str,
    configured: &[IpAddr],
    found: &Addresses,
) -> Result<Vec<NodeAddress>, String> {
    let ips = if configured.is_empty() {
        vec![automatic(name, found).ok_or_else(|| {
            format!("can't get ip address of node {name}. error: no default routes found")
        })?]
    } else {
        for ip in configured {
            usable(ip, &found.local)?;
        }
        configured.to_vec()
    };
    let address = |type_: &str, address: String| NodeAddress { type_: type_.to_owned(), address };
    let internal = ips.iter().map(|ip| address("InternalIP", ip.to_string()));
    Ok(internal.chain([address("Hostname", name.to_owned())]).collect())
}

fn automatic(name: &str, found: &Addresses) -> Option<IpAddr> {
    if let Ok(ip) = name.parse() {
        return Some(ip);
    }
    let named = found.resolved.iter().filter(|ip| usable(ip, &found.local).is_ok());
    let own = found.local.iter().filter(|ip| usable(ip, &found.local).is_ok());
    // Unlike upstream, a machine without a default route uses an address of its interfaces.
    [named.collect::<Vec<_>>(), found.outward.iter().collect(), own.collect()]
        .into_iter()
        .find_map(|some| some.iter().find(|ip| ip.is_ipv4()).or(some.first()).map(|ip| **ip))
}

/// Upstream: `validateNodeIP`.
fn usable(ip: &IpAddr, local: &[IpAddr]) -> Result<(), String> {
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    if ip.is_loopback() {
        return Err("nodeIP can't be loopback address".to_owned());
    }
    if ip.is_multicast() {
        return Err("nodeIP can't be a multicast address".to_owned());
    }
    if link_local {
        return Err("nodeIP can't be a link-local unicast address".to_owned());
    }
    if ip.is_unspecified() {
        return Err("nodeIP can't be an all zeros address".to_owned());
    }
    match local.contains(ip) {
        true => Ok(()),
        false => Err(format!("node IP: \"{ip}\" not found in the host's network interfaces")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ips(list: &[&str]) -> Vec<IpAddr> {
        list.iter().map(|ip| ip.parse().unwrap()).collect()
    }

    fn chosen(name: &str, configured: &[&str], found: &Addresses) -> Result<String, String> {
        let addresses = choose(name, &ips(configured), found)?;
        let shown = addresses.iter().map(|a| format!("{}={}", a.type_, a.address));
        Ok(shown.collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn n_8_addresses_are_selected_in_order_of_preference() {
        let found = Addresses {
            local: ips(&["127.0.0.1", "10.0.0.5", "10.0.0.6", "fd00::5", "10.0.0.7"]),
            resolved: ips(&["127.0.1.1", "fd00::5", "10.0.0.6"]),
            outward: ips(&["10.0.0.5"]),
        };
        let choose = |name: &str, configured: &[&str]| chosen(name, configured, &found);
        assert_eq!(choose("n", &["10.0.0.7"]).unwrap(), "InternalIP=10.0.0.7 Hostname=n");
        assert_eq!(
            choose("n", &["10.0.0.7", "fd00::5"]).unwrap(),
            "InternalIP=10.0.0.7 InternalIP=fd00::5 Hostname=n"
        );
        assert_eq!(choose("10.9.9.9", &[]).unwrap(), "InternalIP=10.9.9.9 Hostname=10.9.9.9");
        assert_eq!(choose("n", &[]).unwrap(), "InternalIP=10.0.0.6 Hostname=n");
        let unresolved = Addresses { resolved: ips(&["127.0.1.1"]), ..found.clone() };
        assert_eq!(chosen("n", &[], &unresolved).unwrap(), "InternalIP=10.0.0.5 Hostname=n");
        let no_route = Addresses { outward: vec![], ..unresolved };
        assert_eq!(chosen("n", &[], &no_route).unwrap(), "InternalIP=10.0.0.5 Hostname=n");
        assert!(chosen("n", &[], &Addresses::default()).is_err());
    }

    #[test]
    fn n_8_a_configured_address_must_be_on_this_machine_and_reachable() {
        let found = Addresses { local: ips(&["127.0.0.1", "10.0.0.5"]), ..Addresses::default() };
        for (ip, why) in [
            ("127.0.0.1", "loopback"),
            ("224.0.0.1", "multicast"),
            ("169.254.1.1", "link-local"),
            ("0.0.0.0", "all zeros"),
            ("10.0.0.9", "not found in the host's network interfaces"),
        ] {
            assert!(chosen("n", &[ip], &found).unwrap_err().contains(why), "{ip}");
        }
    }
}
