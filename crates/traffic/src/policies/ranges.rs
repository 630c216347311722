//! Ranges of addresses and ports as sorted lists without overlaps.

use network::Cidr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Inclusive.
type Range = (u128, u128);

/// Address ranges of both IP families. Ranges are inclusive.
#[derive(Debug, Clone, Default)]
pub(super) struct AddressRanges {
    v4: Vec<Range>,
    v6: Vec<Range>,
}

impl AddressRanges {
    /// Adds the addresses of `range` that are in none of `except`.
    pub(super) fn add(&mut self, range: &Cidr, except: &[Cidr]) {
        let same_family = except.iter().filter(|part| part.is_ipv4() == range.is_ipv4());
        let holes = merged(same_family.map(bounds).collect());
        let found = if range.is_ipv4() { &mut self.v4 } else { &mut self.v6 };
        let (mut start, end) = bounds(range);
        for (from, to) in holes {
            if to < start || from > end {
                continue;
            }
            if from > start {
                found.push((start, from - 1));
            }
            if to >= end {
                return;
            }
            start = start.max(to + 1);
        }
        found.push((start, end));
    }

    pub(super) fn into_list(self) -> Vec<(IpAddr, IpAddr)> {
        let v4 = |number: u128| IpAddr::V4(Ipv4Addr::from(number as u32));
        let v6 = |number: u128| IpAddr::V6(Ipv6Addr::from(number));
        let first = merged(self.v4).into_iter().map(|(from, to)| (v4(from), v4(to)));
        let second = merged(self.v6).into_iter().map(|(from, to)| (v6(from), v6(to)));
        first.chain(second).collect()
    }
}

fn bounds(range: &Cidr) -> Range {
    let (number, width) = match range.base() {
        IpAddr::V4(v4) => (u128::from(u32::from(v4)), 32),
        IpAddr::V6(v6) => (u128::from(v6), 128),
    };
    let host_bits = width - u32::from(range.bits());
    let last = 1_u128.checked_shl(host_bits).map_or(u128::MAX, |size| number + (size - 1));
    (number, last)
}

/// Merges port ranges that overlap or touch.
pub(super) fn merged_ports(ports: Vec<(u16, u16)>) -> Vec<(u16, u16)> {
    let wide = ports.into_iter().map(|(from, to)| (u128::from(from), u128::from(to)));
    merged(wide.collect()).into_iter().map(|(from, to)| (from as u16, to as u16)).collect()
}

fn merged(mut ranges: Vec<Range>) -> Vec<Range> {
    ranges.retain(|(from, to)| from <= to);
    ranges.sort_unstable();
    let mut result: Vec<Range> = Vec::new();
    for (from, to) in ranges {
        match result.last_mut() {
            Some(last) if from <= last.1.saturating_add(1) => last.1 = last.1.max(to),
            _ => result.push((from, to)),
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(blocks: &[(&str, &[&str])]) -> Vec<String> {
        let mut ranges = AddressRanges::default();
        for (range, except) in blocks {
            let except: Vec<Cidr> = except.iter().map(|text| text.parse().unwrap()).collect();
            ranges.add(&range.parse().unwrap(), &except);
        }
        ranges.into_list().iter().map(|(from, to)| format!("{from}-{to}")).collect()
    }

    #[test]
    fn net_128_exceptions_are_cut_out_of_their_block_only() {
        for (blocks, expected) in [
            (&[("10.0.0.0/8", &[][..])][..], &["10.0.0.0-10.255.255.255"][..]),
            (
                &[("10.0.0.0/8", &["10.1.0.0/16", "10.0.0.0/24"])],
                &["10.0.1.0-10.0.255.255", "10.2.0.0-10.255.255.255"],
            ),
            (&[("10.0.0.0/8", &["10.128.0.0/9"])], &["10.0.0.0-10.127.255.255"]),
            (&[("10.0.0.0/30", &["10.0.0.0/31", "10.0.0.2/31"])], &[]),
            (
                &[("10.0.0.0/8", &["10.1.0.0/16", "10.1.2.0/24"]), ("10.1.2.3/32", &[])],
                &["10.0.0.0-10.0.255.255", "10.1.2.3-10.1.2.3", "10.2.0.0-10.255.255.255"],
            ),
            (&[("0.0.0.0/0", &["255.255.255.255/32"])], &["0.0.0.0-255.255.255.254"]),
            (
                &[("::/0", &["8000::/1"]), ("10.0.0.0/31", &[])],
                &["10.0.0.0-10.0.0.1", "::-7fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"],
            ),
            (&[("10.0.0.0/24", &[]), ("10.0.1.0/24", &[])], &["10.0.0.0-10.0.1.255"]),
        ] {
            assert_eq!(list(blocks), expected, "{blocks:?}");
        }
    }

    #[test]
    fn port_ranges_that_overlap_or_touch_become_one() {
        let ports = vec![(443, 443), (80, 90), (85, 100), (101, 101), (65535, 65535), (9, 8)];
        assert_eq!(merged_ports(ports), [(80, 101), (443, 443), (65535, 65535)]);
    }
}
