//! Identifiers of endpoints in the memory of clients with session affinity.
//!
//! The kernel remembers an identifier for each client. It must mean the same endpoint as long as the client is
//! remembered, whatever other endpoints come and go and after a restart, so that it is not the endpoint's number
//! (`slots.rs`). The address itself would be too long for the packet's queueing priority, through which rules pass it.

use super::stored::EndpointList;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::{IpAddr, SocketAddr};

/// The identifiers of these endpoints: never zero, and different from each other. They depend on the endpoints only.
/// If two endpoints of a Service have the same hash (one in 860,000 Services with a hundred endpoints), the later one's identifier
/// depends on the presence of the other.
pub(super) fn identifiers(endpoints: &EndpointList) -> BTreeMap<SocketAddr, u32> {
    let sorted: BTreeSet<SocketAddr> = endpoints.iter().collect();
    let mut used = HashSet::from([0]);
    let identify = |endpoint: SocketAddr| {
        let mut id = hash(endpoint);
        while !used.insert(id) {
            id = id.wrapping_add(1);
        }
        (endpoint, id)
    };
    sorted.into_iter().map(identify).collect()
}

/// FNV-1a: stays the same in every version of landfall.
fn hash(endpoint: SocketAddr) -> u32 {
    let add = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    let address = match endpoint.ip() {
        IpAddr::V4(address) => address.octets().iter().fold(0x811c_9dc5, add),
        IpAddr::V6(address) => address.octets().iter().fold(0x811c_9dc5, add),
    };
    endpoint.port().to_be_bytes().iter().fold(address, add)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints(numbers: impl Iterator<Item = u32>) -> EndpointList {
        let all: Vec<SocketAddr> = numbers
            .map(|number| SocketAddr::from((std::net::Ipv4Addr::from(0x0a00_0000 + number), 80)))
            .collect();
        EndpointList::new(true, &all)
    }

    #[test]
    fn identifiers_differ_and_stay_when_others_leave() {
        let all = identifiers(&endpoints(0..1000));
        let unique: BTreeSet<u32> = all.values().copied().collect();
        assert!(unique.len() == 1000 && !unique.contains(&0));
        let half = identifiers(&endpoints((0..1000).rev().step_by(2)));
        assert!(half.iter().all(|(endpoint, id)| all[endpoint] == *id));
        assert_eq!(half.len(), 500);
    }

    /// The kernel has identifiers that an earlier version wrote.
    #[test]
    fn identifiers_are_the_same_in_all_versions() {
        let id = |text: &str| hash(text.parse().unwrap());
        assert_eq!(id("10.0.0.1:80"), 3_958_126_716);
        assert_eq!(id("[fd00::1]:443"), 3_519_229_855);
    }
}
