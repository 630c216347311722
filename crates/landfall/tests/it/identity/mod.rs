//! Never two of one name: StatefulSet pods on two real nodes while networks are cut and everybody is
//! killed.
//!
//! Two agents in network namespaces of their own, joined to a server over HTTPS. What the pods' processes
//! do is witnessed by the kernel: each holds a lock that is named after its identity ([`witness`]).
//! One story in `make test`; `make test-identity` tells many (`LANDFALL_TEST_STORIES`), each with other
//! moments (`LANDFALL_TEST_SEED`).

mod chance;
mod site;
mod stories;
mod wires;
mod witness;

use site::Site;
use stories::{a_forced_delete, a_lost_node, random_trouble};

/// W-56, W-41, W-67, W-18, T-CTRL-24, T-CTRL-41, T-EDGE-13: a node that is lost keeps its identities until
/// it is back; only a forced delete lets two run at once, and the record says so.
#[test]
fn w_41_w_56_w_67_a_lost_node_keeps_its_identities_unless_forced() {
    let mut site = Site::start();
    a_lost_node(&mut site);
    a_forced_delete(&mut site);
    site.end();
}

/// T-INV-1, W-56: whatever is cut, killed and deleted, and whenever.
#[test]
fn w_56_never_two_of_one_name_in_many_stories() {
    let number = |name: &str, otherwise: u64| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
    };
    let (first, stories) = (number("LANDFALL_TEST_SEED", 1), number("LANDFALL_TEST_STORIES", 20));
    let mut site = Site::start();
    for seed in first..first + stories {
        random_trouble(&mut site, seed);
    }
    site.end();
}
