//! Ownership: finds an owner's objects, adopts orphans, and releases objects that no longer match (C-1…C-5).
//!
//! Objects are found by the UID of their controller, orphans by a label that the owner's selector requires. So the
//! cost of a reconcile does not grow with the number of objects in a namespace.

use super::{PendingWrites, Workload, is_being_deleted, is_outdated, uid};
use api::selector::{LabelSelector, Operator};
use client::{Cache, Client, Error, ObjectKey, Queue};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::{Value, json};
use std::sync::Arc;

/// Index of objects without a controller, by namespace and by label.
pub(crate) const ORPHANS: &str = "orphans";

/// Index of owners, by the key under which [`ORPHANS`] has the objects that their selector may match.
pub(crate) const OWNERS_BY_ORPHANS: &str = "selects";

/// The reference that makes `owner` the controller (C-1).
pub(crate) fn owner_reference<O: Workload>(owner: &O) -> OwnerReference {
    OwnerReference {
        api_version: O::API_VERSION.to_owned(),
        kind: O::KIND.to_owned(),
        name: super::name(owner).to_owned(),
        uid: uid(owner).to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

pub(crate) fn controller_ref<K: Workload>(object: &K) -> Option<&OwnerReference> {
    let owners = object.metadata().owner_references.as_deref().unwrap_or_default();
    owners.iter().find(|owner| owner.controller == Some(true))
}

pub(crate) fn is_controlled_by<K: Workload, O: Workload>(object: &K, owner: &O) -> bool {
    controller_ref(object).is_some_and(|reference| reference.uid == uid(owner))
}

/// The keys of an object in [`ORPHANS`].
pub(crate) fn orphan_keys<K: Workload>(object: &K) -> Vec<String> {
    if controller_ref(object).is_some() || is_being_deleted(object) {
        return Vec::new();
    }
    let namespace = super::namespace(object);
    let labels = object.metadata().labels.iter().flatten();
    let labels = labels.map(|(key, value)| format!("{namespace}/{key}={value}"));
    std::iter::once(namespace.to_owned()).chain(labels).collect()
}

/// The key of an owner in [`OWNERS_BY_ORPHANS`]: one label that the selector requires, or the namespace.
pub(crate) fn orphan_index_key(namespace: &str, selector: &LabelSelector) -> String {
    let demanded = selector.requirements().iter().find_map(|requirement| {
        let one = matches!(requirement.operator, Operator::Equals | Operator::In);
        match requirement.values.as_slice() {
            [value] if one => Some(format!("{namespace}/{}={value}", requirement.key)),
            _ => None,
        }
    });
    demanded.unwrap_or_else(|| namespace.to_owned())
}

/// Objects without a controller that `selector` may match.
fn orphans<K: Workload>(
    cache: &Cache<K>,
    namespace: &str,
    selector: &LabelSelector,
) -> Vec<Arc<K>> {
    cache.by_index(ORPHANS, &orphan_index_key(namespace, selector))
}

/// The objects that `owner` controls, and the orphans that its selector may match: the candidates for [`claim`].
pub(crate) fn owned_and_orphans<O: Workload, K: Workload>(
    cache: &Cache<K>,
    owner: &O,
    selector: &LabelSelector,
) -> Vec<Arc<K>> {
    let mut found = cache.controlled_by_uid(uid(owner));
    found.extend(orphans(cache, super::namespace(owner), selector));
    found
}

/// The owners to reconcile when `object` changes: its controller, by name and UID (C-5), or the owners that might
/// adopt it.
pub(crate) fn owner_keys<O: Workload, K: Workload>(
    owners: &Cache<O>,
    object: &K,
) -> Vec<ObjectKey> {
    match controller_ref(object) {
        Some(owner) if owner.kind == O::KIND && owner.api_version == O::API_VERSION => {
            let key = ObjectKey::new(super::namespace(object), &owner.name);
            let is_it = owners.get(&key).is_some_and(|found| uid(found.as_ref()) == owner.uid);
            is_it.then_some(key).into_iter().collect()
        }
        Some(_) => Vec::new(),
        None => {
            let found = orphan_keys(object).into_iter();
            let found = found.flat_map(|place| owners.by_index(OWNERS_BY_ORPHANS, &place));
            found.map(|owner| ObjectKey::of(owner.as_ref())).collect()
        }
    }
}

/// Queues the owners of pods when a change affects them.
pub(crate) fn feed_pods<O: Workload>(
    pods: &Cache<Pod>,
    owners: &Cache<O>,
    queue: &Queue<ObjectKey>,
) {
    let owners = owners.clone();
    pods.feed_changes(queue, move |before, after| match (before, after) {
        (Some(before), Some(after)) if is_same_for_owner(before, after) => Vec::new(),
        _ => {
            [before, after].into_iter().flatten().flat_map(|pod| owner_keys(&owners, pod)).collect()
        }
    });
}

/// Whether two versions of a pod are the same for its owner. Most status updates of a node are.
fn is_same_for_owner(before: &Pod, after: &Pod) -> bool {
    let node = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    let ready = |pod: &Pod| {
        let ready = super::condition(pod, "Ready");
        ready.map(|ready| (ready.status.clone(), ready.last_transition_time.clone()))
    };
    before.metadata.uid == after.metadata.uid
        && before.metadata.labels == after.metadata.labels
        && before.metadata.owner_references == after.metadata.owner_references
        && is_being_deleted(before) == is_being_deleted(after)
        && super::phase(before) == super::phase(after)
        && node(before) == node(after)
        && ready(before) == ready(after)
}

pub(crate) fn matches<K: Workload>(selector: &LabelSelector, object: &K) -> bool {
    selector.matches(|key| super::label(object, key))
}

/// Which candidates the owner keeps, adopts and releases.
#[derive(Debug)]
struct Claims<K> {
    kept: Vec<Arc<K>>,
    adopt: Vec<Arc<K>>,
    release: Vec<Arc<K>>,
}

fn decide<O: Workload, K: Workload>(
    owner: &O,
    selector: &LabelSelector,
    candidates: Vec<Arc<K>>,
) -> Claims<K> {
    let mut claims = Claims { kept: Vec::new(), adopt: Vec::new(), release: Vec::new() };
    for object in candidates {
        let fits = matches(selector, object.as_ref());
        match controller_ref(object.as_ref()) {
            Some(reference) if reference.uid != uid(owner) => (),
            Some(_) if fits => claims.kept.push(object),
            Some(_) if is_being_deleted(owner) => (),
            Some(_) => claims.release.push(object),
            None if fits && !is_being_deleted(owner) && !is_being_deleted(object.as_ref()) => {
                claims.adopt.push(object);
            }
            None => (),
        }
    }
    claims
}

/// Adopts and releases candidates, and returns those that the owner controls then. `finalizer` is added and removed
/// with the ownership (C-6).
pub(crate) async fn claim<O: Workload, K: Workload>(
    client: &Client,
    writes: &PendingWrites<K>,
    owner: &O,
    selector: &LabelSelector,
    finalizer: Option<&str>,
    candidates: Vec<Arc<K>>,
) -> client::Result<Vec<Arc<K>>> {
    let Claims { mut kept, adopt, release } = decide(owner, selector, candidates);
    let key = ObjectKey::of(owner);
    for object in release {
        let patch = release_patch(owner, object.as_ref(), finalizer);
        match client.patch_strategic::<K>(&ObjectKey::of(object.as_ref()), &patch).await {
            Ok(released) => writes.wrote(&key, &released),
            // The object is gone, or the owner is no longer its controller.
            Err(error) if error.is_not_found() || error.is_invalid() => (),
            Err(error) => return Err(error),
        }
    }
    if adopt.is_empty() || !may_adopt(client, owner).await? {
        return Ok(kept);
    }
    for object in adopt {
        let patch = adopt_patch(owner, object.as_ref(), finalizer);
        match client.patch_strategic::<K>(&ObjectKey::of(object.as_ref()), &patch).await {
            Ok(adopted) => {
                writes.wrote(&key, &adopted);
                kept.push(Arc::new(adopted));
            }
            Err(error) if is_outdated(&error) => (),
            Err(error) => return Err(error),
        }
    }
    Ok(kept)
}

/// Asks the server, because the cache may not know yet that the owner is being deleted (C-3).
async fn may_adopt<O: Workload>(client: &Client, owner: &O) -> Result<bool, Error> {
    let live = client.find::<O>(&ObjectKey::of(owner)).await?;
    Ok(live.is_some_and(|live| uid(&live) == uid(owner) && !is_being_deleted(&live)))
}

fn adopt_patch<O: Workload, K: Workload>(owner: &O, object: &K, finalizer: Option<&str>) -> Value {
    let mut patch = json!({ "metadata": {
        "uid": uid(object),
        "ownerReferences": [owner_reference(owner)],
    }});
    if let Some(finalizer) = finalizer {
        patch["metadata"]["finalizers"] = json!([finalizer]);
    }
    patch
}

fn release_patch<O: Workload, K: Workload>(
    owner: &O,
    object: &K,
    finalizer: Option<&str>,
) -> Value {
    let mut patch = json!({ "metadata": {
        "uid": uid(object),
        "ownerReferences": [{ "$patch": "delete", "uid": uid(owner) }],
    }});
    if let Some(finalizer) = finalizer {
        patch["metadata"]["$deleteFromPrimitiveList/finalizers"] = json!([finalizer]);
    }
    patch
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::test_cluster::{self, TestCluster};
    use k8s_openapi::api::apps::v1::ReplicaSet;

    fn set(deleted: bool) -> ReplicaSet {
        let at = deleted.then_some("2026-01-01T00:00:00Z");
        let meta = json!({ "namespace": "a", "name": "s", "uid": "u", "deletionTimestamp": at });
        typed::from_value(json!({ "metadata": meta })).unwrap()
    }

    fn pod(app: &str, owner: Option<&str>, deleted: bool) -> Arc<Pod> {
        let at = deleted.then_some("2026-01-01T00:00:00Z");
        let owners = owner.map(|uid| {
            json!([{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "s", "uid": uid,
                     "controller": true }])
        });
        let meta = json!({ "namespace": "a", "name": "p", "uid": "p", "labels": { "app": app },
                           "ownerReferences": owners, "deletionTimestamp": at });
        Arc::new(typed::from_value(json!({ "metadata": meta })).unwrap())
    }

    #[test]
    fn c_13_only_relevant_changes_of_a_pod_queue_its_owner() {
        let pod = |more: Value| -> Pod {
            let mut pod = json!({
                "metadata": { "name": "p", "uid": "u", "labels": { "app": "web" } },
                "spec": { "containers": [], "nodeName": "n" },
                "status": { "phase": "Running", "conditions": [
                    { "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" }] },
            });
            for (path, value) in more.as_object().into_iter().flatten() {
                *pod.pointer_mut(path).unwrap() = value.clone();
            }
            typed::from_value(pod).unwrap()
        };
        let ready = |status: &str, at: &str| json!([{ "type": "Ready", "status": status, "lastTransitionTime": at }]);
        let start = "2026-01-01T00:00:00Z";
        let mut terminating = pod(json!({}));
        terminating.metadata.deletion_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(start.parse().unwrap()));
        let mut owned = pod(json!({}));
        owned.metadata.owner_references = Some(vec![owner_reference(&set(false))]);
        let mut reported = pod(json!({}));
        reported.metadata.resource_version = Some("9".into());
        reported.metadata.annotations = Some([("a".to_owned(), "b".to_owned())].into());
        reported.status.as_mut().unwrap().container_statuses = Some(Vec::new());
        let cases = [
            ("container statuses of a node", reported, true),
            ("another phase", pod(json!({ "/status/phase": "Failed" })), false),
            ("not ready", pod(json!({ "/status/conditions": ready("False", start) })), false),
            (
                "ready again",
                pod(json!({ "/status/conditions": ready("True", "2026-01-01T00:00:01Z") })),
                false,
            ),
            ("relabelled", pod(json!({ "/metadata/labels": { "app": "db" } })), false),
            ("bound", pod(json!({ "/spec/nodeName": "m" })), false),
            ("another of that name", pod(json!({ "/metadata/uid": "v" })), false),
            ("being deleted", terminating, false),
            ("owned", owned, false),
        ];
        for (what, after, alike) in cases {
            assert_eq!(is_same_for_owner(&pod(json!({})), &after), alike, "{what}");
        }
    }

    /// C-24: an owner that is being deleted keeps its pods, and neither adopts nor releases.
    #[test]
    fn c_2_c_4_c_5_matching_orphans_are_adopted_and_others_released() {
        let selector = LabelSelector::parse("app=web").unwrap();
        let cases = [
            ("ours", false, pod("web", Some("u"), false), "kept"),
            ("ours and terminating", false, pod("web", Some("u"), true), "kept"),
            ("ours, owner being deleted", true, pod("web", Some("u"), false), "kept"),
            ("relabelled", false, pod("db", Some("u"), false), "release"),
            ("relabelled, owner being deleted", true, pod("db", Some("u"), false), "left"),
            ("another's", false, pod("web", Some("v"), false), "left"),
            ("orphan", false, pod("web", None, false), "adopt"),
            ("terminating orphan", false, pod("web", None, true), "left"),
            ("orphan with other labels", false, pod("db", None, false), "left"),
            ("orphan, owner being deleted", true, pod("web", None, false), "left"),
        ];
        for (what, owner_deleted, pod, expected) in cases {
            let claims = decide(&set(owner_deleted), &selector, vec![pod]);
            let found = match (&claims.kept[..], &claims.adopt[..], &claims.release[..]) {
                ([_], [], []) => "kept",
                ([], [_], []) => "adopt",
                ([], [], [_]) => "release",
                _ => "left",
            };
            assert_eq!(found, expected, "{what}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn c_3_an_owner_deleted_meanwhile_adopts_nothing() {
        let cluster = TestCluster::start().await;
        let orphan: Arc<Pod> =
            Arc::new(cluster.create(test_cluster::pod("default", "p", "web")).await);
        let writes = PendingWrites::new(&Cache::start(&cluster.client));
        let selector = LabelSelector::parse("app=web").unwrap();
        let adopts = async |owner: &ReplicaSet| {
            let candidates = vec![orphan.clone()];
            let claimed = claim(&cluster.client, &writes, owner, &selector, None, candidates).await;
            claimed.unwrap().len() == 1
        };
        // The owners passed here are as in a cache that does not have their deletion yet.
        let gone: ReplicaSet = cluster.create(test_cluster::replica_set("gone", json!([]))).await;
        cluster.delete(&gone).await;
        assert!(!adopts(&gone).await, "gone");
        cluster.create::<ReplicaSet>(test_cluster::replica_set("gone", json!([]))).await;
        assert!(!adopts(&gone).await, "replaced by another of the same name");
        let held = test_cluster::replica_set("held", json!(["example.com/hold"]));
        let terminating: ReplicaSet = cluster.create(held).await;
        cluster.delete(&terminating).await;
        assert!(!adopts(&terminating).await, "being deleted");
        let live: Pod = cluster.client.get(&ObjectKey::of(orphan.as_ref())).await.unwrap();
        assert_eq!(live.metadata.owner_references, None);
        let lives: ReplicaSet = cluster.create(test_cluster::replica_set("lives", json!([]))).await;
        assert!(adopts(&lives).await);
        cluster.stop().await;
    }

    #[test]
    fn owner_and_matching_orphan_share_an_index_key() {
        let orphan = pod("web", None, false);
        for text in ["app=web", "app in (web)", "app in (web, db)", "app"] {
            let place = orphan_index_key("a", &LabelSelector::parse(text).unwrap());
            assert!(orphan_keys(orphan.as_ref()).contains(&place), "{text}: {place}");
        }
    }
}
