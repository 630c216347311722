//! A range of pod addresses, divided into blocks of one size. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The prefix lengths of a node's block (NET-14).
const BLOCK_V4: u8 = 24;
const BLOCK_V6: u8 = 64;
/// A range has at most two to the power of this many blocks. Upstream: `clusterSubnetMaxDiff`.
const BLOCK_BITS_MAX: u8 = 24;

/// The pod address ranges of the cluster: one, or one per IP family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranges(Vec<Range>);

impl Ranges {
    /// Reads the value of `--pod-cidr`: a range, or one of each family with a comma in between.
    pub fn new(text: &str) -> Result<Ranges, String> {
        let block = |cidr: &str| if cidr.contains(':') { BLOCK_V6 } else { BLOCK_V4 };
        let ranges: Vec<Range> =
            text.split(',').map(|cidr| Range::new(cidr, block(cidr))).collect::<Result<_, _>>()?;
        match ranges[..] {
            [_] => Ok(Ranges(ranges)),
            [first, second] if first.is_ipv4() != second.is_ipv4() => Ok(Ranges(ranges)),
            _ => Err(format!(
                "{text:?}: give one range, or one of IPv4 and one of IPv6, such as 10.244.0.0/16,fd00:10:244::/48"
            )),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Range> {
        self.0.iter().copied()
    }
}

impl Default for Ranges {
    fn default() -> Self {
        Range { base: Ipv4Addr::new(10, 244, 0, 0).into(), prefix: 16, block: BLOCK_V4 }.into()
    }
}

impl From<Range> for Ranges {
    fn from(range: Range) -> Ranges {
        Ranges(vec![range])
    }
}

/// A range of addresses, divided into blocks of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    base: IpAddr,
    prefix: u8,
    block: u8,
}

impl Range {
    /// For example `10.244.0.0/16` in blocks of `/24`.
    pub fn new(cidr: &str, block: u8) -> Result<Range, String> {
        let wrong = || format!("{cidr:?} cannot be divided into node blocks of /{block}");
        let (base, prefix) = split(cidr).ok_or_else(wrong)?;
        let bits_max = width(base) - 2;
        let fits = (1..=bits_max).contains(&prefix)
            && (prefix..=bits_max).contains(&block)
            && block - prefix <= BLOCK_BITS_MAX;
        let host_bits = u32::from(width(base).saturating_sub(prefix));
        let on_border = number(base).checked_shr(host_bits).and_then(|n| n.checked_shl(host_bits))
            == Some(number(base));
        if fits && on_border { Ok(Range { base, prefix, block }) } else { Err(wrong()) }
    }

    fn is_ipv4(self) -> bool {
        self.base.is_ipv4()
    }

    pub(super) fn blocks(self) -> u32 {
        1 << (self.block - self.prefix)
    }

    /// The number of addresses of a block.
    fn block_size(self) -> u128 {
        1 << (width(self.base) - self.block)
    }

    pub(super) fn block(self, index: u32) -> String {
        let address = number(self.base) + u128::from(index) * self.block_size();
        let address: IpAddr = match self.base {
            IpAddr::V4(_) => Ipv4Addr::from(address as u32).into(),
            IpAddr::V6(_) => Ipv6Addr::from(address).into(),
        };
        format!("{address}/{}", self.block)
    }

    /// The blocks that overlap with `cidr`, which may be larger than a block or outside of the range.
    pub(super) fn overlapping(self, cidr: &str) -> std::ops::Range<u32> {
        let Some((base, prefix)) = split(cidr) else { return 0..0 };
        if base.is_ipv4() != self.is_ipv4() || prefix > width(base) {
            return 0..0;
        }
        let host_bits = u32::from(width(base) - prefix);
        let first = number(base);
        let last = first.saturating_add(
            1u128.checked_shl(host_bits).map_or(u128::MAX, |addresses| addresses - 1),
        );
        let (ours, step) = (number(self.base), self.block_size());
        let ours_last = ours + (step * u128::from(self.blocks()) - 1);
        let (from, to) = (first.max(ours), last.min(ours_last));
        if from > to {
            return 0..0;
        }
        ((from - ours) / step) as u32..((to - ours) / step) as u32 + 1
    }
}

fn split(cidr: &str) -> Option<(IpAddr, u8)> {
    let (base, prefix) = cidr.split_once('/')?;
    Some((base.parse().ok()?, prefix.parse().ok()?))
}

fn width(address: IpAddr) -> u8 {
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

    #[test]
    fn a_range_is_divided_into_blocks() {
        let range = Range::new("10.244.0.0/16", 24).unwrap();
        assert_eq!(Ranges::default(), range.into());
        assert_eq!(range.blocks(), 256);
        assert_eq!(range.block(0), "10.244.0.0/24");
        assert_eq!(range.block(255), "10.244.255.0/24");
        let six = Range::new("fd00:10:244::/48", 64).unwrap();
        assert_eq!(six.blocks(), 65536);
        assert_eq!(six.block(0), "fd00:10:244::/64");
        assert_eq!(six.block(0x1f), "fd00:10:244:1f::/64");
        for (cidr, block) in [
            ("10.244.1.0/16", 24),
            ("10.244.0.0/24", 16),
            ("x/16", 24),
            ("10.0.0.0/0", 24),
            ("10.0.0.0/33", 24),
            ("fd00::/112", 64),
            ("fd00::/16", 64),
            ("fd00::1/48", 64),
            ("fd00::/255", 64),
        ] {
            assert!(Range::new(cidr, block).is_err(), "{cidr} {block}");
        }
    }

    #[test]
    fn net_14_the_option_has_one_range_or_one_per_family() {
        for text in ["10.244.0.0/16", "fd00:10:244::/48", "fd00:1::/56,10.9.0.0/20"] {
            let ranges = Ranges::new(text).unwrap();
            assert_eq!(ranges.iter().count(), text.split(',').count());
        }
        for (text, why) in [
            ("10.244.0.0/16,10.245.0.0/16", "one of IPv4 and one of IPv6"),
            ("10.244.0.0/16,fd00::/48,fd01::/48", "one of IPv4 and one of IPv6"),
            ("10.244.0.0/16,", "cannot be divided into node blocks of /24"),
            ("fd00::/112", "cannot be divided into node blocks of /64"),
        ] {
            let wrong = Ranges::new(text).unwrap_err();
            assert!(wrong.contains(why), "{text}: {wrong}");
        }
    }

    #[test]
    fn c_184_a_node_holds_every_block_that_its_cidr_overlaps() {
        let four = Range::new("10.244.0.0/16", 24).unwrap();
        let six = Range::new("fd00:10:244::/48", 64).unwrap();
        for (range, cidr, expected) in [
            (four, "10.244.3.0/24", 3..4),
            (four, "10.244.4.0/23", 4..6),
            (four, "10.244.4.128/25", 4..5),
            (four, "10.0.0.0/8", 0..256),
            (four, "0.0.0.0/0", 0..256),
            (four, "192.168.0.0/24", 0..0),
            (four, "fd00::/64", 0..0),
            (six, "fd00:10:244:7::/64", 7..8),
            (six, "fd00:10:244:8::/63", 8..10),
            (six, "::/0", 0..65536),
            (six, "ff00::/8", 0..0),
            (six, "10.244.3.0/24", 0..0),
        ] {
            assert_eq!(range.overlapping(cidr), expected, "{cidr}");
        }
    }
}
