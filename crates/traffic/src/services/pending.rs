//! Changes between their arrival and the transaction that applies them: for metrics, and for the version of the
//! EndpointSlices that is in force.
//!
//!     caches ──▶ PendingChanges ──take──▶ transaction ──▶ committed ──▶ durations
//!                      ▲                      │ failed
//!                      └──────────────────────┘
//!
//! Not here: what is planned and applied. That follows from the caches alone, whatever is recorded here.

use super::proxy_metrics::ProxyMetrics;
use crate::watched::SERVICE_NAME;
use client::{Cache, ObjectKey};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// When the pods or the Service changed, of which the slice is the result (NET-83).
const TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";
/// Samples per Service that wait for its next transaction. Further ones are not measured.
const SAMPLES_MAX: usize = 1000;
/// Deleted pods whose deletion timestamp has not arrived yet. Further ones are not measured.
const UNDATED_MAX: usize = 1000;
/// How long a deletion timestamp may arrive after the slice that it changed: they come through different watches.
const UNDATED_FOR: Duration = Duration::from_secs(5);

/// What waits for the next transaction of one Service.
#[derive(Debug, Default)]
pub(super) struct Pending {
    services: u64,
    endpoints: u64,
    /// When the first of these changes was received.
    since: Option<Instant>,
    /// The version of the slices before the first of these changes.
    version_before: Option<u64>,
    /// IP family (`ipv4`) and time of what caused changes of slices.
    triggers: Vec<(bool, Timestamp)>,
    left: Vec<FormerEndpoint>,
}

/// A pod that was a ready endpoint and is one no more, perhaps because it was deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FormerEndpoint {
    pod: ObjectKey,
    uid: String,
    /// On this node.
    local: bool,
}

/// Shared by the listeners of the caches and the proxy.
pub(super) struct PendingChanges {
    metrics: Arc<ProxyMetrics>,
    node: String,
    /// Causes before this time are not measured: the proxy did not run.
    started: Timestamp,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    by_service: HashMap<ObjectKey, Pending>,
    services: u64,
    endpoints: u64,
}

