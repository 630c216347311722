//! Mirror pods: the node creates one in the API for each static pod and replaces it when the
//! manifest changes (N-25, T-NODE-89 to 91).

use super::{CONFIG_HASH, CONFIG_MIRROR, annotation};
use client::{Client, DeleteOptions, ObjectKey};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MirrorPlan {
    /// The existing mirror is of another pod, or is being deleted.
    pub(crate) delete: bool,
    pub(crate) create: bool,
}

/// What to do about the mirror of a static pod. `node` is the Node object, if known: without it, or
/// while it is being deleted, a mirror has no owner and is not created.
pub(crate) fn mirror_plan(pod: &Pod, mirror: Option<&Pod>, node: Option<&Node>) -> MirrorPlan {
    let delete = mirror.is_some_and(|mirror| {
        mirror.metadata.deletion_timestamp.is_some() || !is_mirror_of(mirror, pod)
    });
    let owned = node.is_some_and(|node| node.metadata.deletion_timestamp.is_none());
    MirrorPlan { delete, create: owned && (mirror.is_none() || delete) }
}

fn is_mirror_of(mirror: &Pod, pod: &Pod) -> bool {
    mirror.metadata.name == pod.metadata.name
        && mirror.metadata.namespace == pod.metadata.namespace
        && annotation(mirror, CONFIG_MIRROR).is_some()
        && annotation(mirror, CONFIG_MIRROR) == annotation(pod, CONFIG_HASH)
}

/// Creates, replaces or keeps the mirror. Returns the mirror that exists now, if known.
pub(crate) async fn reconcile_mirror(
    client: &Client,
    pod: &Pod,
    mirror: Option<&Pod>,
    node: Option<&Node>,
) -> client::Result<Option<Pod>> {
    let plan = mirror_plan(pod, mirror, node);
    if let Some(mirror) = mirror.filter(|_| plan.delete) {
        delete_mirror(client, mirror).await?;
    }
    let Some(node) = node.filter(|_| plan.create) else {
        return Ok(mirror.filter(|_| !plan.delete).cloned());
    };
    let new = mirror_of(pod, node);
    match client.create(&new).await {
        Err(error) if error.is_already_exists() => {
            let existing: Option<Pod> = client.find(&ObjectKey::of(pod)).await?;
            match existing {
                Some(existing) if is_mirror_of(&existing, pod) => Ok(Some(existing)),
                // The mirror of an older manifest, from before this agent started: the next pass knows it.
                _ => Err(error),
            }
        }
        created => created.map(Some),
    }
}

/// Deletes exactly this mirror, without a grace period. Idempotent.
pub(crate) async fn delete_mirror(client: &Client, mirror: &Pod) -> client::Result<()> {
    let options = DeleteOptions::only(mirror).grace(0);
    match client.delete::<Pod>(&ObjectKey::of(mirror), &options).await {
        Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
        _ => Ok(()),
    }
}

fn mirror_of(pod: &Pod, node: &Node) -> Pod {
    let mut mirror = pod.clone();
    let hash = annotation(pod, CONFIG_HASH).unwrap_or_default().to_owned();
    mirror.metadata.uid = None;
    mirror.metadata.annotations.get_or_insert_default().insert(CONFIG_MIRROR.to_owned(), hash);
    mirror.metadata.owner_references = Some(vec![OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.metadata.name.clone().unwrap_or_default(),
        uid: node.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: None,
    }]);
    mirror.status = None;
    mirror
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(annotations: Value) -> Pod {
        typed::from_value(json!({ "metadata": {
            "name": "web-n", "namespace": "default", "uid": "u", "annotations": annotations } }))
        .unwrap()
    }

    fn node() -> Node {
        typed::from_value(json!({ "metadata": { "name": "n", "uid": "nu" } })).unwrap()
    }

    #[test]
    fn n_25_a_mirror_is_created_kept_or_replaced() {
        let own = pod(json!({ "kubernetes.io/config.hash": "h1" }));
        let good = pod(json!({ "kubernetes.io/config.mirror": "h1" }));
        let old = pod(json!({ "kubernetes.io/config.mirror": "h0" }));
        let stranger = pod(json!({}));
        let terminating = {
            let mut terminating = good.clone();
            terminating.metadata.deletion_timestamp =
                serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
            terminating
        };
        let node = node();
        let deleted_node = {
            let mut deleted_node = node.clone();
            deleted_node.metadata.deletion_timestamp =
                serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
            deleted_node
        };
        let rows = [
            (None, Some(&node), (false, true)),
            (Some(&good), Some(&node), (false, false)),
            (Some(&old), Some(&node), (true, true)),
            (Some(&terminating), Some(&node), (true, true)),
            (Some(&stranger), Some(&node), (true, true)),
            (None, None, (false, false)),
            (None, Some(&deleted_node), (false, false)),
            (Some(&old), None, (true, false)),
        ];
        for (mirror, node, (delete, create)) in rows {
            let plan = mirror_plan(&own, mirror, node);
            assert_eq!(plan, MirrorPlan { delete, create }, "{mirror:?} {node:?}");
        }
    }

    #[test]
    fn n_25_the_owner_of_a_mirror_is_the_node() {
        let mirror = mirror_of(&pod(json!({ "kubernetes.io/config.hash": "h1" })), &node());
        assert_eq!(mirror.metadata.annotations.unwrap()["kubernetes.io/config.mirror"], "h1");
        let owner = &mirror.metadata.owner_references.unwrap()[0];
        assert_eq!(
            (owner.kind.as_str(), owner.name.as_str(), owner.uid.as_str()),
            ("Node", "n", "nu")
        );
        assert_eq!(owner.controller, Some(true));
    }

    #[tokio::test]
    async fn n_25_t_node_91_a_mirror_is_created_in_the_api_and_replaced_when_its_pod_changes() {
        let server = testbed::TestServer::start().await;
        let client = server.admin();
        let node: Node = client
            .create(&typed::from_value(json!({ "metadata": { "name": "n" } })).unwrap())
            .await
            .unwrap();
        let pod = |hash: &str| -> Pod {
            typed::from_value(json!({
                "metadata": { "name": "web-n", "namespace": "default", "uid": hash, "annotations": {
                    "kubernetes.io/config.hash": hash, "kubernetes.io/config.source": "file" } },
                "spec": { "nodeName": "n", "containers": [{ "name": "c", "image": "i" }] },
            }))
            .unwrap()
        };
        let first =
            reconcile_mirror(&client, &pod("h1"), None, Some(&node)).await.unwrap().unwrap();
        assert_ne!(first.metadata.uid.as_deref(), Some("h1"));
        // The mirror exists but the caller does not know it: it is used.
        let again =
            reconcile_mirror(&client, &pod("h1"), None, Some(&node)).await.unwrap().unwrap();
        assert_eq!(again.metadata.uid, first.metadata.uid);
        let second =
            reconcile_mirror(&client, &pod("h2"), Some(&first), Some(&node)).await.unwrap();
        assert_ne!(second.as_ref().unwrap().metadata.uid, first.metadata.uid);
        let existing: Pod = client.get(&ObjectKey::new("default", "web-n")).await.unwrap();
        assert_eq!(annotation(&existing, CONFIG_MIRROR), Some("h2"));
        delete_mirror(&client, &first).await.unwrap();
        assert!(client.find::<Pod>(&ObjectKey::of(&existing)).await.unwrap().is_some());
        delete_mirror(&client, &existing).await.unwrap();
        assert!(client.find::<Pod>(&ObjectKey::of(&existing)).await.unwrap().is_none());
        server.stop().await;
    }
}
