//! Pods on a real node: `landfall up` as people start it, kubectl as they type it, real images.
//!
//! Each test has a cluster of its own, and ends it with `landfall down`; what may not be left behind
//! is then looked for in the kernel ([`ground::Ground`]).

mod asked;
mod autoscaling;
mod clearing;
mod confined;
mod crashes;
mod deleting;
mod described;
mod endings;
mod figures;
mod host;
mod hostile;
mod image_volumes;
mod mounting;
mod precedence;
mod replaced;
mod resizing;
mod rolling;
mod running;
mod shutdown;
mod starting;
mod streams;
mod timeline;
mod volumes;
mod workloads;

use crate::ground;
use crate::harness::{self, Cluster, Kubectl, down};

/// Runs a test on a cluster with a node and these images, then ends the cluster and makes sure that
/// nothing of it is left.
fn on_a_node(images: &[&str], test: impl FnOnce(&Cluster, &Kubectl)) {
    on_a_node_with(images, &[], test);
}

fn on_a_node_with(images: &[&str], args: &[&str], test: impl FnOnce(&Cluster, &Kubectl)) {
    let ground = ground::Ground::look();
    let cluster = Cluster::with_node(images, args);
    let kubectl = cluster.kubectl();
    test(&cluster, &kubectl);
    kubectl.ok("kubectl delete pods --all --grace-period=1");
    down(&cluster.data_dir());
    ground.is_as_before(&cluster.data_dir());
}

/// What the node says its runtime can do. landfall's own can do all of it.
fn can(kubectl: &Kubectl, feature: &str) -> bool {
    let said = kubectl.ok(&format!("kubectl get node n1 -o jsonpath='{{.status.{feature}}}'"));
    let can = said.trim() == "true";
    assert!(can || harness::other_runtime().is_some(), "{feature}: {said}");
    can
}

/// An event with these words comes.
fn happens(kubectl: &Kubectl, words: &str) {
    kubectl.ok(&format!(
        "for i in $(seq 100); do kubectl get events | grep -q '{words}' && exit 0; done; kubectl get events; exit 1"
    ));
}