impl PendingChanges {
    pub(super) fn new(metrics: Arc<ProxyMetrics>, node: String) -> PendingChanges {
        PendingChanges { metrics, node, started: clock::now(), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the Services to plan.
    pub(super) fn service_changed(
        &self,
        before: Option<&Service>,
        after: Option<&Service>,
    ) -> Vec<ObjectKey> {
        let Some(key) = after.or(before).map(ObjectKey::of) else { return Vec::new() };
        let mut state = self.state();
        state.services += 1;
        let pending = state.by_service.entry(key.clone()).or_default();
        pending.services += 1;
        pending.since.get_or_insert_with(Instant::now);
        self.metrics.service_changed(state.services);
        vec![key]
    }

    /// Returns the Services to plan: the one of the slice, and the one that it belonged to before. `version` is that of all
    /// slices before this change.
    pub(super) fn slice_changed(
        &self,
        version: u64,
        before: Option<&EndpointSlice>,
        after: Option<&EndpointSlice>,
    ) -> Vec<ObjectKey> {
        let mut keys: Vec<ObjectKey> =
            [before, after].into_iter().flatten().filter_map(service_of).collect();
        keys.dedup();
        for key in &keys {
            let of_service = |slice: Option<&'_ EndpointSlice>| {
                slice.is_some_and(|slice| service_of(slice).as_ref() == Some(key))
            };
            let before = before.filter(|_| of_service(before));
            let after = after.filter(|_| of_service(after));
            if is_same(before, after) {
                continue;
            }
            let mut state = self.state();
            state.endpoints += 1;
            self.metrics.endpoints_changed(state.endpoints);
            let pending = state.by_service.entry(key.clone()).or_default();
            pending.endpoints += 1;
            pending.since.get_or_insert_with(Instant::now);
            pending.version_before.get_or_insert(version);
            match after {
                Some(after) => pending.triggers.extend(self.trigger(after)),
                // As upstream: which of them belonged to the deleted slice is not known.
                None => pending.triggers.clear(),
            }
            pending.left.extend(self.left(before, after));
            pending.triggers.truncate(SAMPLES_MAX);
            pending.left.truncate(SAMPLES_MAX);
        }
        keys
    }

    fn trigger(&self, slice: &EndpointSlice) -> Option<(bool, Timestamp)> {
        let annotations = slice.metadata.annotations.as_ref()?;
        let at: Timestamp = annotations.get(TRIGGER_TIME)?.parse().ok()?;
        (at >= self.started).then_some((slice.address_type == "IPv4", at))
    }

    /// Pods that were ready endpoints `before`, and are terminating or missing `after`.
    fn left(
        &self,
        before: Option<&EndpointSlice>,
        after: Option<&EndpointSlice>,
    ) -> Vec<FormerEndpoint> {
        let still = endpoints(after).filter(|endpoint| !is_terminating(endpoint));
        let still: HashSet<&str> = still.filter_map(uid).collect();
        let ready = |endpoint: &&Endpoint| is_ready(endpoint) && !is_terminating(endpoint);
        let gone = endpoints(before).filter(ready).filter_map(|endpoint| {
            let uid = uid(endpoint).filter(|uid| !still.contains(uid))?;
            let target = endpoint.target_ref.as_ref()?;
            Some(FormerEndpoint {
                pod: ObjectKey::new(target.namespace.as_deref()?, target.name.as_deref()?),
                uid: uid.to_owned(),
                local: endpoint.node_name.as_deref() == Some(&self.node),
            })
        });
        gone.collect()
    }

    /// The newest version of the slices of which every change is in force, if `seen` is the version that the cache had
    /// when the changes of the last transaction were taken.
    pub(super) fn committed_version(&self, seen: u64) -> u64 {
        let state = self.state();
        let waiting = state.by_service.values().filter_map(|pending| pending.version_before);
        waiting.fold(seen, u64::min)
    }

    /// What waits for these Services. Call it before planning: what arrives later waits for the next transaction.
    pub(super) fn take(&self, keys: &[ObjectKey]) -> Vec<(ObjectKey, Pending)> {
        let mut state = self.state();
        let taken = keys.iter().filter_map(|key| state.by_service.remove_entry(key));
        let taken: Vec<(ObjectKey, Pending)> = taken.collect();
        self.taken(&mut state, &taken);
        taken
    }

    pub(super) fn take_all(&self) -> Vec<(ObjectKey, Pending)> {
        let mut state = self.state();
        let taken: Vec<(ObjectKey, Pending)> = state.by_service.drain().collect();
        self.taken(&mut state, &taken);
        taken
    }

    fn taken(&self, state: &mut State, taken: &[(ObjectKey, Pending)]) {
        for (_, pending) in taken {
            state.services -= pending.services;
            state.endpoints -= pending.endpoints;
        }
        self.metrics.pending(state.services, state.endpoints);
    }

    /// After a transaction that failed.
    pub(super) fn put_back(&self, taken: Vec<(ObjectKey, Pending)>) {
        let mut state = self.state();
        for (key, earlier) in taken {
            state.services += earlier.services;
            state.endpoints += earlier.endpoints;
            let pending = state.by_service.entry(key).or_default();
            pending.services += earlier.services;
            pending.endpoints += earlier.endpoints;
            pending.since = earlier.since.or(pending.since);
            pending.version_before = earlier.version_before.or(pending.version_before);
            pending.triggers.extend(earlier.triggers);
            pending.left.extend(earlier.left);
            pending.triggers.truncate(SAMPLES_MAX);
            pending.left.truncate(SAMPLES_MAX);
        }
        self.metrics.pending(state.services, state.endpoints);
    }
}

/// The Service that the slice belongs to.
fn service_of(slice: &EndpointSlice) -> Option<ObjectKey> {
    let name = slice.metadata.labels.as_ref()?.get(SERVICE_NAME)?;
    Some(ObjectKey::new(slice.metadata.namespace.as_deref().unwrap_or_default(), name))
}

/// Nothing changed that matters to a proxy.
fn is_same(before: Option<&EndpointSlice>, after: Option<&EndpointSlice>) -> bool {
    match (before, after) {
        (Some(before), Some(after)) => {
            before.endpoints == after.endpoints && before.ports == after.ports
        }
        (before, after) => before.is_none() && after.is_none(),
    }
}

fn endpoints(slice: Option<&EndpointSlice>) -> impl Iterator<Item = &Endpoint> {
    slice.into_iter().flat_map(|slice| slice.endpoints.iter().flatten())
}

/// The pod that the endpoint stands for.
fn uid(endpoint: &Endpoint) -> Option<&str> {
    let target = endpoint.target_ref.as_ref()?;
    target.uid.as_deref().filter(|_| target.kind.as_deref() == Some("Pod"))
}

/// Missing conditions mean ready and not terminating (T-NET-13).
fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true)
}

