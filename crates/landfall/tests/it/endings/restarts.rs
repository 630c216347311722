//! landfall is killed while pods terminate, and continues after its restart.

use super::node::Node;
use super::witness::{GONE, is_about, now, script};
use serde_json::json;

/// A pod that ignores its stop signal, with a hook of one second and a grace period of six; landfall is killed two
/// seconds after the signal and started again.
fn killed_at_half_time(args: &[&str]) -> (Node, f64) {
    let node = Node::start(&["python"], args);
    let place = &node.place;
    let hook = script("echo hook > /out/app; sleep 1");
    let app = place.witness("app", "--term ignore --mark 2", hook);
    let other = place.witness("other", "", json!({}));
    let finished = place.shell("finished", "python:1", "echo start > $P");
    let never = json!({"restartPolicy": "Never"});
    let pods = [
        place.pod("app", 6, vec![app], json!({})),
        place.pod("other", 6, vec![other], json!({})),
        place.pod("finished", 6, vec![finished], never),
    ];
    node.run(&pods, &["app", "other", "finished"]);
    node.kubectl
        .ok("kubectl wait --for=jsonpath='{.status.phase}'=Succeeded pod/finished --timeout=30s");
    node.delete("app");
    place.at("app", "mark");
    let node = node.restart(args);
    (node, now())
}

/// W-6, T-NODE-11: by default the termination starts over with the hook, the signal and the whole grace period. Nothing
/// happens to the container in between, and other pods are not affected. T-NODE-12: completed pods do not start again.
#[test]
fn after_a_restart_a_termination_starts_over() {
    let (node, back) = killed_at_half_time(&[]);
    let place = &node.place;
    place.at("app", GONE);
    let words = ["start", "hook", "SIGTERM", "mark", "hook", "SIGTERM", GONE];
    assert_eq!(place.words("app"), words, "W-6");
    let again = place.nth("app", "hook", 1);
    assert!(again < back + 5.0, "it goes on at once");
    is_about("the hook again", place.nth("app", "SIGTERM", 1) - again, 1.0);
    is_about("the whole grace again", place.at("app", GONE) - again, 6.0);
    node.kubectl.ok("kubectl wait --for=delete pod/app --timeout=30s");
    assert_eq!(place.words("other"), ["start"]);
    assert_eq!(place.words("finished"), ["start", GONE], "T-NODE-12");
    node.kubectl.shows("kubectl get pod finished", &["0/1", "Completed", "0"]);
    node.end();
}

/// T-EDGE-3: with `--grace-after-restart=kept` the deadline stays the same, and neither hook nor signal is repeated.
#[test]
fn a_kept_deadline_survives_a_restart() {
    let (node, _) = killed_at_half_time(&["--grace-after-restart=kept"]);
    let place = &node.place;
    place.at("app", GONE);
    assert_eq!(place.words("app"), ["start", "hook", "SIGTERM", "mark", GONE]);
    let took = place.between(("app", "hook"), ("app", GONE));
    // The restart may take longer than the rest of the grace period.
    assert!((5.9..10.0).contains(&took), "{took} s after its hook began");
    node.kubectl.ok("kubectl wait --for=delete pod/app --timeout=30s");
    let left = std::fs::read_dir(node.cluster.data_dir().join("endings")).unwrap().count();
    assert_eq!(left, 0, "no progress file is left");
    node.end();
}

/// T-NODE-13, T-NODE-76: a pod that was force deleted while its node was down is terminated without its hook when the
/// node is back, and its resources are cleaned up.
#[test]
fn a_pod_without_an_object_is_terminated() {
    let node = Node::start(&["python"], &[]);
    let place = &node.place;
    let hook = script("echo hook > /out/orphan");
    let orphan = place.witness("orphan", "--term ignore", hook);
    node.run(&[place.pod("orphan", 60, vec![orphan], json!({}))], &["orphan"]);
    let foreign =
        node.cluster.data_dir().join("kubelet/pods/nobody/volumes/kubernetes.io~empty-dir/x");
    std::fs::create_dir_all(&foreign).unwrap();
    let node = node.restart(&["--no-node"]);
    node.kubectl.ok("kubectl delete pod orphan --grace-period=0 --force");
    assert_eq!(node.place.words("orphan"), ["start"], "no agent is running to terminate it");
    let node = node.restart(&[]);
    let place = &node.place;
    place.at("orphan", GONE);
    assert_eq!(place.words("orphan"), ["start", "SIGTERM", GONE], "no hook: its spec is lost");
    is_about("T-NODE-13", place.between(("orphan", "SIGTERM"), ("orphan", GONE)), 2.0);
    node.kubectl.shows(
        "kubectl get --raw /api/v1/nodes/n1/proxy/metrics",
        &["kubelet_orphaned_runtime_pods_total 1"],
    );
    // T-NODE-76: the next round of housekeeping cleans it up.
    let there = foreign.display();
    node.kubectl
        .ok(&format!("for i in $(seq 300); do [ -e {there} ] || exit 0; sleep 0.1; done; exit 1"));
    node.end();
}
