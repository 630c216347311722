//! A cluster becomes what was declared, and then nobody writes.

use client::{Client, ObjectKey};
use k8s_openapi::api::core::v1::Namespace;
use serde_json::json;
use sim::{Besides, Ground, Options, Scenario};
use std::sync::Arc;
use std::time::Duration;

fn settle() -> &'static Scenario {
    Scenario::find("settle").expect("it is in the table")
}

/// C-16. For an hour: Leases of nodes, their status every five minutes, and nothing else.
#[test]
fn what_was_declared_becomes_so_and_then_nothing_is_written() {
    let ground = Ground::lay().unwrap();
    let summary = sim::run_many(&ground, settle(), 1..2, &Options::default(), &|_| true).unwrap();
    if let Some(outcome) = &summary.failure {
        panic!("{:?}\n{}", outcome.violation, outcome.story.join("\n"));
    }
}

#[test]
fn somebody_who_writes_the_same_thing_again_and_again_is_found() {
    let ground = Ground::lay().unwrap();
    let besides: Besides = Arc::new(|client: Client| {
        Box::pin(async move {
            loop {
                tokio::time::sleep(Duration::from_secs(600)).await;
                let patch = json!({ "metadata": { "labels": { "seen": "yes" } } });
                let key = ObjectKey::cluster("default");
                let _ = client.patch_merge::<Namespace>(&key, &patch).await;
            }
        })
    });
    let options = Options { besides: Some(besides), ..Options::default() };
    let outcome = sim::run(&ground, settle(), 0, &options).unwrap();
    let violation = outcome.violation.expect("it is found");
    assert_eq!(violation.broken.rule, "silence");
    assert!(violation.broken.why.contains("PATCH /api/v1/namespaces/default"), "{violation:?}");
}
