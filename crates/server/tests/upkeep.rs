//! What the server sees to by itself: objects that are there, stay there, and say what they should.

mod door;

use door::{Cluster, MAPS};
use serde_json::{Value, json};
use std::time::Duration;

const DESCRIPTION: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using \
     internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed \
     across distributions of Kubernetes clusters.";

/// Reads it until it is so.
async fn until(cluster: &Cluster, place: &str, so: impl Fn(&Value) -> bool) -> Value {
    let looking = async {
        loop {
            let object = cluster.get(place).await.body;
            if so(&object) {
                return object;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), looking).await.expect("it comes to be so")
}

fn description(map: &Value) -> &Value {
    &map["metadata"]["annotations"]["kubernetes.io/description"]
}

/// C-144, T-CTRL-64
#[tokio::test]
async fn c_144_the_description_of_the_root_certificate_is_added_if_it_is_empty() {
    let cluster = Cluster::start().await;
    let place = format!("{MAPS}/kube-root-ca.crt");
    let made = cluster.read(&place).await;
    assert_eq!(description(&made), DESCRIPTION);
    let annotate =
        |text: Value| json!({"metadata": {"annotations": {"kubernetes.io/description": text}}});
    for nothing in [json!(null), json!("")] {
        cluster.patch(&place, annotate(nothing)).await.ok();
        until(&cluster, &place, |map| description(map) == DESCRIPTION).await;
    }
    // What somebody says of it instead stays, also when its data is put right.
    cluster.patch(&place, annotate(json!("ours"))).await.ok();
    cluster.patch(&place, json!({"data": {"ca.crt": "forged", "more": "x"}})).await.ok();
    let repaired = until(&cluster, &place, |map| map["data"] == made["data"]).await;
    assert_eq!(description(&repaired), "ours");
}
