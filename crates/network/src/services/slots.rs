//! Numbers the endpoints of a Service address, so that a random number below their count selects one.
//!
//! An endpoint keeps its number as long as possible: each number that changes is an element to send to the kernel.

use std::collections::HashSet;
use std::net::SocketAddr;

/// The endpoints `wanted` in an order that changes as few numbers of `before` as possible.
pub(super) fn reassign(before: &[SocketAddr], wanted: &[SocketAddr]) -> Vec<SocketAddr> {
    let mut missing: HashSet<SocketAddr> = wanted.iter().copied().collect();
    let count = missing.len();
    let kept: Vec<Option<SocketAddr>> =
        before.iter().map(|endpoint| missing.remove(endpoint).then_some(*endpoint)).collect();
    let (within, beyond) = kept.split_at(kept.len().min(count));
    // Numbers that are free now go to new endpoints, and then to endpoints whose number is too large.
    let added = wanted.iter().filter(|endpoint| missing.remove(endpoint)).copied();
    let mut fill = added.collect::<Vec<_>>().into_iter().chain(beyond.iter().flatten().copied());
    let mut result: Vec<SocketAddr> =
        within.iter().filter_map(|kept| kept.or_else(|| fill.next())).collect();
    result.extend(fill);
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn endpoints(numbers: &[u16]) -> Vec<SocketAddr> {
        numbers.iter().map(|number| SocketAddr::from(([10, 0, 0, 1], *number))).collect()
    }

    #[test]
    fn numbers_change_as_little_as_possible() {
        for (before, wanted, expected) in [
            (&[][..], &[1, 2][..], &[1, 2][..]),
            (&[1, 2, 3], &[1, 2, 3], &[1, 2, 3]),
            (&[1, 2, 3], &[3, 2, 1], &[1, 2, 3]),
            (&[1, 2, 3], &[1, 3], &[1, 3]),
            (&[1, 2, 3], &[2, 3], &[3, 2]),
            (&[1, 2, 3], &[2, 3, 4], &[4, 2, 3]),
            (&[1, 2, 3], &[], &[]),
            (&[1, 2], &[5, 2, 1, 4], &[1, 2, 5, 4]),
            (&[1, 2, 3, 4], &[4], &[4]),
            (&[1], &[2, 2, 2], &[2]),
        ] {
            let new = reassign(&endpoints(before), &endpoints(wanted));
            assert_eq!(new, endpoints(expected), "{before:?} to {wanted:?}");
        }
    }

    /// One endpoint of many that leaves or joins changes one number.
    #[test]
    fn one_endpoint_is_one_change() {
        let all: Vec<u16> = (1..=1000).collect();
        for gone in [1, 500, 1000] {
            let wanted: Vec<u16> = all.iter().copied().filter(|n| *n != gone).collect();
            let new = reassign(&endpoints(&all), &endpoints(&wanted));
            let changed = new.iter().zip(endpoints(&all)).filter(|(a, b)| **a != *b).count();
            assert!(changed <= 1, "{gone}: {changed}");
            let unique: BTreeSet<_> = new.iter().collect();
            assert_eq!(unique.len(), 999);
        }
    }
}
