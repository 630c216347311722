//! The network of a pod, with a real one in namespaces of the test. Needs root.

use crate::agent::bed::{Bed, NODE};
use crate::worker::observe::network_key;
use client::ObjectKey;
use k8s_openapi::api::core::v1::Node;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use serde_json::json;
use std::time::Duration;

/// In real time, because the devices are real.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(10);

fn alone<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    let thread = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)
            .expect("this test needs root: run `make test` as root");
        let none: Option<&str> = None;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test());
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

async fn give_range(bed: &Bed) {
    while bed.client.find::<Node>(&ObjectKey::cluster(NODE)).await.unwrap().is_none() {
        tokio::time::sleep(LOOK).await;
    }
    let range = "10.79.1.0/24";
    bed.patch_node(json!({ "spec": { "podCIDR": range, "podCIDRs": [range] } })).await;
}

/// N-51, N-124: host ports and addresses of a failed sandbox are released.
#[test]
fn a_failed_sandbox_releases_its_address() {
    alone(|| async {
        let bed = Bed::new().await;
        bed.machine.without_network();
        let (agent, ()) = tokio::join!(bed.agent(), give_range(&bed));
        let network = agent.deps.network.clone().unwrap();
        bed.machine.fail("run_sandbox", usize::MAX);
        let ports = json!({ "ports": [{ "containerPort": 80, "hostPort": 8080 }] });
        let pod = bed.pod("web", json!({}), ports).await;
        bed.until_calls(|calls| calls.first().is_some_and(|first| first == "run sandbox")).await;
        let key = network_key(pod.metadata.uid.as_deref().unwrap(), 0);
        let given_back = async {
            while network.find(&key).is_some() {
                tokio::time::sleep(LOOK).await;
            }
        };
        let given_back = tokio::time::timeout(PATIENCE, given_back).await;
        bed.delete("web", None).await;
        bed.until_gone("web").await;
        assert!(given_back.is_ok() && network.find(&key).is_none());
        network.remove().await.unwrap();
    });
}
