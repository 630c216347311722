//! Force deletion: the object is removed at once, and the process still gets its stop signal.

use super::node::on_a_node;
use super::witness::{GONE, is_about, now, script};
use serde_json::json;

/// W-18, W-55, T-NODE-14, T-EDGE-2, T-API-34: the server responds at once; the node runs the hook for a second, sends
/// the signal and kills two seconds later, even if a longer termination was under way. A new pod of the same name is
/// not affected.
#[test]
fn a_force_deleted_pod_still_gets_its_stop_signal() {
    on_a_node(&["python"], &[], |node| {
        let place = &node.place;
        let stubborn = |name: &str, more| place.witness(name, "--term ignore", more);
        let hook = |name: &str| script(&format!("echo hook > /out/{name}; exec sleep 1000"));
        let pods = [
            place.pod("same", 60, vec![stubborn("old", hook("old"))], json!({})),
            place.pod("slow", 60, vec![stubborn("slow", hook("slow"))], json!({})),
        ];
        let next = place.pod("same", 60, vec![stubborn("new", json!({}))], json!({}));
        node.run(&pods, &["old", "slow"]);
        node.delete("slow");
        place.at("slow", "hook");
        let asked = now();
        let output = node.kubectl.run("kubectl delete pod same slow --grace-period=0 --force");
        assert!(output.stderr.contains("Immediate deletion does not wait"), "{output}");
        node.kubectl.fails("kubectl get pod same", "not found");
        node.run(&[next], &["new"]);
        for name in ["old", "slow"] {
            place.at(name, GONE);
            assert_eq!(place.words(name), ["start", "hook", "SIGTERM", GONE], "T-NODE-14");
            is_about("T-NODE-19", place.between((name, "SIGTERM"), (name, GONE)), 2.0);
        }
        is_about("T-NODE-14", place.between(("old", "hook"), ("old", "SIGTERM")), 1.0);
        let took = place.at("slow", "SIGTERM") - asked;
        assert!((1.0..5.0).contains(&took), "T-EDGE-2: {took} s");
        // The old pod is cleaned up now; the node does not confuse the new one with it.
        node.kubectl.ok("kubectl wait --for=condition=Ready pod/same --timeout=30s");
        node.kubectl.shows("kubectl get pod same", &["1/1", "Running", "0"]);
        assert_eq!(place.words("new"), ["start"], "W-17");
    });
}
