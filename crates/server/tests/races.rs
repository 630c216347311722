//! What two clients do to one object at the same moment.

mod door;

use door::{Cluster, PODS, pod};

const ROUNDS: usize = 200;

/// T-EDGE-15: a pod that is bound while it is being deleted either keeps its grace or was never bound.
/// Upstream resolves the grace from its first read and removes such a pod at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn t_edge_15_a_pod_bound_meanwhile_is_not_removed_without_grace() {
    let cluster = Cluster::start().await;
    let (mut bound, mut removed) = (0, 0);
    for round in 0..ROUNDS {
        let name = format!("p{round}");
        cluster.make(PODS, pod(&name)).await;
        let (binds, deletes) = (cluster.admin(), cluster.admin());
        let (bound_name, at) = (name.clone(), format!("{PODS}/{name}"));
        let bind = tokio::spawn(async move { binds.bind(&bound_name).await.code });
        let delete = tokio::spawn(async move { deletes.delete(&at).await.code });
        let (bind, delete) = (bind.await.unwrap(), delete.await.unwrap());
        assert_eq!(delete, 200, "round {round}");
        let there = cluster.get(&format!("{PODS}/{name}")).await;
        match bind {
            201 => {
                assert_eq!(there.code, 200, "round {round}: it was bound, then removed at once");
                assert_eq!(
                    there.body["metadata"]["deletionGracePeriodSeconds"], 30,
                    "round {round}"
                );
                bound += 1;
            }
            404 | 409 => {
                assert_eq!(there.code, 404, "round {round}");
                removed += 1;
            }
            other => panic!("round {round}: a binding answered {other}"),
        }
    }
    println!("{bound} were bound first, {removed} deleted first");
}
