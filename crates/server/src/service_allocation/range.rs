//! Ranges of cluster IPs.

use super::bands;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The ranges of a cluster: one, or one per IP family. The family of the first is the default of Services (NET-26).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceRanges {
    primary: ServiceRange,
    /// Of the other family.
    secondary: Option<ServiceRange>,
}

impl Default for ServiceRanges {
    fn default() -> Self {
        let network = Ipv4Addr::new(10, 96, 0, 0).into();
        ServiceRanges { primary: ServiceRange { network, bits: 16 }, secondary: None }
    }
}

impl ServiceRanges {
    /// Reads the value of `--service-cidr`: a range, or one of each family with a comma in between.
    pub fn from_option(text: &str) -> Result<ServiceRanges, String> {
        let ranges: Vec<ServiceRange> =
            text.split(',').map(ServiceRange::from_option).collect::<Result<_, _>>()?;
        ServiceRanges::of(&ranges).ok_or_else(|| {
            format!("{text:?}: give one range, or one of IPv4 and one of IPv6, such as 10.96.0.0/16,fd00:96::/112")
        })
    }

    /// `None` unless there are one or two, of different families.
    pub(crate) fn of(ranges: &[ServiceRange]) -> Option<ServiceRanges> {
        match *ranges {
            [primary] => Some(ServiceRanges { primary, secondary: None }),
            [primary, other] if primary.family() != other.family() => {
                Some(ServiceRanges { primary, secondary: Some(other) })
            }
            _ => None,
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = ServiceRange> {
        std::iter::once(self.primary).chain(self.secondary)
    }

    /// `IPv4` or `IPv6` or both, the default first.
    pub(crate) fn families(&self) -> Vec<&'static str> {
        self.iter().map(ServiceRange::family).collect()
    }

    /// Whether the other ranges are these and one of the other family in addition.
    pub(crate) fn can_grow_to(&self, other: &ServiceRanges) -> bool {
        self.primary == other.primary && self.secondary.is_none() && other.secondary.is_some()
    }

    /// The address of the Service `kubernetes`: the first one of the first range (NET-95).
    pub fn api_address(&self) -> IpAddr {
        self.primary.address(1)
    }

    /// The address of the cluster's DNS server.
    pub fn dns_address(&self) -> IpAddr {
        self.primary.address(DNS_HOST)
    }

    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        self.iter().any(|range| range.contains(address))
    }

    /// Whether they have an address of another range. False if the text is not a range.
    pub fn overlap(&self, cidr: &str) -> bool {
        split(cidr).is_some_and(|(network, bits)| {
            self.iter().any(|range| range.overlaps(ServiceRange { network, bits }))
        })
    }
}

impl std::fmt::Display for ServiceRanges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.primary)?;
        self.secondary.map_or(Ok(()), |other| write!(f, ",{other}"))
    }
}

/// A network and the length of its prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ServiceRange {
    network: IpAddr,
    bits: u32,
}

/// The prefix lengths that `--service-cidr` may have. A smaller range would not contain the address of the DNS server.
const PREFIXES_V4: std::ops::RangeInclusive<u32> = 8..=28;
const PREFIXES_V6: std::ops::RangeInclusive<u32> = PREFIX_V6_MIN..=124;
/// Larger ranges are not used (NET-147).
const PREFIX_V6_MIN: u32 = 64;
/// The DNS server has the tenth address of the range.
const DNS_HOST: u64 = 10;

impl ServiceRange {
    fn from_option(text: &str) -> Result<ServiceRange, String> {
        let readable = split(text).ok_or_else(|| {
            format!("{text:?} is not a range such as 10.96.0.0/16 or fd00:96::/112")
        })?;
        let (network, bits) = readable;
        let prefixes = if network.is_ipv4() { PREFIXES_V4 } else { PREFIXES_V6 };
        let (least, most) = (*prefixes.start(), *prefixes.end());
        let range = ServiceRange { network, bits };
        if !prefixes.contains(&bits) {
            return Err(format!("{text:?} must have a prefix length from {least} to {most}"));
        }
        let first = range.network();
        if first != network {
            return Err(format!("{text:?} is not the start of a range: write {first}/{bits}"));
        }
        Ok(range)
    }