fn is_terminating(endpoint: &Endpoint) -> bool {
    endpoint.conditions.as_ref().and_then(|conditions| conditions.terminating).unwrap_or(false)
}

/// Measures what a transaction has applied.
pub(super) struct Measured {
    metrics: Arc<ProxyMetrics>,
    pods: Cache<Pod>,
    /// Former endpoints whose pod has no deletion timestamp in the cache: when the rules were committed, and until
    /// when to wait for the timestamp.
    undated: Vec<(FormerEndpoint, Timestamp, Instant)>,
}

impl Measured {
    pub(super) fn new(metrics: Arc<ProxyMetrics>, pods: Cache<Pod>) -> Measured {
        Measured { metrics, pods, undated: Vec::new() }
    }

    /// The rules with these changes are in force since now.
    pub(super) fn committed(&mut self, taken: Vec<(ObjectKey, Pending)>) {
        let (now, wait_until) = (clock::now(), Instant::now() + UNDATED_FOR);
        for (_, pending) in taken {
            if let Some(since) = pending.since {
                self.metrics.change_applied(since.elapsed());
            }
            for (ipv4, at) in pending.triggers {
                self.metrics.programmed(ipv4, passed(at, now));
            }
            self.undated.extend(pending.left.into_iter().map(|former| (former, now, wait_until)));
        }
        self.date();
        self.undated.truncate(UNDATED_MAX);
    }

    /// Whether [`Measured::date`] should be called again soon.
    pub(super) fn has_undated(&self) -> bool {
        !self.undated.is_empty()
    }

    /// Records those deletions whose timestamp is known now. Pods that left for another reason never get one.
    pub(super) fn date(&mut self) {
        let (pods, metrics) = (&self.pods, &self.metrics);
        let now = Instant::now();
        self.undated.retain(|(former, committed, wait_until)| {
            let pod = pods.get(&former.pod);
            let pod = pod.filter(|pod| pod.metadata.uid.as_ref() == Some(&former.uid));
            let deleted = pod.as_deref().and_then(deleted_at);
            if let Some(deleted) = deleted {
                metrics.deletion_applied(former.local, passed(deleted, *committed));
            }
            deleted.is_none() && now < *wait_until
        });
    }
}

/// When the delete was requested: the deletion timestamp is the end of the grace period.
fn deleted_at(pod: &Pod) -> Option<Timestamp> {
    let end = pod.metadata.deletion_timestamp.as_ref()?.0;
    let grace = SignedDuration::from_secs(pod.metadata.deletion_grace_period_seconds.unwrap_or(0));
    end.checked_sub(grace).ok()
}

