//! Two pods of one name never run at once: StatefulSets on two real nodes that are disconnected, while servers and
//! agents are killed.
//!
//! Two agents in separate network namespaces are joined to a server over HTTPS. The kernel proves what the pods'
//! processes do: each holds a lock that is named after its pod ([`witness`]). `make test` runs this once;
//! `make test-identity` runs it `LANDFALL_TEST_STORIES` times with other seeds, from `LANDFALL_TEST_SEED` on.

mod network;
mod random;
mod scenarios;
mod site;
mod witness;

use scenarios::{a_forced_delete, a_lost_node, random_faults};
use site::Site;

/// W-56, W-41, W-67, W-18, T-CTRL-24, T-CTRL-41, T-EDGE-13: the pods of a lost node are not replaced until it is back;
/// only a force deletion lets two run at once, and the record says so.
#[test]
fn w_41_w_56_w_67_a_lost_node_keeps_its_identities_unless_forced() {
    let mut site = Site::start();
    a_lost_node(&mut site);
    a_forced_delete(&mut site);
    site.end();
}

/// T-INV-1, W-56: nodes are disconnected, processes killed and pods deleted at random times.
#[test]
fn w_56_never_two_of_one_name_in_many_stories() {
    let number = |name: &str, otherwise: u64| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
    };
    let (first, stories) = (number("LANDFALL_TEST_SEED", 1), number("LANDFALL_TEST_STORIES", 20));
    let mut site = Site::start();
    for seed in first..first + stories {
        random_faults(&mut site, seed);
    }
    site.end();
}
