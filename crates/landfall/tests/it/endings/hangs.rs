//! Terminations that hang: the node reports it and retries. These tests take long.

use super::api_view::{sandbox_of, shim_of};
use super::node::on_a_node;
use super::witness::GONE;
use crate::harness::signal;
use serde_json::json;

/// T-NODE-84: the node warns if a pod that it evicts does not terminate in time; it does not warn for a plain delete.
#[test]
fn a_hanging_runtime_is_reported() {
    if crate::harness::other_runtime().is_some() {
        return; // Another runtime has other shims.
    }
    on_a_node(&["python"], &[], |node| {
        let place = &node.place;
        let cpus: u64 = node
            .kubectl
            .ok("kubectl get node n1 -o jsonpath='{.status.allocatable.cpu}'")
            .trim()
            .parse()
            .unwrap();
        let most = json!({"resources": {"requests": {"cpu": format!("{}m", cpus * 1000 - 200)}}});
        let pods = [
            place.pod("victim", 1, vec![place.witness("victim", "", most)], json!({})),
            place.pod("deleted", 1, vec![place.witness("deleted", "", json!({}))], json!({})),
        ];
        node.run(&pods, &["victim", "deleted"]);
        let shims = ["victim", "deleted"].map(|pod| shim_of(node, pod));
        shims.iter().for_each(|shim| signal(*shim, "STOP"));
        let some = json!({"resources": {"requests": {"cpu": "500m"}}});
        let critical = json!({"priorityClassName": "system-node-critical", "nodeName": "n1"});
        let mut critical =
            place.pod("critical", 2, vec![place.witness("critical", "", some)], critical);
        critical["metadata"]["namespace"] = "kube-system".into();
        node.create(&[critical]);
        node.delete("deleted");
        node.kubectl.ok("for i in $(seq 400); do kubectl get events | grep -q ExceededGracePeriod && exit 0; sleep 0.1; done; exit 1");
        let events = node.kubectl.ok("kubectl get events -o custom-columns=O:.involvedObject.name,R:.reason,M:.message --no-headers");
        let late: Vec<&str> =
            events.lines().filter(|line| line.contains("ExceededGracePeriod")).collect();
        assert_eq!(late.len(), 1, "{events}");
        assert!(
            late[0].starts_with("victim")
                && late[0].contains(
                    "Container runtime did not kill the pod within specified grace period."
                ),
            "{late:?}"
        );
        shims.iter().for_each(|shim| signal(*shim, "CONT"));
        place.at("victim", GONE);
        node.kubectl.ok("kubectl wait --for=delete pod/deleted --timeout=30s");
    });
}

/// T-NODE-9, T-NODE-71: the node reports what it cannot stop or clean up, retries, and the object stays until it worked.
#[test]
fn failed_cleanup_is_reported_and_retried() {
    if crate::harness::other_runtime().is_some() {
        return; // It keeps its files elsewhere.
    }
    on_a_node(&["python"], &[], |node| {
        let place = &node.place;
        let scratch = json!({"volumes": [{"name": "scratch", "emptyDir": {}}]});
        let mount = json!({"volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]});
        let pods = [
            place.pod("sandbox", 1, vec![place.witness("sandbox", "", json!({}))], json!({})),
            place.pod("volume", 1, vec![place.witness("volume", "", mount)], scratch),
        ];
        node.run(&pods, &["sandbox", "volume"]);
        let sandbox = sandbox_of(node, "sandbox").display().to_string();
        let data = node.cluster.data_dir();
        let uid = node.get("volume", "{.metadata.uid}");
        let volume = format!(
            "{}/kubelet/pods/{uid}/volumes/kubernetes.io~empty-dir/scratch",
            data.display()
        );
        let stuck =
            node.kubectl.run(&format!("touch {volume}/x && chattr +i {sandbox} {volume}/x"));
        if stuck.code != 0 {
            return eprintln!("this filesystem has no immutable files: {stuck}");
        }
        node.delete("sandbox volume");
        node.kubectl.ok("for i in $(seq 400); do kubectl get events | grep -q FailedKillPod && exit 0; sleep 0.1; done; exit 1");
        node.kubectl.shows("kubectl get events", &["FailedKillPod", "error killing pod: "]);
        node.kubectl
            .ok("kubectl wait --for=jsonpath='{.status.phase}'=Succeeded pod/volume --timeout=30s
kubectl get pod sandbox volume");
        node.kubectl.ok(&format!(
            "chattr -i {sandbox} {volume}/x
kubectl wait --for=delete pod --all --timeout=50s"
        ));
    });
}
