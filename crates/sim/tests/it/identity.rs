//! No two processes ever have one name, and faults against that are found.

use client::{Client, DeleteOptions, ObjectKey};
use k8s_openapi::api::core::v1::{Node, Pod};
use sim::{Besides, Ground, Options, Scenario};
use std::sync::Arc;
use std::time::Duration;

fn identity() -> &'static Scenario {
    Scenario::find("identity").expect("it is in the table")
}

/// T-INV-6, W-56, T-CTRL-15. `make sim` runs ten thousand.
#[test]
fn no_two_processes_ever_hold_one_name_unless_somebody_forced_it() {
    let ground = Ground::lay().unwrap();
    let summary = sim::run_many(&ground, identity(), 0..2, &Options::default(), &|_| true).unwrap();
    if let Some(outcome) = &summary.failure {
        panic!("{:?}\n{}", outcome.violation, outcome.story.join("\n"));
    }
    assert!(summary.pods > 4, "{summary:?}");
}

/// Does for ever what a controller must not do, with a controller's rights.
fn meddle<F>(
    every: Duration,
    with: impl Fn(Client, Pod) -> F + Send + Sync + Clone + 'static,
) -> Options
where
    F: Future<Output = ()> + Send,
{
    let besides: Besides = Arc::new(move |client| {
        let with = with.clone();
        Box::pin(async move {
            loop {
                tokio::time::sleep(every).await;
                for pod in client.list::<Pod>(&Default::default()).await.unwrap_or_default() {
                    if pod.metadata.deletion_timestamp.is_some() {
                        with(client.clone(), pod).await;
                    }
                }
            }
        })
    });
    Options { besides: Some(besides), without_timelines: true, ..Options::default() }
}

fn found(options: &Options) -> &'static str {
    let ground = Ground::lay().unwrap();
    let summary = sim::run_many(&ground, identity(), 0..40, options, &|_| true).unwrap();
    summary.failure.expect("the fault is found").violation.unwrap().broken.rule
}

async fn remove(client: &Client, pod: &Pod) {
    let options = DeleteOptions::only(pod).grace(0);
    let _ = client.delete::<Pod>(&ObjectKey::of(pod), &options).await;
}

/// T-CTRL-36: a node that is not heard of is no reason.
#[test]
fn a_controller_that_removes_pods_of_unreachable_nodes_is_found() {
    let options = meddle(Duration::from_secs(1), |client, pod| async move {
        let name = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
        let node = client.find::<Node>(&ObjectKey::cluster(&name)).await.ok().flatten();
        let taints = node.and_then(|node| node.spec?.taints).unwrap_or_default();
        if taints.iter().any(|taint| taint.key == "node.kubernetes.io/unreachable") {
            remove(&client, &pod).await;
        }
    });
    // Found when the object goes, or when its successor runs.
    let rule = found(&options);
    assert!(["T-INV-3", "T-INV-6", "W-56"].contains(&rule), "{rule}");
}

/// T-CTRL-15
#[test]
fn a_set_that_makes_a_pod_anew_while_the_old_one_ends_is_found() {
    let options = meddle(Duration::from_secs(1), |client, pod| async move {
        remove(&client, &pod).await;
    });
    let rule = found(&options);
    assert!(["T-INV-3", "T-INV-6", "W-56"].contains(&rule), "{rule}");
}
