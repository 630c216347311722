//! No two pods of one name ever run at once, and the checker finds controllers that break this.

use client::{Client, DeleteOptions, ObjectKey};
use k8s_openapi::api::core::v1::{Node, Pod};
use sim::{Interference, Options, Scenario, SimulationSetup};
use std::sync::Arc;
use std::time::Duration;

fn identity() -> &'static Scenario {
    Scenario::find("identity").expect("the scenario exists")
}

/// T-INV-6, W-56, T-CTRL-15: two pods of one name run at once only by force. `make sim` runs ten thousand seeds.
#[test]
fn two_pods_of_one_name_never_run_at_once_unless_forced() {
    let setup = SimulationSetup::prepare().unwrap();
    let summary = sim::run_many(&setup, identity(), 0..2, &Options::default(), &|_| true).unwrap();
    if let Some(outcome) = &summary.failure {
        panic!("{:?}\n{}", outcome.violation, outcome.trace.join("\n"));
    }
    assert!(summary.pods > 4, "{summary:?}");
}

/// A controller that keeps doing this to pods that are being deleted.
fn meddle<F>(
    every: Duration,
    with: impl Fn(Client, Pod) -> F + Send + Sync + Clone + 'static,
) -> Options
where
    F: Future<Output = ()> + Send,
{
    let interference: Interference = Arc::new(move |client| {
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
    Options { interference: Some(interference), ignore_timelines: true, ..Options::default() }
}

fn found(options: &Options) -> &'static str {
    let setup = SimulationSetup::prepare().unwrap();
    let summary = sim::run_many(&setup, identity(), 0..40, options, &|_| true).unwrap();
    summary.failure.expect("the checker finds the fault").violation.unwrap().broken.rule
}

async fn remove(client: &Client, pod: &Pod) {
    let options = DeleteOptions::only(pod).grace(0);
    let _ = client.delete::<Pod>(&ObjectKey::of(pod), &options).await;
}

/// T-CTRL-36: an unreachable node is no reason to remove its pods.
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
    // Found when the object is removed, or when its replacement runs.
    let rule = found(&options);
    assert!(["T-INV-3", "T-INV-6", "W-56"].contains(&rule), "{rule}");
}

/// T-CTRL-15: a terminating pod occupies its ordinal.
#[test]
fn a_set_that_replaces_a_pod_while_the_old_one_terminates_is_found() {
    let options = meddle(Duration::from_secs(1), |client, pod| async move {
        remove(&client, &pod).await;
    });
    let rule = found(&options);
    assert!(["T-INV-3", "T-INV-6", "W-56"].contains(&rule), "{rule}");
}
