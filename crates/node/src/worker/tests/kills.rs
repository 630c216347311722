//! What a node that wants a pod to end says, when it says it more than once.

use crate::worker::{KillRequest, channel};
use k8s_openapi::api::core::v1::Pod;
use lifecycle::status::Verdict;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

fn kill(reason: &str, grace: Option<u64>) -> KillRequest {
    let verdict = Verdict { reason: reason.into(), message: String::new(), disruption: true };
    KillRequest { verdict, grace: grace.map(Duration::from_secs) }
}

/// T-NODE-5: an eviction that is under way when the node goes down stays one, and gets no more time.
#[test]
fn a_later_wish_of_the_node_only_hurries_an_earlier_one() {
    let spec = json!({ "spec": { "containers": [], "terminationGracePeriodSeconds": 30 } });
    let pod: Arc<Pod> = Arc::new(typed::from_value(spec).unwrap());
    for (first, later, wanted) in [
        (Some(1), Some(30), Some(1)),
        (Some(30), Some(1), Some(1)),
        (Some(1), None, Some(1)),
        (None, Some(60), None),
        (None, Some(5), Some(5)),
    ] {
        let (handle, _inbox) = channel(pod.clone());
        handle.kill(kill("Evicted", first));
        handle.kill(kill("Terminated", later));
        let given = handle.desired.borrow().kill.clone();
        assert_eq!(given, Some(kill("Evicted", wanted)), "{first:?}, then {later:?}");
    }
}