    pub(crate) fn parse(text: &str) -> Option<ServiceRange> {
        let (network, bits) = split(text)?;
        let least = if network.is_ipv4() { 1 } else { PREFIX_V6_MIN };
        (least..=width(network)).contains(&bits).then_some(ServiceRange { network, bits })
    }

    pub(crate) fn family(self) -> &'static str {
        family_of(self.network)
    }

    /// The number of bits after the prefix.
    fn host_bits(self) -> u32 {
        width(self.network).saturating_sub(self.bits)
    }

    fn address(self, host: u64) -> IpAddr {
        let mask = u128::MAX.checked_shl(self.host_bits()).unwrap_or_default();
        let number = (number(self.network) & mask).wrapping_add(host.into());
        match self.network {
            IpAddr::V4(_) => Ipv4Addr::from(number as u32).into(),
            IpAddr::V6(_) => Ipv6Addr::from(number).into(),
        }
    }

    fn overlaps(self, other: ServiceRange) -> bool {
        self.contains(other.network) || other.contains(self.network)
    }

    pub(crate) fn contains(self, address: IpAddr) -> bool {
        let cut = |address: IpAddr| number(address).checked_shr(self.host_bits());
        address.is_ipv4() == self.network.is_ipv4() && cut(address) == cut(self.network)
    }

    /// The network address, which no Service has.
    pub(super) fn network(self) -> IpAddr {
        self.address(0)
    }

    /// The number of addresses; the largest number for a /64.
    fn size(self) -> u64 {
        1u64.checked_shl(self.host_bits()).unwrap_or(u64::MAX)
    }

    /// How many addresses Services can have: not the network address, and not the broadcast address of IPv4, if the
    /// range is large enough to have them.
    pub(super) fn usable(self) -> u64 {
        match self.size() {
            hosts @ 1..=2 => hosts,
            hosts if self.network.is_ipv4() => hosts - 2,
            hosts => hosts - 1,
        }
    }

    /// All usable addresses, in the order in which automatic allocation tries them (NET-147).
    pub(super) fn automatic(self, random: u64) -> impl Iterator<Item = IpAddr> {
        let first = if self.size() > 2 { 1 } else { 0 };
        let offsets = bands::automatic(self.usable(), bands::lower_addresses(self.size()), random);
        offsets.map(move |offset| self.address(offset.saturating_add(first)))
    }
}

impl std::fmt::Display for ServiceRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.network, self.bits)
    }
}

pub(super) fn family_of(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}

fn split(text: &str) -> Option<(IpAddr, u32)> {
    let (network, bits) = text.split_once('/')?;
    Some((network.parse().ok()?, bits.parse().ok()?))
}

