//! Deletes the content of a namespace, pods first, and counts what remains.

use crate::start::Cluster;
use client::{
    ApiResource, DeleteOptions, Discovery, ObjectKey, PartialObject, Propagation, Selection,
    ServedKind,
};
use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use std::collections::BTreeMap;
use std::time::Duration;

/// Kinds that are deleted concurrently.
const CONCURRENT_MAX: usize = 8;

/// Estimated time for finalizers. Upstream: `finalizerEstimateSeconds`.
const FINALIZERS_ESTIMATE: u64 = 15;

/// What remains after deleting everything that can be deleted.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Found {
    /// `plural.group` and how many of them remain.
    pub(super) remaining: BTreeMap<String, usize>,
    /// Finalizers, and how many of the remaining objects each holds.
    pub(super) finalizers: BTreeMap<String, usize>,
    /// Groups that do not respond.
    pub(super) unavailable: Vec<String>,
    pub(super) errors: Vec<String>,
    /// Estimated seconds until the slowest object is gone.
    pub(super) estimate: u64,
    /// The kinds of the remaining objects.
    pub(super) held: Vec<ServedKind>,
}

impl Found {
    /// There were no errors.
    pub(super) fn is_clear(&self) -> bool {
        self.unavailable.is_empty() && self.errors.is_empty()
    }

    pub(super) fn why(&self) -> String {
        let unavailable =
            self.unavailable.iter().map(|group| format!("API group {group} does not respond"));
        unavailable.chain(self.errors.iter().cloned()).collect::<Vec<_>>().join(", ")
    }

    pub(super) fn pods_remain(&self) -> bool {
        self.remaining.contains_key("pods.")
    }

    pub(super) fn remains(&self) -> bool {
        self.estimate > 0 || !self.remaining.is_empty()
    }

    /// When to check again, if anything remains (T-CTRL-54).
    pub(super) fn check_again_in(&self) -> Option<Duration> {
        self.remains().then(|| Duration::from_secs(self.estimate / 2 + 1))
    }

    /// Adds the remaining objects of one kind.
    fn add(&mut self, namespace: &str, kind: &ApiResource, left: Left) {
        if left.count == 0 {
            return;
        }
        self.remaining.insert(format!("{}.{}", kind.plural, kind.group), left.count);
        let held = !left.finalizers.is_empty();
        for (finalizer, count) in left.finalizers {
            *self.finalizers.entry(finalizer).or_default() += count;
        }
        match left.grace {
            0 if held => self.estimate = self.estimate.max(FINALIZERS_ESTIMATE),
            0 => self.errors.push(format!(
                "unexpected items still remain in namespace: {namespace} for gvr: {}/{}, Resource={}",
                kind.group, kind.version, kind.plural
            )),
            grace => self.estimate = self.estimate.max(grace),
        }
    }
}

/// The remaining objects of one kind.
#[derive(Debug, Default)]
struct Left {
    count: usize,
    finalizers: BTreeMap<String, usize>,
    /// The longest grace period of any of them.
    grace: u64,
}

impl Left {
    fn of(remains: Vec<PartialObject>, grace: u64) -> Left {
        let mut left = Left { count: remains.len(), grace, ..Left::default() };
        for finalizer in remains.into_iter().flat_map(|object| object.metadata.finalizers).flatten()
        {
            *left.finalizers.entry(finalizer).or_default() += 1;
        }
        left
    }
}

pub(super) async fn clear(cluster: &Cluster, namespace: &str) -> client::Result<Found> {
    let Discovery { kinds, unavailable } = cluster.client.discover().await?;
    let mut found = Found { unavailable, ..Found::default() };
    let deletable =
        |kind: &ServedKind| kind.preferred && kind.namespaced && kind.supports("delete");
    let (pods, rest): (Vec<_>, Vec<_>) = kinds.into_iter().filter(deletable).partition(is_pods);
    for kinds in [pods, rest] {
        clear_kinds(cluster, namespace, kinds, &mut found).await;
        // Delete nothing else before the last pod is gone.
        if found.pods_remain() || !found.errors.is_empty() {
            break;
        }
    }
    found.errors.sort();
    Ok(found)
}

/// As [`clear`], for the kinds of which objects remained. Returns an empty result after errors.
pub(super) async fn clear_held(cluster: &Cluster, namespace: &str, held: Vec<ServedKind>) -> Found {
    let mut found = Found::default();
    clear_kinds(cluster, namespace, held, &mut found).await;
    if found.errors.is_empty() { found } else { Found::default() }
}

