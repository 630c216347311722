//! A pod that comes back under the name of one that has not quite ended.

use super::on_a_node;
use super::shutdown::polite;

const UID: &str = "kubectl get pod p -o jsonpath='{.metadata.uid} {.metadata.deletionTimestamp}'";

/// T-API-34: the node's last delete has no grace, and is of this very pod: another of that name is not
/// removed by it.
#[test]
fn the_last_delete_of_a_node_is_for_one_pod_only() {
    on_a_node(&["busybox"], |cluster, kubectl| {
        let order = cluster.dir().join("out/order");
        let wait = "kubectl wait --for=condition=Ready pod/p --timeout=60s\n";
        // Held when the node is done with it: what the node's delete wrote is there to be seen.
        kubectl.ok(&(polite(cluster, "p", "terminationGracePeriodSeconds: 25")
            + wait
            + "kubectl patch pod p -p '{\"metadata\":{\"finalizers\":[\"example.com/hold\"]}}'
kubectl delete pod p --wait=false
kubectl wait --for=jsonpath='{.metadata.deletionGracePeriodSeconds}'=0 pod/p --timeout=30s
kubectl patch pod p -p '{\"metadata\":{\"finalizers\":null}}'\n"
            + &polite(cluster, "p", "terminationGracePeriodSeconds: 24")
            + wait));
        // Forced while it runs: the node is still ending the old one when the new one comes.
        kubectl.ok(&("kubectl delete pod p --force --grace-period=0 --wait=false\n".to_owned()
            + &polite(cluster, "p", "terminationGracePeriodSeconds: 23")));
        let new = kubectl.ok(UID);
        kubectl.ok(wait);
        let path = order.display();
        kubectl.ok(&format!(
            "for i in $(seq 300); do [ $(grep -c gone {path}) = 2 ] && exit 0; sleep 0.1; done; exit 1"
        ));
        kubectl.ok("kubectl exec p -- true");
        assert_eq!(kubectl.ok(UID), new, "it is there, and nobody deletes it");
    });
}
