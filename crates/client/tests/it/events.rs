//! Events as clients find them in the API, as core events and as events of events.k8s.io.

use crate::cluster::pod;
use crate::fake_server;
use client::{Client, Recorder, Selection, field_reference, reference};
use k8s_openapi::api::core::v1::{Event, Node, ObjectReference};
use k8s_openapi::api::events;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use testbed::TestServer;
use tokio::time::Instant;

async fn events_with_reason(client: &Client, reason: &str) -> Vec<Event> {
    let which = Selection::default().fields(&format!("reason={reason}"));
    client.list(&which).await.unwrap()
}

/// C-199: a repeated event increases the count by a patch.
#[tokio::test]
async fn n_179_core_events_are_written_and_counted() {
    let server = TestServer::with_service_account().await;
    let client = server.admin();
    let web = reference(&client.create(&pod("web", "web")).await.unwrap());
    let recorder = Recorder::new(&client, "kubelet", "n1");

    let app = field_reference(&web, "spec.containers{app}");
    for _ in 0..3 {
        recorder.warning(&app, "BackOff", "Back-off restarting failed container");
    }
    recorder.normal(&app, "Pulled", "Container image is here");
    recorder.flush().await;

    let [event] = events_with_reason(&client, "BackOff").await.try_into().unwrap();
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
    assert_eq!(events_with_reason(&client, "Pulled").await.len(), 1);
    server.stop().await;
}

#[tokio::test]
async fn n_180_events_with_an_action_are_written_to_events_k8s_io() {
    let server = TestServer::with_service_account().await;
    let client = server.admin();
    let web = reference(&client.create(&pod("web", "web")).await.unwrap());
    let recorder = Recorder::new(&client, "default-scheduler", "default-scheduler-n1");

    for _ in 0..2 {
        recorder.with_action("Scheduling").warning(
            &web,
            "FailedScheduling",
            "0/1 nodes are available",
        );
    }
    recorder.flush().await;

    let all: Vec<events::v1::Event> = client.list(&Selection::namespace("default")).await.unwrap();
    let [event] = all.try_into().unwrap();
    assert_eq!(event.reporting_controller.as_deref(), Some("default-scheduler"));
    assert_eq!(event.action.as_deref(), Some("Scheduling"));
    assert_eq!(event.note.as_deref(), Some("0/1 nodes are available"));
    assert!(event.event_time.is_some());
    assert_eq!(event.series.unwrap().count, 2);
    let [core] = events_with_reason(&client, "FailedScheduling").await.try_into().unwrap();
    assert_eq!(core.reporting_component.as_deref(), Some("default-scheduler"));
    server.stop().await;
}

/// C-198, C-199: an event that has expired is created again.
#[tokio::test]
async fn n_179_node_events_are_in_default_and_expired_events_are_created_again() {
    let server = TestServer::with_service_account().await;
    let client = server.admin();
    let node: Node = typed::from_value(json!({ "metadata": { "name": "n1" } })).unwrap();
    let node = reference(&client.create(&node).await.unwrap());
    let recorder = Recorder::new(&client, "node-controller", "");

    recorder.normal(&node, "RegisteredNode", "Node n1 event: Registered Node n1 in Controller");
    recorder.flush().await;
    let [event] = events_with_reason(&client, "RegisteredNode").await.try_into().unwrap();
    assert_eq!(event.metadata.namespace.as_deref(), Some("default"));

    client.delete::<Event>(&client::ObjectKey::of(&event), &Default::default()).await.unwrap();
    recorder.normal(&node, "RegisteredNode", "Node n1 event: Registered Node n1 in Controller");
    recorder.flush().await;
    assert_eq!(events_with_reason(&client, "RegisteredNode").await[0].count, Some(2));
    server.stop().await;
}

/// The number of requests for one event to a server that answers like this.
async fn tries(answer: impl Fn() -> fake_server::Answer + Send + Sync + 'static) -> usize {
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = requests.clone();
    let client = fake_server::client(move |_, _, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        answer()
    });
    let recorder = Recorder::new(&client, "kubelet", "n1");
    let before = Instant::now();
    recorder.normal(&ObjectReference::default(), "Pulled", "Container image is here");
    assert_eq!(before.elapsed(), Duration::ZERO, "recording does not wait");
    // Long after the last try.
    tokio::time::sleep(Duration::from_secs(600)).await;
    requests.load(Ordering::SeqCst)
}

#[tokio::test(start_paused = true)]
async fn c_201_an_event_is_tried_twelve_times_and_a_refused_one_once() {
    assert_eq!(tries(fake_server::unreachable).await, 12);
    assert_eq!(tries(|| fake_server::refusal(503, "ServiceUnavailable")).await, 12);
    assert_eq!(tries(|| fake_server::refusal(403, "Forbidden")).await, 1);
    assert_eq!(tries(|| fake_server::refusal(422, "Invalid")).await, 1);
}
