//! Creates the namespaces that every cluster needs (T-CTRL-51). The server does not allow deleting three of them.

use crate::start::Cluster;
use client::{Cache, Next, ObjectKey, Queue, run_controller};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

const NAMES: [&str; 4] = ["kube-system", "kube-public", "kube-node-lease", "default"];

pub(crate) async fn run(cluster: &Cluster, namespaces: Cache<Namespace>) {
    let queue = Queue::new();
    namespaces.feed(&queue, |namespace| {
        let name = namespace.metadata.name.as_deref();
        NAMES.iter().filter(|known| name == Some(**known)).map(|n| ObjectKey::cluster(n)).collect()
    });
    namespaces.synced().await;
    NAMES.iter().for_each(|name| queue.add(ObjectKey::cluster(name)));
    run_controller("system-namespaces", &queue, 1, |key| async {
        let key: ObjectKey = key;
        if namespaces.get(&key).is_some() {
            return Ok(Next::Change);
        }
        let metadata = ObjectMeta { name: Some(key.name().to_owned()), ..ObjectMeta::default() };
        let namespace = Namespace { metadata, ..Namespace::default() };
        match cluster.client.create(&namespace).await {
            Err(error) if error.is_already_exists() => Ok(Next::Change),
            created => created.map(|_| Next::Change),
        }
    })
    .await;
}
