//! A cluster reaches its desired state, and then nothing is written.

use client::{Client, ObjectKey};
use k8s_openapi::api::core::v1::Namespace;
use serde_json::json;
use sim::{Interference, Options, Scenario, SimulationSetup};
use std::sync::Arc;
use std::time::Duration;

fn settle() -> &'static Scenario {
    Scenario::find("settle").expect("the scenario exists")
}

/// C-16: an unchanged status is not written. For an hour only Leases and the status of nodes are written.
#[test]
fn the_desired_state_is_reached_and_then_nothing_is_written() {
    let setup = SimulationSetup::prepare().unwrap();
    let summary = sim::run_many(&setup, settle(), 1..2, &Options::default(), &|_| true).unwrap();
    if let Some(outcome) = &summary.failure {
        panic!("{:?}\n{}", outcome.violation, outcome.trace.join("\n"));
    }
}

#[test]
fn a_component_that_writes_the_same_object_again_and_again_is_found() {
    let setup = SimulationSetup::prepare().unwrap();
    let interference: Interference = Arc::new(|client: Client| {
        Box::pin(async move {
            loop {
                tokio::time::sleep(Duration::from_secs(600)).await;
                let patch = json!({ "metadata": { "labels": { "seen": "yes" } } });
                let key = ObjectKey::cluster("default");
                let _ = client.patch_merge::<Namespace>(&key, &patch).await;
            }
        })
    });
    let options = Options { interference: Some(interference), ..Options::default() };
    let outcome = sim::run(&setup, settle(), 0, &options).unwrap();
    let violation = outcome.violation.expect("the checker finds it");
    assert_eq!(violation.broken.rule, "silence");
    assert!(violation.broken.why.contains("PATCH /api/v1/namespaces/default"), "{violation:?}");
}