fn width(address: IpAddr) -> u32 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn net_147_automatic_addresses_are_usable_and_prefer_the_upper_band() {
        for (text, usable, lower) in [
            ("10.9.0.0/24", 254, 16),
            ("10.9.0.0/28", 14, 0),
            ("10.9.0.0/29", 6, 0),
            ("10.9.0.4/31", 2, 0),
            ("10.9.0.9/32", 1, 0),
            ("fd00:96::/120", 255, 16),
            ("fd00:96::/124", 15, 0),
            ("fd00:96::7/128", 1, 0),
        ] {
            let range = ServiceRange::parse(text).unwrap();
            assert_eq!(range.to_string(), text);
            let mut order: Vec<IpAddr> = range.automatic(77).collect();
            assert_eq!(order.len() as u64, usable, "{text}");
            assert_eq!(range.usable(), usable);
            let last = order.split_off(order.len() - lower);
            let first: Vec<IpAddr> = (1..=lower as u64).map(|host| range.address(host)).collect();
            assert_eq!(last, first, "the lower band of {text} is last");
            assert!(order.iter().all(|address| range.contains(*address)), "{text}");
            assert!(usable < 3 || !order.contains(&range.network()), "{text}");
        }
        let last = |text: &str, last: &str| {
            ServiceRange::parse(text).unwrap().automatic(0).any(|address| address == ip(last))
        };
        assert!(!last("10.9.0.0/24", "10.9.0.255"), "the broadcast address");
        assert!(last("fd00:96::/120", "fd00:96::ff"), "IPv6 has no broadcast address");
        // A large range costs no more than the addresses that are tried.
        let large = ServiceRange::parse("128.0.0.0/1").unwrap();
        assert_eq!(large.automatic(5).next(), Some(ip("128.0.1.6")));
        let larger = ServiceRange::parse("fd00:96::/64").unwrap();
        assert_eq!(larger.automatic(5).next(), Some(ip("fd00:96::106")));
        let mut from_the_end = larger.automatic(u64::MAX - 258);
        assert_eq!(from_the_end.next(), Some(ip("fd00:96::ffff:ffff:ffff:fffe")));
        assert_eq!(from_the_end.next(), Some(ip("fd00:96::101")));
        assert!(larger.contains(ip("fd00:96::ffff:ffff:ffff:ffff")));
        for text in ["fd00::/63", "fd00::/129", "10.0.0.0", "10.0.0.0/33", "10.0.0.0/0", ""] {
            assert_eq!(ServiceRange::parse(text), None, "{text}");
        }
        let small = ServiceRange::parse("10.9.0.0/29").unwrap();
        assert!(!small.contains(ip("10.9.0.8")) && !small.contains(ip("::a09:0")));
    }

    #[test]
    fn ranges_overlap_if_one_contains_the_other() {
        let ranges = ServiceRanges::from_option("10.96.0.0/16,fd00:96::/112").unwrap();
        for (other, overlap) in [
            ("10.96.0.0/16", true),
            ("10.96.7.0/24", true),
            ("10.0.0.0/8", true),
            ("10.97.0.0/16", false),
            ("10.244.0.0/16", false),
            ("fd00:96::/64", true),
            ("fd00:96::/48", true),
            ("::/0", true),
            ("fd00:97::/64", false),
            ("nonsense", false),
        ] {
            assert_eq!(ranges.overlap(other), overlap, "{other}");
        }
    }

    #[test]
    fn net_26_an_option_is_a_range_or_one_per_family_with_room_for_the_api_and_dns() {
        for (text, families, api, dns) in [
            ("10.96.0.0/16", &["IPv4"][..], "10.96.0.1", "10.96.0.10"),
            ("10.7.16.0/20", &["IPv4"], "10.7.16.1", "10.7.16.10"),
            ("192.168.3.16/28", &["IPv4"], "192.168.3.17", "192.168.3.26"),
            ("fd00:96::/112", &["IPv6"], "fd00:96::1", "fd00:96::a"),
            ("10.96.0.0/16,fd00:96::/64", &["IPv4", "IPv6"], "10.96.0.1", "10.96.0.10"),
            ("fd00:96::/108,10.96.0.0/16", &["IPv6", "IPv4"], "fd00:96::1", "fd00:96::a"),
        ] {
            let ranges = ServiceRanges::from_option(text).unwrap();
            assert_eq!(ranges.to_string(), text);
            assert_eq!(ranges.families(), families);
            assert_eq!(ranges.api_address().to_string(), api);
            assert_eq!(ranges.dns_address().to_string(), dns);
        }
        for (text, why) in [
            ("10.96.0.0", "such as 10.96.0.0/16"),
            ("ten", "such as 10.96.0.0/16"),
            ("", "such as 10.96.0.0/16"),
            ("10.96.0.0/16,", "such as 10.96.0.0/16"),
            ("10.96.0.0/29", "from 8 to 28"),
            ("10.0.0.0/7", "from 8 to 28"),
            ("10.96.0.1/16", "write 10.96.0.0/16"),
            ("fd00::/63", "from 64 to 124"),
            ("fd00::/125", "from 64 to 124"),
            ("fd00:96::1/112", "write fd00:96::/112"),
            ("10.96.0.0/16,10.97.0.0/16", "one of IPv4 and one of IPv6"),
            ("10.96.0.0/16,fd00::/112,fd01::/112", "one of IPv4 and one of IPv6"),
        ] {
            let refused = ServiceRanges::from_option(text).unwrap_err();
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }
}
