//! An address range such as `10.244.3.0/24`.

use crate::Error;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// The first address of a range and its prefix length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cidr {
    base: IpAddr,
    bits: u8,
}

impl Cidr {
    /// The range that contains `address`. `None` if the prefix is longer than an address.
    pub fn new(address: IpAddr, bits: u8) -> Option<Cidr> {
        let width = width(address);
        if bits > width {
            return None;
        }
        let host_bits = u32::from(width - bits);
        let number = to_number(address).checked_shr(host_bits).unwrap_or(0);
        let base = from_number(number.checked_shl(host_bits).unwrap_or(0), address.is_ipv4());
        Some(Cidr { base, bits })
    }

    /// For constants. A prefix that is too long becomes the full length.
    pub(crate) fn constant(address: IpAddr, bits: u8) -> Cidr {
        Cidr::new(address, bits).unwrap_or(Cidr { base: address, bits: width(address) })
    }

    /// The multicast range of an IP family.
    pub(crate) fn multicast(ipv4: bool) -> Cidr {
        match ipv4 {
            true => Cidr::constant(IpAddr::from([224, 0, 0, 0]), 4),
            false => Cidr::constant(IpAddr::from([0xff00, 0, 0, 0, 0, 0, 0, 0]), 8),
        }
    }

    pub fn base(&self) -> IpAddr {
        self.base
    }

    pub fn bits(&self) -> u8 {
        self.bits
    }

    pub fn is_ipv4(&self) -> bool {
        self.base.is_ipv4()
    }

    /// The network mask, as bytes in network order.
    pub fn mask(&self) -> Vec<u8> {
        let width = width(self.base);
        let ones = u128::MAX.checked_shl(u32::from(width - self.bits)).unwrap_or(0);
        let bytes = ones.to_be_bytes();
        bytes[16 - usize::from(width / 8)..].to_vec()
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        Cidr::new(address, self.bits).is_some_and(|range| range == *self)
            && address.is_ipv4() == self.is_ipv4()
    }

    /// The address at `offset` from the first one, if it is in the range.
    pub fn nth(&self, offset: u64) -> Option<IpAddr> {
        let number = to_number(self.base).checked_add(u128::from(offset))?;
        if self.is_ipv4() && number > u128::from(u32::MAX) {
            return None;
        }
        let address = from_number(number, self.is_ipv4());
        self.contains(address).then_some(address)
    }

    /// The first address after the range. `None` if the range ends with the largest address.
    pub(crate) fn after(&self) -> Option<IpAddr> {
        let host_bits = u32::from(width(self.base) - self.bits);
        let next = to_number(self.base).checked_add(1u128.checked_shl(host_bits)?)?;
        let largest = if self.is_ipv4() { u128::from(u32::MAX) } else { u128::MAX };
        (next <= largest).then(|| from_number(next, self.is_ipv4()))
    }

    /// The ranges without those that are part of another one, in order.
    pub(crate) fn without_overlaps(ranges: impl IntoIterator<Item = Cidr>) -> Vec<Cidr> {
        let mut sorted: Vec<Cidr> = ranges.into_iter().collect();
        sorted.sort();
        let mut kept: Vec<Cidr> = Vec::new();
        for range in sorted {
            if !kept.last().is_some_and(|last| last.contains(range.base)) {
                kept.push(range);
            }
        }
        kept
    }

    /// The distance of `address` from the first address.
    pub fn offset(&self, address: IpAddr) -> Option<u64> {
        if !self.contains(address) {
            return None;
        }
        u64::try_from(to_number(address) - to_number(self.base)).ok()
    }

    /// The number of addresses; `u64::MAX` if there are more.
    pub fn size(&self) -> u64 {
        1u64.checked_shl(u32::from(width(self.base) - self.bits)).unwrap_or(u64::MAX)
    }
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn to_number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(u32::from(v4)),
        IpAddr::V6(v6) => u128::from(v6),
    }
}

fn from_number(number: u128, v4: bool) -> IpAddr {
    if v4 { IpAddr::V4(Ipv4Addr::from(number as u32)) } else { IpAddr::V6(Ipv6Addr::from(number)) }
}

/// In network order.
pub(crate) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// The inverse of [`octets`].
pub(crate) fn address_from(octets: &[u8]) -> Option<IpAddr> {
    match octets.len() {
        4 => <[u8; 4]>::try_from(octets).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(octets).ok().map(IpAddr::from),
        _ => None,
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.bits)
    }
}

impl FromStr for Cidr {
    type Err = Error;

    fn from_str(text: &str) -> Result<Cidr, Error> {
        let wrong =
            || Error::Invalid(format!("{text:?} is not an address range such as 10.244.0.0/16"));
        let (address, bits) = text.split_once('/').ok_or_else(wrong)?;
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let bits: u8 = bits.parse().map_err(|_| wrong())?;
        Cidr::new(address, bits).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr(text: &str) -> Cidr {
        text.parse().unwrap()
    }

    #[test]
    fn parsing_clears_the_host_bits() {
        assert_eq!(cidr("10.244.3.77/24").to_string(), "10.244.3.0/24");
        assert_eq!(cidr("fd00:1::5/64").to_string(), "fd00:1::/64");
        assert_eq!(cidr("0.0.0.0/0").mask(), [0, 0, 0, 0]);
        assert_eq!(cidr("10.0.0.0/12").mask(), [255, 240, 0, 0]);
        assert!("10.0.0.0/33".parse::<Cidr>().is_err());
        assert!("10.0.0.0".parse::<Cidr>().is_err());
    }

    #[test]
    fn nth_and_offset_stay_inside_the_range() {
        let range = cidr("10.244.3.0/30");
        assert_eq!(range.nth(3), Some("10.244.3.3".parse().unwrap()));
        assert_eq!(range.nth(4), None);
        assert_eq!(range.offset("10.244.3.2".parse().unwrap()), Some(2));
        assert_eq!(range.offset("10.244.4.2".parse().unwrap()), None);
        assert_eq!(cidr("255.255.255.254/31").nth(2), None);
        assert_eq!(cidr("fd00::/64").size(), u64::MAX);
        assert!(!cidr("::/0").contains("10.0.0.1".parse().unwrap()));
    }
}
