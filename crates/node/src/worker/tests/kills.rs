//! Repeated requests of the node to terminate a pod.

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

/// T-NODE-5: an eviction in progress when the node shuts down keeps its reason, and gets no more time.
#[test]
fn a_later_request_of_the_node_only_shortens_the_grace_period() {
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
