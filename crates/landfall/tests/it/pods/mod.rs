//! Pods on a real node: `landfall up`, kubectl, and real images.
//!
//! Each test has its own cluster and ends it with `landfall down`; then nothing may be left in the kernel
//! ([`kernel_state::KernelState`]).

mod autoscaling;
mod cleanup;
mod confined;
mod crash_points;
mod crashes;
mod deleting;
mod describe;
mod drill;
mod dual_stack;
mod endings;
mod features;
mod host;
mod hostile;
mod image_volumes;
mod metrics;
mod mounting;
mod precedence;
mod readiness;
mod replaced;
mod resizing;
mod rolling;
mod running;
mod services;
mod shutdown;
mod starting;
mod streams;
mod timeline;
mod volumes;
mod workloads;

use crate::harness::{self, Cluster, Kubectl, down};
use crate::kernel_state;

/// Runs a test on a cluster with a node and these images, then ends the cluster and checks that nothing is left.
fn on_a_node(images: &[&str], test: impl FnOnce(&Cluster, &Kubectl)) {
    on_a_node_with(images, &[], test);
}

fn on_a_node_with(images: &[&str], args: &[&str], test: impl FnOnce(&Cluster, &Kubectl)) {
    let kernel = kernel_state::KernelState::capture();
    let cluster = Cluster::with_node(images, args);
    let kubectl = cluster.kubectl();
    test(&cluster, &kubectl);
    kubectl.ok("kubectl delete pods --all --grace-period=1");
    down(&cluster.data_dir());
    kernel.assert_unchanged(&cluster.data_dir());
}

/// Whether the runtime has this feature, as the Node reports it. The native one has all.
fn can(kubectl: &Kubectl, feature: &str) -> bool {
    let output = kubectl.ok(&format!("kubectl get node n1 -o jsonpath='{{.status.{feature}}}'"));
    let can = output.trim() == "true";
    assert!(can || harness::other_runtime().is_some(), "{feature}: {output}");
    can
}

/// Waits for an event that contains these words.
fn happens(kubectl: &Kubectl, words: &str) {
    kubectl.ok(&format!(
        "for i in $(seq 100); do kubectl get events | grep -q '{words}' && exit 0; done; kubectl get events; exit 1"
    ));
}
