//! Events about missing cluster DNS.

use crate::agent::bed::{Bed, NODE, pass};
use client::Selection;
use k8s_openapi::api::core::v1::Event;
use serde_json::json;

/// N-60: cluster DNS is missing for all pods alike, so there is one event, for the node.
#[tokio::test(start_paused = true)]
async fn missing_cluster_dns_is_reported_once_per_node() {
    let bed = Bed::new().await;
    let agent = bed.agent().await;
    for name in ["a", "b", "c"] {
        bed.pod(name, json!({}), json!({})).await;
        bed.until_running(name).await;
    }
    pass(1000).await;
    agent.deps.recorder.flush().await;
    let events = bed.client.list::<Event>(&Selection::default()).await.unwrap();
    let warnings: Vec<_> =
        events.iter().filter(|e| e.reason.as_deref() == Some("MissingClusterDNS")).collect();
    let names: Vec<_> = warnings.iter().map(|e| e.involved_object.name.as_deref()).collect();
    assert_eq!(names, [Some(NODE)]);
    assert_eq!(warnings[0].count.unwrap_or(1), 1);
    assert_eq!(warnings[0].involved_object.kind.as_deref(), Some("Node"));
}
