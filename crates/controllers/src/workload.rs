//! Code that all workload controllers share: ownership, pod states, creating and deleting pods, and waiting until
//! the caches have the controller's own writes.

mod deletion_order;
pub(crate) mod history;
mod owners;
mod pending_writes;
mod pod_control;
mod pods;
mod template;
#[cfg(test)]
pub(crate) mod test_cluster;

pub(crate) use deletion_order::{Candidate, sort_for_deletion, sort_for_job_deletion};
pub(crate) use owners::{
    ORPHANS, OWNERS_BY_ORPHANS, claim, controller_ref, feed_pods, is_controlled_by,
    orphan_index_key, orphan_keys, owned_and_orphans, owner_keys, owner_reference,
};
pub(crate) use pending_writes::PendingWrites;
pub(crate) use pod_control::{PodControl, error_message, from_template};
pub(crate) use pods::{
    available_at, condition, is_active, is_available, is_ready, is_terminal_pod, is_terminating,
    next_availability, phase, ready_since,
};
pub(crate) use template::{HASH_LABEL, hash, same_template};

use client::{Cache, Client, Error};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use std::time::Duration;

/// At most this many creates or deletes in one reconcile. Upstream: `BurstReplicas`.
pub(crate) const BURST: usize = 500;

/// When to reconcile again if a cache still lags behind our own writes, or a write found the object changed.
pub(crate) const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Objects with ordinary metadata, of a kind that is known at compile time.
pub(crate) trait Workload:
    client::Object<DynamicType = ()> + k8s_openapi::Metadata<Ty = ObjectMeta>
{
}

impl<K> Workload for K where
    K: client::Object<DynamicType = ()> + k8s_openapi::Metadata<Ty = ObjectMeta>
{
}

/// Converts a selector. One that cannot be parsed selects nothing.
pub(crate) fn selector(selector: &LabelSelector) -> api::selector::LabelSelector {
    let value = serde_json::to_value(selector).unwrap_or_default();
    let read = api::selector::LabelSelector::from_object;
    read(&value).or_else(|_| read(&serde_json::Value::Null)).unwrap_or_default()
}

/// The cache of revisions that StatefulSets and DaemonSets share.
pub(crate) fn revisions(client: &Client) -> Cache<ControllerRevision> {
    Cache::builder(client).index(ORPHANS, orphan_keys).start()
}

pub(crate) fn uid<K: Workload>(object: &K) -> &str {
    object.metadata().uid.as_deref().unwrap_or_default()
}

pub(crate) fn name<K: Workload>(object: &K) -> &str {
    object.metadata().name.as_deref().unwrap_or_default()
}

pub(crate) fn namespace<K: Workload>(object: &K) -> &str {
    object.metadata().namespace.as_deref().unwrap_or_default()
}

pub(crate) fn label<'a, K: Workload>(object: &'a K, key: &str) -> Option<&'a str> {
    object.metadata().labels.as_ref()?.get(key).map(String::as_str)
}

pub(crate) fn annotation<'a, K: Workload>(object: &'a K, key: &str) -> Option<&'a str> {
    object.metadata().annotations.as_ref()?.get(key).map(String::as_str)
}

pub(crate) fn is_being_deleted<K: Workload>(object: &K) -> bool {
    object.metadata().deletion_timestamp.is_some()
}

/// Whether a write found the object changed or gone. That is not an error: the watch brings the new version, and
/// usually with it the next reconcile.
pub(crate) fn is_outdated(error: &Error) -> bool {
    error.is_conflict() || error.is_not_found()
}

/// `None` for zero, for counters that the API omits when they are zero (C-18).
pub(crate) fn some_count(count: i32) -> Option<i32> {
    (count != 0).then_some(count)
}

/// Converts a count to the type of the API.
pub(crate) fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
