//! What is said of names that pods cannot look up.

use crate::agent::bed::{Bed, NODE, pass};
use client::Selection;
use k8s_openapi::api::core::v1::Event;
use serde_json::json;

/// N-60: without cluster DNS every pod is the same; it is said once, of the node.
#[tokio::test(start_paused = true)]
async fn a_node_without_cluster_dns_says_so_once() {
    let bed = Bed::new().await;
    let agent = bed.agent().await;
    for name in ["a", "b", "c"] {
        bed.pod(name, json!({}), json!({})).await;
        bed.until_running(name).await;
    }
    pass(1000).await;
    agent.deps.recorder.flush().await;
    let events = bed.client.list::<Event>(&Selection::default()).await.unwrap();
    let told: Vec<_> =
        events.iter().filter(|e| e.reason.as_deref() == Some("MissingClusterDNS")).collect();
    let names: Vec<_> = told.iter().map(|e| e.involved_object.name.as_deref()).collect();
    assert_eq!(names, [Some(NODE)]);
    assert_eq!(told[0].count.unwrap_or(1), 1);
    assert_eq!(told[0].involved_object.kind.as_deref(), Some("Node"));
}
