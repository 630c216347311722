//! Deletes what is in a namespace, pods first, and counts what remains.

use crate::start::Cluster;
use client::{
    ApiResource, DeleteOptions, Discovery, ObjectKey, Outline, Propagation, Selection, ServedKind,
};
use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use std::collections::BTreeMap;
use std::time::Duration;

/// Kinds that are worked on at once.
const CONCURRENT_MAX: usize = 8;

/// How long finalizers are given. Upstream: `finalizerEstimateSeconds`.
const FINALIZERS_TAKE: u64 = 15;

/// What was found after everything that could be deleted was.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Found {
    /// `plural.group` and how many of them remain.
    pub(super) remaining: BTreeMap<String, usize>,
    /// Finalizers, and how many of the remaining objects each holds.
    pub(super) finalizers: BTreeMap<String, usize>,
    /// Groups that could not be asked.
    pub(super) silent: Vec<String>,
    /// What went wrong.
    pub(super) errors: Vec<String>,
    /// How long the slowest may take.
    pub(super) estimate: u64,
    /// The kinds of what remains.
    pub(super) held: Vec<ServedKind>,
}

impl Found {
    /// Nothing that should have worked did not.
    pub(super) fn is_clear(&self) -> bool {
        self.silent.is_empty() && self.errors.is_empty()
    }

    pub(super) fn why(&self) -> String {
        let silent = self.silent.iter().map(|group| format!("{group} does not answer"));
        silent.chain(self.errors.iter().cloned()).collect::<Vec<_>>().join(", ")
    }

    pub(super) fn pods_remain(&self) -> bool {
        self.remaining.contains_key("pods.")
    }

    pub(super) fn remains(&self) -> bool {
        self.estimate > 0 || !self.remaining.is_empty()
    }

    /// When to look again, if anything remains (T-CTRL-54).
    pub(super) fn look_again(&self) -> Option<Duration> {
        self.remains().then(|| Duration::from_secs(self.estimate / 2 + 1))
    }

    /// Takes note of what remains of one kind after its deletion was asked for.
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
            0 if held => self.estimate = self.estimate.max(FINALIZERS_TAKE),
            0 => self.errors.push(format!(
                "unexpected items still remain in namespace: {namespace} for gvr: {}/{}, Resource={}",
                kind.group, kind.version, kind.plural
            )),
            grace => self.estimate = self.estimate.max(grace),
        }
    }
}

/// What is left of one kind.
#[derive(Debug, Default)]
struct Left {
    count: usize,
    finalizers: BTreeMap<String, usize>,
    /// The longest that any of it may take to end by itself.
    grace: u64,
}

impl Left {
    fn of(remains: Vec<Outline>, grace: u64) -> Left {
        let mut left = Left { count: remains.len(), grace, ..Left::default() };
        for finalizer in remains.into_iter().flat_map(|object| object.metadata.finalizers).flatten()
        {
            *left.finalizers.entry(finalizer).or_default() += 1;
        }
        left
    }
}

pub(super) async fn clear(cluster: &Cluster, namespace: &str) -> client::Result<Found> {
    let Discovery { kinds, silent } = cluster.client.discover().await?;
    let mut found = Found { silent, ..Found::default() };
    let deletable = |kind: &ServedKind| kind.preferred && kind.namespaced && kind.can("delete");
    let (pods, rest): (Vec<_>, Vec<_>) = kinds.into_iter().filter(deletable).partition(is_pods);
    for kinds in [pods, rest] {
        clear_kinds(cluster, namespace, kinds, &mut found).await;
        // Nothing else before the last pod is gone.
        if found.pods_remain() || !found.errors.is_empty() {
            break;
        }
    }
    found.errors.sort();
    Ok(found)
}

/// As [`clear`], when all but these kinds was found to be gone. If nothing remains nothing is said.
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
                Err(error) => found.errors.push(said(&error)),
            }
        }
    }
}

fn is_pods(kind: &ServedKind) -> bool {
    kind.resource.group.is_empty() && kind.resource.plural == "pods"
}

async fn clear_kind(cluster: &Cluster, namespace: &str, kind: &ServedKind) -> client::Result<Left> {
    if !kind.can("list") {
        return Ok(Left::default());
    }
    let all = Selection::namespace(namespace);
    let there = cluster.client.outlines(&kind.resource, &all).await?;
    if there.is_empty() {
        return Ok(Left::default());
    }
    let grace = if is_pods(kind) { longest_grace(cluster, namespace) } else { 0 };
    let background = DeleteOptions::default().propagation(Propagation::Background);
    if there.iter().all(|object| object.metadata.deletion_timestamp.is_some()) {
        return Ok(Left::of(there, grace)); // It is on its way, or somebody holds it.
    }
    if kind.can("deletecollection") {
        cluster.client.delete_collection(&kind.resource, &all, &background).await?;
    } else {
        for object in &there {
            let key = ObjectKey::of(object);
            let gone = cluster.client.delete_of::<Outline>(&kind.resource, &key, &background);
            match gone.await {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => (),
            }
        }
    }
    let remains = cluster.client.outlines(&kind.resource, &all).await?;
    Ok(Left::of(remains, grace))
}

/// The longest grace of a pod that still has to end. Upstream: `estimateGracefulTerminationForPods`.
fn longest_grace(cluster: &Cluster, namespace: &str) -> u64 {
    let pods = cluster.pods.in_namespace(namespace);
    pods.iter().map(|pod| grace(pod)).max().unwrap_or_default()
}

fn grace(pod: &Pod) -> u64 {
    if pod.status.as_ref().is_some_and(lifecycle::status::is_terminal) {
        return 0;
    }
    let grace = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
    grace.unwrap_or_default().try_into().unwrap_or_default()
}

/// What the server said, as far as it was the server.
fn said(error: &client::Error) -> String {
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
    fn t_ctrl_54_the_next_look_is_after_half_of_what_the_slowest_may_take() {
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
                "nobody holds it and it is there",
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
            assert_eq!(found.look_again(), seconds.map(Duration::from_secs), "{what}");
            assert_eq!(found.why(), why, "{what}");
            assert_eq!(found.is_clear(), why.is_empty(), "{what}");
        }
    }
}
