//! A new pod with the name of one that is still terminating.

use super::on_a_node;
use super::shutdown::polite;

const UID: &str = "kubectl get pod p -o jsonpath='{.metadata.uid} {.metadata.deletionTimestamp}'";

/// T-API-34: the node's last delete has grace 0 and names the uid, so it does not remove another pod of that name.
#[test]
fn the_last_delete_of_a_node_names_the_uid() {
    on_a_node(&["busybox"], |cluster, kubectl| {
        let order = cluster.dir().join("out/order");
        let wait = "kubectl wait --for=condition=Ready pod/p --timeout=60s\n";
        // A finalizer keeps the object, so that the effect of the node's delete can be seen.
        kubectl.ok(&(polite(cluster, "p", "terminationGracePeriodSeconds: 25")
            + wait
            + "kubectl patch pod p -p '{\"metadata\":{\"finalizers\":[\"example.com/hold\"]}}'
kubectl delete pod p --wait=false
kubectl wait --for=jsonpath='{.metadata.deletionGracePeriodSeconds}'=0 pod/p --timeout=30s
kubectl patch pod p -p '{\"metadata\":{\"finalizers\":null}}'\n"
            + &polite(cluster, "p", "terminationGracePeriodSeconds: 24")
            + wait));
        // Force deleted: the node still terminates the old pod when the new one is created.
        kubectl.ok(&("kubectl delete pod p --force --grace-period=0 --wait=false\n".to_owned()
            + &polite(cluster, "p", "terminationGracePeriodSeconds: 23")));
        let new = kubectl.ok(UID);
        kubectl.ok(wait);
        let path = order.display();
        kubectl.ok(&format!(
            "for i in $(seq 300); do [ $(grep -c gone {path}) = 2 ] && exit 0; sleep 0.1; done; exit 1"
        ));
        kubectl.ok("kubectl exec p -- true");
        assert_eq!(kubectl.ok(UID), new, "it exists and is not deleted");
    });
}
