//! Events as they are found in the API, in both of its views.

mod cluster;

use client::{Client, Recorder, Selection, part, reference};
use cluster::{Cluster, pod};
use k8s_openapi::api::core::v1::{Event, Node};
use k8s_openapi::api::events;
use serde_json::json;

async fn told(client: &Client, reason: &str) -> Vec<Event> {
    let which = Selection::default().fields(&format!("reason={reason}"));
    client.list(&which).await.unwrap()
}

#[tokio::test]
async fn n_179_the_nodes_events_are_written_and_counted() {
    let cluster = Cluster::start().await;
    let client = cluster.in_process();
    let web = reference(&client.create(&pod("web", "web")).await.unwrap());
    let recorder = Recorder::new(&client, "kubelet", "n1");

    let app = part(&web, "spec.containers{app}");
    for _ in 0..3 {
        recorder.warning(&app, "BackOff", "Back-off restarting failed container");
    }
    recorder.normal(&app, "Pulled", "Container image is here");
    recorder.flush().await;

    let [event] = told(&client, "BackOff").await.try_into().unwrap();
    assert!(event.metadata.name.as_ref().unwrap().starts_with("web."), "{event:?}");
    assert_eq!(event.metadata.namespace.as_deref(), Some("default"));
    assert_eq!(event.count, Some(3));
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    assert_eq!(event.message.as_deref(), Some("Back-off restarting failed container"));
    assert_eq!(event.involved_object.uid, web.uid);
    assert_eq!(event.involved_object.field_path.as_deref(), Some("spec.containers{app}"));
    let source = event.source.unwrap();
    assert_eq!(source.component.as_deref(), Some("kubelet"));
    assert_eq!(source.host.as_deref(), Some("n1"));
    assert_eq!(event.reporting_instance.as_deref(), Some("n1"));
    assert!(event.first_timestamp.is_some() && event.event_time.is_none());
    assert_eq!(told(&client, "Pulled").await.len(), 1);
    cluster.stop().await;
}

#[tokio::test]
async fn n_180_the_schedulers_events_are_those_of_events_k8s_io() {
    let cluster = Cluster::start().await;
    let client = cluster.in_process();
    let web = reference(&client.create(&pod("web", "web")).await.unwrap());
    let recorder = Recorder::new(&client, "default-scheduler", "default-scheduler-n1");

    for _ in 0..2 {
        recorder.doing("Scheduling").warning(&web, "FailedScheduling", "0/1 nodes are available");
    }
    recorder.flush().await;

    let all: Vec<events::v1::Event> = client.list(&Selection::namespace("default")).await.unwrap();
    let [event] = all.try_into().unwrap();
    assert_eq!(event.reporting_controller.as_deref(), Some("default-scheduler"));
    assert_eq!(event.action.as_deref(), Some("Scheduling"));
    assert_eq!(event.note.as_deref(), Some("0/1 nodes are available"));
    assert!(event.event_time.is_some());
    assert_eq!(event.series.unwrap().count, 2);
    let [core] = told(&client, "FailedScheduling").await.try_into().unwrap();
    assert_eq!(core.reporting_component.as_deref(), Some("default-scheduler"));
    cluster.stop().await;
}

#[tokio::test]
async fn n_179_a_nodes_events_are_in_default_and_a_forgotten_one_is_written_anew() {
    let cluster = Cluster::start().await;
    let client = cluster.in_process();
    let node: Node = serde_json::from_value(json!({ "metadata": { "name": "n1" } })).unwrap();
    let node = reference(&client.create(&node).await.unwrap());
    let recorder = Recorder::new(&client, "node-controller", "");

    recorder.normal(&node, "RegisteredNode", "Node n1 event: Registered Node n1 in Controller");
    recorder.flush().await;
    let [event] = told(&client, "RegisteredNode").await.try_into().unwrap();
    assert_eq!(event.metadata.namespace.as_deref(), Some("default"));

    client.delete::<Event>(&client::ObjectKey::of(&event), &Default::default()).await.unwrap();
    recorder.normal(&node, "RegisteredNode", "Node n1 event: Registered Node n1 in Controller");
    recorder.flush().await;
    assert_eq!(told(&client, "RegisteredNode").await[0].count, Some(2));
    cluster.stop().await;
}
