//! Which place of the range is next. Pure: who has which place is told, not read.
//!
//! Places are counted from the start of the range; with a range of each family a pod has the same
//! place in both. A place that was given back is the last to be given again, so that whoever still
//! talks to the old pod does not reach a new one (NET-11).

use crate::Cidr;
use std::collections::BTreeSet;

/// The node's own address in the range.
pub(crate) const GATEWAY: u64 = 1;
/// Even where a range is larger, a node has no use for more.
const PLACES_MAX: u64 = 1 << 20;

pub(crate) struct Places {
    taken: BTreeSet<u64>,
    /// Given last; the search goes on from here.
    last: u64,
    end: u64,
}

impl Places {
    /// For pods in all of these ranges.
    pub(crate) fn new(ranges: &[Cidr], last: u64) -> Places {
        let usable = |range: &Cidr| match range.is_ipv4() {
            true => range.size().saturating_sub(1), // Not the broadcast address.
            false => range.size(),
        };
        let end = ranges.iter().map(usable).min().unwrap_or(0).min(PLACES_MAX);
        Places { taken: BTreeSet::new(), last, end }
    }

    /// Says that a place is in use already. False if it was said before.
    pub(crate) fn claim(&mut self, place: u64) -> bool {
        self.taken.insert(place)
    }

    pub(crate) fn take(&mut self) -> Option<u64> {
        let first = GATEWAY + 1;
        let from = (self.last + 1).clamp(first, self.end.max(first));
        let place =
            (from..self.end).chain(first..from).find(|place| !self.taken.contains(place))?;
        if place >= self.end {
            return None;
        }
        self.taken.insert(place);
        self.last = place;
        Some(place)
    }

    pub(crate) fn give_back(&mut self, place: u64) {
        self.taken.remove(&place);
    }

    pub(crate) fn last(&self) -> u64 {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(range: &str) -> Places {
        Places::new(&[range.parse().unwrap()], 0)
    }

    #[test]
    fn a_small_range_is_used_up_and_then_says_so() {
        let mut places = places("10.0.0.0/29");
        let all: Vec<_> = std::iter::from_fn(|| places.take()).collect();
        assert_eq!(all, [2, 3, 4, 5, 6]);
        places.give_back(4);
        assert_eq!((places.take(), places.take()), (Some(4), None));
    }

    #[test]
    fn a_place_given_back_is_the_last_to_be_given_again() {
        let mut places = places("10.0.0.0/29");
        assert_eq!(places.take(), Some(2));
        places.give_back(2);
        let next: Vec<_> = std::iter::from_fn(|| places.take()).collect();
        assert_eq!(next, [3, 4, 5, 6, 2]);
    }

    #[test]
    fn the_smaller_of_two_ranges_decides() {
        let ranges = ["10.0.0.0/30".parse().unwrap(), "fd00::/64".parse().unwrap()];
        let mut places = Places::new(&ranges, 0);
        assert_eq!((places.take(), places.take()), (Some(2), None));
        assert_eq!(Places::new(&["10.0.0.0/32".parse().unwrap()], 0).take(), None);
    }

    #[test]
    fn the_search_goes_on_where_an_earlier_process_stopped() {
        let mut places = Places::new(&["10.0.0.0/29".parse().unwrap()], 5);
        assert!(places.claim(6) && !places.claim(6));
        assert_eq!(places.take(), Some(2));
        let mut beyond = Places::new(&["10.0.0.0/29".parse().unwrap()], 5000);
        assert_eq!(beyond.take(), Some(2));
    }
}
