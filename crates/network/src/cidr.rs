//! An address range such as `10.244.3.0/24`.

use crate::Error;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// The first address of a range and how many bits of it are fixed. Bits beyond those are zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cidr {
    base: IpAddr,
    bits: u8,
}

impl Cidr {
    /// The range that `address` lies in. None when there are not that many bits.
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

    /// For ranges written in the program: more bits than there are mean all of them.
    pub(crate) fn known(address: IpAddr, bits: u8) -> Cidr {
        Cidr::new(address, bits).unwrap_or(Cidr { base: address, bits: width(address) })
    }

    /// Everybody who listens.
    pub(crate) fn multicast(ipv4: bool) -> Cidr {
        match ipv4 {
            true => Cidr::known(IpAddr::from([224, 0, 0, 0]), 4),
            false => Cidr::known(IpAddr::from([0xff00, 0, 0, 0, 0, 0, 0, 0]), 8),
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

    /// The mask of its fixed bits, as bytes in network order.
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

    /// The address `offset` places after the first, if it is still in the range.
    pub fn nth(&self, offset: u64) -> Option<IpAddr> {
        let number = to_number(self.base).checked_add(u128::from(offset))?;
        if self.is_ipv4() && number > u128::from(u32::MAX) {
            return None;
        }
        let address = from_number(number, self.is_ipv4());
        self.contains(address).then_some(address)
    }

    /// How many places after the first `address` is.
    pub fn offset(&self, address: IpAddr) -> Option<u64> {
        if !self.contains(address) {
            return None;
        }
        u64::try_from(to_number(address) - to_number(self.base)).ok()
    }

    /// How many addresses there are, as far as that can be said in 64 bits.
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

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.bits)
    }
}

impl FromStr for Cidr {
    type Err = Error;

    fn from_str(text: &str) -> Result<Cidr, Error> {
        let wrong = || Error::Invalid(format!("{text:?} is not an address range"));
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
    fn a_range_starts_at_its_first_address_however_it_is_written() {
        assert_eq!(cidr("10.244.3.77/24").to_string(), "10.244.3.0/24");
        assert_eq!(cidr("fd00:1::5/64").to_string(), "fd00:1::/64");
        assert_eq!(cidr("0.0.0.0/0").mask(), [0, 0, 0, 0]);
        assert_eq!(cidr("10.0.0.0/12").mask(), [255, 240, 0, 0]);
        assert!("10.0.0.0/33".parse::<Cidr>().is_err());
        assert!("10.0.0.0".parse::<Cidr>().is_err());
    }

    #[test]
    fn counting_stays_inside() {
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
