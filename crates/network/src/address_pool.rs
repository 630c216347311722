//! Allocates pod addresses. Pure: the caller passes in which addresses are in use.
//!
//! An address is represented by its index, counted from the start of the range. On a dual-stack node a
//! pod has the same index in both ranges. A released index is reused last, so that clients of the old
//! pod do not reach a new one (NET-11).

use crate::Cidr;
use std::collections::BTreeSet;

/// Index of the node's own address in the range.
pub(crate) const GATEWAY: u64 = 1;
/// Indexes are below this even if the range is larger.
const INDEXES_MAX: u64 = 1 << 20;

pub(crate) struct AddressPool {
    used: BTreeSet<u64>,
    /// The search for a free index continues after this one.
    last_allocated: u64,
    /// The first index past the end of the smallest range.
    end: u64,
}

impl AddressPool {
    /// Every pod gets an address in each of these ranges.
    pub(crate) fn new(ranges: &[Cidr], last_allocated: u64) -> AddressPool {
        let usable = |range: &Cidr| match range.is_ipv4() {
            true => range.size().saturating_sub(1), // Not the broadcast address.
            false => range.size(),
        };
        let end = ranges.iter().map(usable).min().unwrap_or(0).min(INDEXES_MAX);
        AddressPool { used: BTreeSet::new(), last_allocated, end }
    }

    /// Marks an index as used. Returns false if it already was.
    pub(crate) fn reserve(&mut self, index: u64) -> bool {
        self.used.insert(index)
    }

    pub(crate) fn allocate(&mut self) -> Option<u64> {
        let first = GATEWAY + 1;
        let from = (self.last_allocated + 1).clamp(first, self.end.max(first));
        let index = (from..self.end).chain(first..from).find(|index| !self.used.contains(index))?;
        if index >= self.end {
            return None;
        }
        self.used.insert(index);
        self.last_allocated = index;
        Some(index)
    }

    pub(crate) fn release(&mut self, index: u64) {
        self.used.remove(&index);
    }

    pub(crate) fn last_allocated(&self) -> u64 {
        self.last_allocated
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(range: &str) -> AddressPool {
        AddressPool::new(&[range.parse().unwrap()], 0)
    }

    #[test]
    fn allocation_fails_when_a_small_range_is_exhausted() {
        let mut pool = pool("10.0.0.0/29");
        let all: Vec<_> = std::iter::from_fn(|| pool.allocate()).collect();
        assert_eq!(all, [2, 3, 4, 5, 6]);
        pool.release(4);
        assert_eq!((pool.allocate(), pool.allocate()), (Some(4), None));
    }

    #[test]
    fn a_released_index_is_reused_last() {
        let mut pool = pool("10.0.0.0/29");
        assert_eq!(pool.allocate(), Some(2));
        pool.release(2);
        let next: Vec<_> = std::iter::from_fn(|| pool.allocate()).collect();
        assert_eq!(next, [3, 4, 5, 6, 2]);
    }

    #[test]
    fn the_smaller_of_two_ranges_limits_the_pool() {
        let ranges = ["10.0.0.0/30".parse().unwrap(), "fd00::/64".parse().unwrap()];
        let mut pool = AddressPool::new(&ranges, 0);
        assert_eq!((pool.allocate(), pool.allocate()), (Some(2), None));
        assert_eq!(AddressPool::new(&["10.0.0.0/32".parse().unwrap()], 0).allocate(), None);
    }

    #[test]
    fn allocation_continues_where_an_earlier_process_stopped() {
        let mut pool = AddressPool::new(&["10.0.0.0/29".parse().unwrap()], 5);
        assert!(pool.reserve(6) && !pool.reserve(6));
        assert_eq!(pool.allocate(), Some(2));
        let mut beyond = AddressPool::new(&["10.0.0.0/29".parse().unwrap()], 5000);
        assert_eq!(beyond.allocate(), Some(2));
    }
}
