//! Events as they are found in the API, in both of its views.

use crate::cluster::{Cluster, pod};
use crate::played;
use client::{Client, Recorder, Selection, part, reference};
use k8s_openapi::api::core::v1::{Event, Node, ObjectReference};
use k8s_openapi::api::events;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::Instant;

async fn told(client: &Client, reason: &str) -> Vec<Event> {
    let which = Selection::default().fields(&format!("reason={reason}"));
    client.list(&which).await.unwrap()
}

/// C-199: a second one is counted by a patch.
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

/// C-198, C-199: one that is no longer there is written anew.
#[tokio::test]
async fn n_179_a_nodes_events_are_in_default_and_a_forgotten_one_is_written_anew() {
    let cluster = Cluster::start().await;
    let client = cluster.in_process();
    let node: Node = typed::from_value(json!({ "metadata": { "name": "n1" } })).unwrap();
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

/// How often a server that answers like this is asked to take one event.
async fn tries(answer: impl Fn() -> played::Answer + Send + Sync + 'static) -> usize {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let client = played::client(move |_, _, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        answer()
    });
    let recorder = Recorder::new(&client, "kubelet", "n1");
    let before = Instant::now();
    recorder.normal(&ObjectReference::default(), "Pulled", "Container image is here");
    assert_eq!(before.elapsed(), Duration::ZERO, "who tells does not wait");
    // Long after the last try.
    tokio::time::sleep(Duration::from_secs(600)).await;
    asked.load(Ordering::SeqCst)
}

#[tokio::test(start_paused = true)]
async fn c_201_an_event_is_worth_twelve_tries_and_a_refused_one_none_but_the_first() {
    assert_eq!(tries(played::unreachable).await, 12);
    assert_eq!(tries(|| played::refusal(503, "ServiceUnavailable")).await, 12);
    assert_eq!(tries(|| played::refusal(403, "Forbidden")).await, 1);
    assert_eq!(tries(|| played::refusal(422, "Invalid")).await, 1);
}
