//! What the server sees to by itself, for as long as it runs.

mod door;

use door::{Cluster, MAPS, map};
use serde_json::json;

/// More than the store keeps of its history.
async fn much_happens(cluster: &Cluster) {
    let mut large = map("large");
    for round in 10..60 {
        large["data"] = json!({ "text": format!("{round}").repeat(450_000) });
        let said = match round {
            10 => cluster.post(MAPS, large.clone()).await,
            _ => cluster.put(&format!("{MAPS}/large"), &large).await,
        };
        said.ok();
    }
}

/// A-160, W-52: also of what was deleted after the store has forgotten what those who look after it had
/// seen last.
#[tokio::test]
async fn what_is_owed_comes_back_after_much_has_happened() {
    let cluster = Cluster::start().await;
    let owed = [
        format!("{MAPS}/kube-root-ca.crt"),
        "/api/v1/namespaces/default/serviceaccounts/default".to_owned(),
        "/api/v1/namespaces/default/services/kubernetes".to_owned(),
        "/api/v1/namespaces/default/endpoints/kubernetes".to_owned(),
    ];
    much_happens(&cluster).await;
    for _ in 0..2 {
        for path in &owed {
            let before = cluster.read(path).await;
            cluster.delete(path).await.ok();
            assert!(cluster.until(path, 200).await, "{path} did not come back");
            assert_ne!(cluster.read(path).await["metadata"]["uid"], before["metadata"]["uid"]);
        }
    }
}
