//! Ranges as elements of a packet filter's set.

use crate::Cidr;
use crate::nft::{Element, Key};
use std::collections::BTreeSet;

/// The ranges of one IP family without those that are part of another: elements of a set must not overlap.
pub(crate) fn outermost<'a>(ipv4: bool, ranges: impl Iterator<Item = &'a Cidr>) -> BTreeSet<Cidr> {
    let mut kept = BTreeSet::new();
    let mut ranges: Vec<Cidr> = ranges.filter(|range| range.is_ipv4() == ipv4).copied().collect();
    ranges.sort(); // A range comes after all ranges that contain it.
    let mut last: Option<Cidr> = None;
    for range in ranges {
        if !last.is_some_and(|last| last.contains(range.base())) {
            kept.insert(range);
            last = Some(range);
        }
    }
    kept
}

pub(crate) fn elements_of<'a>(ranges: impl IntoIterator<Item = &'a Cidr>) -> Vec<Element> {
    let key = |address| Key::new().address(address);
    let element = |range: &Cidr| Element::range(key(range.base()), range.end().map(key));
    ranges.into_iter().map(element).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_inside_other_ranges_are_left_out() {
        let ranges = |texts: &[&str]| -> Vec<Cidr> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let all = ["10.1.0.0/24", "10.0.0.0/24", "10.1.0.0/16", "10.1.9.0/24", "10.0.0.0/24"];
        let mut all = ranges(&all);
        all.extend(ranges(&["fd00::/64", "10.2.0.0/24"]));
        let kept: Vec<Cidr> = outermost(true, all.iter()).into_iter().collect();
        assert_eq!(kept, ranges(&["10.0.0.0/24", "10.1.0.0/16", "10.2.0.0/24"]));
    }
}
