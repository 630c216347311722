//! Forced deletes: the object goes at once, the process is asked all the same.

use super::node::on_a_node;
use super::witness::{GONE, is_about, now, script};
use serde_json::json;

/// W-18, W-55, T-NODE-14, T-EDGE-2, T-API-34: a forced delete is answered at once; the node runs the hook
/// for a second, sends the signal and kills two seconds later, also when a longer end was under way. A pod
/// of the same name that comes meanwhile is another pod, and lives.
#[test]
fn a_forced_delete_takes_the_object_and_asks_the_process() {
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
        let said = node.kubectl.run("kubectl delete pod same slow --grace-period=0 --force");
        assert!(said.stderr.contains("Immediate deletion does not wait"), "{said}");
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
        // The old one is cleared away now; its successor is not mistaken for it.
        node.kubectl.ok("kubectl wait --for=condition=Ready pod/same --timeout=30s");
        node.kubectl.shows("kubectl get pod same", &["1/1", "Running", "0"]);
        assert_eq!(place.words("new"), ["start"], "W-17");
    });
}