/// Zero if the clocks of two machines disagree.
fn passed(from: Timestamp, to: Timestamp) -> Duration {
    to.duration_since(from).try_into().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn changes() -> PendingChanges {
        PendingChanges::new(Arc::new(ProxyMetrics::new([true])), "n1".into())
    }

    /// A slice of the Service `s`, whose cause was `seconds` after now.
    fn slice(seconds: i64, endpoints: Value) -> EndpointSlice {
        let at = clock::now() + SignedDuration::from_secs(seconds);
        typed::from_value(json!({
            "metadata": { "namespace": "d", "name": "s-1", "labels": { SERVICE_NAME: "s" },
                          "annotations": { TRIGGER_TIME: clock::rfc3339_micros(at) } },
            "addressType": "IPv4", "endpoints": endpoints,
        }))
        .unwrap()
    }

    fn endpoint(pod: &str, ready: bool, terminating: bool) -> Value {
        json!({ "addresses": ["10.0.0.1"], "nodeName": "n1",
            "conditions": { "ready": ready, "terminating": terminating },
            "targetRef": { "kind": "Pod", "namespace": "d", "name": pod, "uid": pod } })
    }

    /// NET-64: which causes of changes are measured.
    #[test]
    fn net_64_causes_before_the_start_and_of_deleted_slices_are_not_measured() {
        let key = ObjectKey::new("d", "s");
        let triggers = |changes: &PendingChanges| {
            let taken = changes.take(std::slice::from_ref(&key));
            taken.iter().map(|(_, pending)| pending.triggers.len()).sum::<usize>()
        };
        let changes = changes();
        let (old, new) = (slice(-60, json!([])), slice(1, json!([endpoint("a", true, false)])));
        assert_eq!(changes.slice_changed(0, None, Some(&old)), std::slice::from_ref(&key));
        assert_eq!(triggers(&changes), 0, "before the start");
        changes.slice_changed(0, Some(&old), Some(&new));
        assert_eq!(triggers(&changes), 1);
        assert_eq!(triggers(&changes), 0, "each is measured once");
        changes.slice_changed(0, Some(&old), Some(&new));
        changes.slice_changed(0, Some(&new), None);
        assert_eq!(triggers(&changes), 0, "deleting a slice drops them");
        changes.slice_changed(0, Some(&new), Some(&new));
        assert!(changes.take_all().is_empty(), "nothing changed");
    }

    /// NET-74: an endpoint leaves when it starts to terminate or is missing; only ready ones had packet rules.
    #[test]
    fn net_74_only_ready_endpoints_leave() {
        for (before, after, left) in [
            ([true, false], json!([endpoint("a", false, true)]), 1),
            ([true, false], json!([]), 1),
            ([true, false], json!([endpoint("a", false, false)]), 0),
            ([true, false], json!([endpoint("b", true, false)]), 1),
            ([false, false], json!([endpoint("a", false, true)]), 0),
            ([false, true], json!([]), 0),
        ] {
            let before = slice(0, json!([endpoint("a", before[0], before[1])]));
            let found = changes().left(Some(&before), Some(&slice(0, after.clone())));
            assert_eq!(found.len(), left, "{after}");
            assert!(found.iter().all(|former| former.local && former.uid == "a"));
        }
    }

    /// NET-64: a failed transaction leaves its changes pending.
    #[test]
    fn net_64_changes_are_pending_until_their_transaction_succeeds() {
        let changes = changes();
        let counts = || {
            let state = changes.state();
            (state.services, state.endpoints)
        };
        let service = typed::from_value(json!({ "metadata": { "namespace": "d", "name": "s" } }));
        changes.service_changed(None, Some(&service.unwrap()));
        changes.slice_changed(0, None, Some(&slice(1, json!([]))));
        assert_eq!(counts(), (1, 1));
        let taken = changes.take_all();
        assert_eq!((taken.len(), counts()), (1, (0, 0)));
        let since = taken[0].1.since;
        changes.put_back(taken);
        assert_eq!(counts(), (1, 1));
        let again = changes.take(&[ObjectKey::new("d", "s")]);
        assert_eq!((again[0].1.since, again[0].1.triggers.len()), (since, 1));
    }

    #[test]
    fn a_version_is_committed_when_no_earlier_change_waits() {
        let changes = changes();
        let key = ObjectKey::new("d", "s");
        assert_eq!(changes.committed_version(9), 9, "nothing waits");
        changes.slice_changed(4, None, Some(&slice(1, json!([endpoint("a", true, false)]))));
        changes.slice_changed(7, None, Some(&slice(1, json!([endpoint("b", true, false)]))));
        assert_eq!(changes.committed_version(9), 4, "the first change waits");
        let taken = changes.take(std::slice::from_ref(&key));
        changes.slice_changed(8, None, Some(&slice(1, json!([endpoint("c", true, false)]))));
        assert_eq!(changes.committed_version(9), 8, "a later change waits");
        changes.put_back(taken);
        assert_eq!(changes.committed_version(9), 4, "the transaction failed");
        changes.take(&[key]);
        assert_eq!(changes.committed_version(9), 9);
    }
}