async fn clear_kinds(
    cluster: &Cluster,
    namespace: &str,
    kinds: Vec<ServedKind>,
    found: &mut Found,
) {
    for batch in kinds.chunks(CONCURRENT_MAX) {
        let cleared = batch.iter().map(|kind| clear_kind(cluster, namespace, kind));
        for (kind, left) in batch.iter().zip(join_all(cleared).await) {
            match left {
                Ok(left) => {
                    found.held.extend((left.count > 0).then(|| kind.clone()));
                    found.add(namespace, &kind.resource, left);
                }
                // Its CustomResourceDefinition was deleted meanwhile, together with its objects.
                Err(error) if error.is_not_served() => {}
                Err(error) => found.errors.push(error_text(&error)),
            }
        }
    }
}

fn is_pods(kind: &ServedKind) -> bool {
    kind.resource.group.is_empty() && kind.resource.plural == "pods"
}

async fn clear_kind(cluster: &Cluster, namespace: &str, kind: &ServedKind) -> client::Result<Left> {
    if !kind.supports("list") {
        return Ok(Left::default());
    }
    let all = Selection::namespace(namespace);
    let there = cluster.client.list_partial(&kind.resource, &all).await?;
    if there.is_empty() {
        return Ok(Left::default());
    }
    let grace = if is_pods(kind) { longest_grace(cluster, namespace) } else { 0 };
    let background = DeleteOptions::default().propagation(Propagation::Background);
    if there.iter().all(|object| object.metadata.deletion_timestamp.is_some()) {
        return Ok(Left::of(there, grace)); // All are being deleted already.
    }
    if kind.supports("deletecollection") {
        cluster.client.delete_collection(&kind.resource, &all, &background).await?;
    } else {
        for object in &there {
            let key = ObjectKey::of(object);
            let gone = cluster.client.delete_of::<PartialObject>(&kind.resource, &key, &background);
            match gone.await {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => (),
            }
        }
    }
    let remains = cluster.client.list_partial(&kind.resource, &all).await?;
    Ok(Left::of(remains, grace))
}

/// The longest grace period of a pod that is not terminal. Upstream: `estimateGracefulTerminationForPods`.
fn longest_grace(cluster: &Cluster, namespace: &str) -> u64 {
    let pods = cluster.pods.in_namespace(namespace);
    pods.iter().map(|pod| grace(pod)).max().unwrap_or_default()
}

fn grace(pod: &Pod) -> u64 {
    if lifecycle::status::is_terminal_pod(pod) {
        return 0;
    }
    let grace = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
    grace.unwrap_or_default().try_into().unwrap_or_default()
}

/// The server's own message if it answered.
fn error_text(error: &client::Error) -> String {
    error.status().map_or_else(|| error.to_string(), |status| status.message.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(group: &str, plural: &str) -> ApiResource {
        ApiResource {
            group: group.into(),
            version: "v1".into(),
            api_version: String::new(),
            kind: String::new(),
            plural: plural.into(),
        }
    }

    #[test]
    fn t_ctrl_54_the_next_check_is_after_half_of_the_estimate() {
        let held = || BTreeMap::from([("f".to_owned(), 1)]);
        let cases = [
            ("nothing remains", vec![], None, ""),
            ("pods", vec![("pods", Left { count: 2, grace: 30, ..Left::default() })], Some(16), ""),
            (
                "a finalizer",
                vec![("as", Left { count: 1, finalizers: held(), grace: 0 })],
                Some(8),
                "",
            ),
            (
                "the slower of two",
                vec![
                    ("as", Left { count: 1, finalizers: held(), grace: 0 }),
                    ("pods", Left { count: 1, finalizers: held(), grace: 5 }),
                ],
                Some(8),
                "",
            ),
            (
                "remains without a finalizer",
                vec![("as", Left { count: 1, ..Left::default() })],
                Some(1),
                "unexpected items still remain in namespace: ns for gvr: /v1, Resource=as",
            ),
        ];
        for (what, left, seconds, why) in cases {
            let mut found = Found::default();
            for (plural, left) in left {
                found.add("ns", &kind("", plural), left);
            }
            assert_eq!(found.check_again_in(), seconds.map(Duration::from_secs), "{what}");
            assert_eq!(found.why(), why, "{what}");
            assert_eq!(found.is_clear(), why.is_empty(), "{what}");
        }
    }
}
