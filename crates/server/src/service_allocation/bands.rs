//! Two bands of a range of addresses or ports (NET-147, NET-148): the lower one is for those that users name, so automatic
//! allocation prefers the upper one.

/// How many addresses of a range of this size are in the lower band. Upstream: `calculateRangeOffset` of `ipallocator`.
pub(super) fn lower_addresses(size: u64) -> u64 {
    if size <= 16 { 0 } else { (size / 16).clamp(16, 256) }
}

/// How many ports are in the lower band. Upstream: `calculateRangeOffset` of `portallocator`.
pub(super) const fn lower_ports(size: u64) -> u64 {
    let part = size / 32;
    match part {
        _ if size <= 16 => 0,
        0..16 => 16,
        16..128 => part,
        _ => 128,
    }
}

/// All offsets below `size`, in the order in which automatic allocation tries them: the upper band from a random offset
/// on, then the lower band.
pub(super) fn automatic(size: u64, lower: u64, random: u64) -> impl Iterator<Item = u64> {
    let lower = lower.min(size);
    let upper = size - lower;
    let first = random.checked_rem(upper).unwrap_or_default();
    // Without sums of two offsets, which could be larger than the largest number.
    let in_upper = (first..upper).chain(0..first).map(move |offset| lower + offset);
    in_upper.chain(0..lower)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn net_147_net_148_the_lower_bands_have_upstreams_sizes() {
        for (size, addresses, ports) in [
            (1, 0, 0),
            (16, 0, 0),
            (32, 16, 16),
            (256, 16, 16),
            (1024, 64, 32),
            (2768, 173, 86),
            (4096, 256, 128),
            (65536, 256, 128),
        ] {
            assert_eq!((lower_addresses(size), lower_ports(size)), (addresses, ports), "{size}");
        }
    }

    #[test]
    fn net_147_automatic_allocation_uses_the_lower_band_last() {
        for (size, lower) in [(0, 0), (1, 0), (5, 5), (20, 16), (254, 16)] {
            for random in [0, 1, 7, u64::MAX] {
                let order: Vec<u64> = automatic(size, lower, random).collect();
                let mut sorted = order.clone();
                sorted.sort_unstable();
                assert_eq!(sorted, (0..size).collect::<Vec<_>>(), "each one once");
                let upper = (size - lower) as usize;
                assert!(order[..upper].iter().all(|offset| *offset >= lower));
            }
        }
        assert_eq!(automatic(254, 16, 100).next(), Some(116));
    }
}
