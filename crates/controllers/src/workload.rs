//! What all controllers of workloads share: who owns what, what a pod counts as, making and deleting
//! pods, and seeing one's own writes.

pub(crate) mod history;
mod owners;
mod pod_control;
mod pods;
mod template;
#[cfg(test)]
pub(crate) mod testbed;
mod victims;
mod writes;

pub(crate) use owners::{
    ORPHANS, SELECTS, claim, controller_ref, feed_pods, is_controlled_by, orphan_keys, orphans,
    owner_keys, owner_reference, selects,
};
pub(crate) use pod_control::{PodControl, from_template, why};
pub(crate) use pods::{
    available_at, condition, is_active, is_available, is_ready, is_terminal, is_terminating,
    next_availability, phase, ready_since,
};
pub(crate) use template::{HASH_LABEL, hash, same_template};
pub(crate) use victims::{Ranked, rank_for_removal, rank_victims};
pub(crate) use writes::Writes;

use client::{Cache, Client, Error};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};

/// Not more than this many creates or deletes in one reconcile. Upstream: `BurstReplicas`.
pub(crate) const BURST: usize = 500;

/// Objects with ordinary metadata, of a kind that is known when this is compiled.
pub(crate) trait Workload:
    client::Object<DynamicType = ()> + k8s_openapi::Metadata<Ty = ObjectMeta>
{
}

impl<K> Workload for K where
    K: client::Object<DynamicType = ()> + k8s_openapi::Metadata<Ty = ObjectMeta>
{
}

/// A selector as the API has it. One that cannot be read selects nothing.
pub(crate) fn selector(selector: &LabelSelector) -> api::selector::LabelSelector {
    let value = serde_json::to_value(selector).unwrap_or_default();
    let read = api::selector::LabelSelector::from_object;
    read(&value).or_else(|_| read(&serde_json::Value::Null)).unwrap_or_default()
}

/// Revisions, as all that keep a history share them.
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

pub(crate) fn is_deleted<K: Workload>(object: &K) -> bool {
    object.metadata().deletion_timestamp.is_some()
}

/// Whether a write found the object changed or gone. What it is now comes by the watch, and mostly with
/// it the next look; so this is no error.
pub(crate) fn is_outdated(error: &Error) -> bool {
    error.is_conflict() || error.is_not_found()
}

/// `None` for zero: counters that the API leaves out when there is nothing to count (C-18).
pub(crate) fn some_count(count: i32) -> Option<i32> {
    (count != 0).then_some(count)
}

/// As many as there are; more than fit is more than can be.
pub(crate) fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
