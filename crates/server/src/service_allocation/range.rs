//! A range of cluster IPs.

use super::bands;
use std::net::Ipv4Addr;

/// An IPv4 network and the length of its prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceRange {
    network: Ipv4Addr,
    bits: u32,
}

/// The prefix lengths that `--service-cidr` may have. A smaller range would not contain the address of the DNS server.
const PREFIXES: std::ops::RangeInclusive<u32> = 8..=28;
/// The DNS server has the tenth address of the range.
const DNS_HOST: u32 = 10;

impl Default for ServiceRange {
    fn default() -> Self {
        ServiceRange { network: Ipv4Addr::new(10, 96, 0, 0), bits: 16 }
    }
}

impl ServiceRange {
    /// Reads the value of `--service-cidr`.
    pub fn from_option(text: &str) -> Result<ServiceRange, String> {
        if text.contains(',') || text.contains(':') {
            return Err(format!(
                "{text:?} is not one IPv4 range: Services with IPv6 addresses are not supported"
            ));
        }
        let range = ServiceRange::parse(text)
            .ok_or_else(|| format!("{text:?} is not an IPv4 range such as 10.96.0.0/16"))?;
        if !PREFIXES.contains(&range.bits) {
            let (least, most) = (PREFIXES.start(), PREFIXES.end());
            return Err(format!("{text:?} must have a prefix length from {least} to {most}"));
        }
        let network = range.address(0);
        if network != range.network {
            return Err(format!(
                "{text:?} is not the start of a range: write {network}/{}",
                range.bits
            ));
        }
        Ok(range)
    }

    pub(crate) fn parse(text: &str) -> Option<ServiceRange> {
        let (network, bits) = text.split_once('/')?;
        let (network, bits) = (network.parse().ok()?, bits.parse().ok()?);
        (1..=32).contains(&bits).then_some(ServiceRange { network, bits })
    }

    /// The address of the Service `kubernetes`: the first one (NET-95).
    pub fn api_address(self) -> Ipv4Addr {
        self.address(1)
    }

    /// The address of the cluster's DNS server.
    pub fn dns_address(self) -> Ipv4Addr {
        self.address(DNS_HOST)
    }

    fn address(self, host: u32) -> Ipv4Addr {
        let mask = u32::MAX.checked_shl(32 - self.bits).unwrap_or_default();
        Ipv4Addr::from((u32::from(self.network) & mask).wrapping_add(host))
    }

    /// Whether it has an address of another IPv4 range. False if the text is not one.
    pub fn overlaps(self, cidr: &str) -> bool {
        let other = ServiceRange::parse(cidr);
        other.is_some_and(|other| self.contains(other.network) || other.contains(self.network))
    }

    pub(crate) fn contains(self, address: Ipv4Addr) -> bool {
        let cut = |address: Ipv4Addr| u32::from(address) >> (32 - self.bits);
        cut(address) == cut(self.network)
    }

    /// The network address, which no Service has.
    pub(super) fn network(self) -> Ipv4Addr {
        self.address(0)
    }

    /// How many addresses Services can have: not the network address and the broadcast address, if the range is large
    /// enough to have them.
    pub(super) fn usable(self) -> u64 {
        match 1u64 << (32 - self.bits) {
            hosts @ 1..=2 => hosts,
            hosts => hosts - 2,
        }
    }

    /// All usable addresses, in the order in which automatic allocation tries them (NET-147).
    pub(super) fn automatic(self, random: u64) -> impl Iterator<Item = Ipv4Addr> {
        let size = 1u64 << (32 - self.bits);
        let first = if size > 2 { 1 } else { 0 };
        let offsets = bands::automatic(self.usable(), bands::lower_addresses(size), random);
        offsets.map(move |offset| self.address(first + offset as u32))
    }
}

impl std::fmt::Display for ServiceRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.network, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn net_147_automatic_addresses_are_usable_and_prefer_the_upper_band() {
        for (text, usable, lower) in [
            ("10.9.0.0/24", 254, 16),
            ("10.9.0.0/28", 14, 0),
            ("10.9.0.0/29", 6, 0),
            ("10.9.0.4/31", 2, 0),
            ("10.9.0.9/32", 1, 0),
        ] {
            let range = ServiceRange::parse(text).unwrap();
            assert_eq!(range.to_string(), text);
            let mut order: Vec<Ipv4Addr> = range.automatic(77).collect();
            assert_eq!(order.len() as u64, usable, "{text}");
            assert_eq!(range.usable(), usable);
            let last = order.split_off(order.len() - lower);
            let first: Vec<Ipv4Addr> = (1..=lower as u32).map(|host| range.address(host)).collect();
            assert_eq!(last, first, "the lower band of {text} is last");
            assert!(order.iter().all(|address| range.contains(*address)), "{text}");
            let ends = [range.network(), Ipv4Addr::from(u32::from(range.network()) | 0xff)];
            assert!(usable != 254 || ends.iter().all(|end| !order.contains(end)), "{text}");
        }
        // A large range costs no more than the addresses that are tried.
        let large = ServiceRange::parse("128.0.0.0/1").unwrap();
        assert_eq!(large.automatic(5).next(), Some("128.0.1.6".parse().unwrap()));
        for text in ["fd00::/64", "10.0.0.0", "10.0.0.0/33", "10.0.0.0/0", ""] {
            assert_eq!(ServiceRange::parse(text), None, "{text}");
        }
        let small = ServiceRange::parse("10.9.0.0/29").unwrap();
        assert!(!small.contains("10.9.0.8".parse().unwrap()));
    }

    #[test]
    fn ranges_overlap_if_one_contains_the_other() {
        let range = ServiceRange::from_option("10.96.0.0/16").unwrap();
        for (other, overlaps) in [
            ("10.96.0.0/16", true),
            ("10.96.7.0/24", true),
            ("10.0.0.0/8", true),
            ("10.97.0.0/16", false),
            ("10.244.0.0/16", false),
            ("nonsense", false),
        ] {
            assert_eq!(range.overlaps(other), overlaps, "{other}");
        }
    }

    #[test]
    fn an_option_is_one_ipv4_range_with_room_for_the_api_and_dns() {
        for (text, api, dns) in [
            ("10.96.0.0/16", "10.96.0.1", "10.96.0.10"),
            ("10.7.16.0/20", "10.7.16.1", "10.7.16.10"),
            ("192.168.3.16/28", "192.168.3.17", "192.168.3.26"),
        ] {
            let range = ServiceRange::from_option(text).unwrap();
            assert_eq!(range.api_address().to_string(), api);
            assert_eq!(range.dns_address().to_string(), dns);
        }
        for (text, why) in [
            ("10.96.0.0", "such as 10.96.0.0/16"),
            ("ten", "such as 10.96.0.0/16"),
            ("", "such as 10.96.0.0/16"),
            ("10.96.0.0/29", "from 8 to 28"),
            ("10.0.0.0/7", "from 8 to 28"),
            ("10.96.0.1/16", "write 10.96.0.0/16"),
            ("fd00::/112", "IPv6 addresses are not supported"),
            ("10.96.0.0/16,fd00::/112", "IPv6 addresses are not supported"),
        ] {
            let refused = ServiceRange::from_option(text).unwrap_err();
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }
}
