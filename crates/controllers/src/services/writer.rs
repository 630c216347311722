//! Performs the writes of a plan, and tracks the times of pod changes for the trigger-time annotation (T-NET-9) and the
//! writes that the cache does not have yet.

use super::plan::Plan;
use super::{Services, TRIGGER_TIME};
use crate::pods;
use crate::workload;
use client::{Client, DeleteOptions, Next, ObjectKey};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// Writes slices. A Service is reconciled again only when the cache has its last writes, because a stale cache
/// would lead to duplicate endpoints. Upstream: `EndpointSliceTracker`.
pub(super) struct Writer<C> {
    uncached: Mutex<BTreeMap<ObjectKey, String>>,
    /// Called for every write with `create`, `update` or `delete`.
    count: C,
}

impl<C: Fn(&'static str)> Writer<C> {
    pub(super) fn new(count: C) -> Writer<C> {
        Writer { uncached: Mutex::default(), count }
    }

    /// Waits until the cache has the writes for `key`. False if that takes too long.
    pub(super) async fn are_cached(&self, services: &Services, key: &ObjectKey) -> bool {
        let Some(version) = self.uncached().get(key).cloned() else { return true };
        let cached = services.slices.caught_up_with(&version).await;
        if cached {
            self.uncached().remove(key);
        }
        cached
    }

    pub(super) async fn perform(
        &self,
        client: &Client,
        services: &Services,
        key: &ObjectKey,
        plan: Plan,
        trigger: Option<Timestamp>,
    ) -> client::Result<Next> {
        for mut slice in plan.create {
            stamp(&mut slice, trigger);
            match client.create(&slice).await {
                // The Service is deleted with its namespace (T-NET-12).
                Err(error) if error.is_namespace_terminating() => return Ok(Next::Change),
                created => self.wrote(key, created?, "create"),
            }
        }
        for mut slice in plan.update {
            stamp(&mut slice, trigger);
            self.wrote(key, client.update(&slice).await?, "update");
        }
        for slice in &plan.delete {
            let key = ObjectKey::of(slice.as_ref());
            match client.delete::<EndpointSlice>(&key, &DeleteOptions::only(slice.as_ref())).await {
                Err(error) if !error.is_not_found() && !error.is_conflict() => return Err(error),
                Err(_) => (),
                Ok(_) => (self.count)("delete"),
            }
        }
        // The next reconcile must have these writes in the cache.
        let cached = self.are_cached(services, key).await
            && services.slices.caught_up_with_deletes(&plan.delete).await;
        Ok(if cached { Next::Change } else { Next::After(workload::RETRY_DELAY) })
    }

    fn wrote(&self, key: &ObjectKey, slice: EndpointSlice, operation: &'static str) {
        (self.count)(operation);
        let version = slice.metadata.resource_version.unwrap_or_default();
        self.uncached().insert(key.clone(), version);
    }

    fn uncached(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, String>> {
        self.uncached.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn stamp(slice: &mut EndpointSlice, trigger: Option<Timestamp>) {
    let annotations = slice.metadata.annotations.get_or_insert_default();
    match trigger {
        Some(time) => annotations.insert(TRIGGER_TIME.to_owned(), clock::rfc3339(time)),
        None => annotations.remove(TRIGGER_TIME),
    };
    slice.metadata.annotations.take_if(|annotations| annotations.is_empty());
}

/// The times of the last changes of each Service's pods. Upstream: `TriggerTimeTracker`.
#[derive(Default)]
pub(super) struct Triggers(Mutex<BTreeMap<ObjectKey, Known>>);

#[derive(Default, Clone)]
struct Known {
    created: Option<Timestamp>,
    pods: BTreeMap<String, Timestamp>,
}

impl Triggers {
    /// The earliest change since the last call. Deleted pods do not count.
    pub(super) fn since(
        &self,
        key: &ObjectKey,
        service: &Service,
        pods: &[Arc<Pod>],
    ) -> Option<Timestamp> {
        let mut all = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let is_new = !all.contains_key(key);
        let before = all.entry(key.clone()).or_default();
        let mut changed: Vec<Timestamp> = Vec::new();
        let mut now = Known::default();
        for pod in pods {
            let ready = pods::condition(pod, "Ready");
            let Some(time) = ready.and_then(|c| Some(c.last_transition_time.as_ref()?.0)) else {
                continue;
            };
            let name = pod.metadata.name.clone().unwrap_or_default();
            changed.extend(before.pods.get(&name).is_none_or(|old| time > *old).then_some(time));
            now.pods.insert(name, time);
        }
        now.created = service.metadata.creation_timestamp.as_ref().map(|time| time.0);
        changed.extend(now.created.filter(|time| before.created.is_none_or(|old| *time > old)));
        *before = now;
        // Changes of pods before the Service existed do not count.
        if is_new { before.created } else { changed.into_iter().min() }
    }

    pub(super) fn forget(&self, key: &ObjectKey) {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// NET-83: first the creation of the Service, then the earliest change of its pods, or nothing.
    #[test]
    fn net_83_t_net_9_a_deletion_is_no_trigger() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let service: Service = typed::from_value(
            json!({ "metadata": { "name": "web", "creationTimestamp": at(5).to_string() } }),
        )
        .unwrap();
        let pod = |name: &str, ready: i64, deleted: bool| -> Arc<Pod> {
            let pod = json!({
                "metadata": { "name": name, "deletionTimestamp": deleted.then(|| at(99).to_string()) },
                "status": { "conditions": [{ "type": "Ready", "status": "True",
                                             "lastTransitionTime": at(ready).to_string() }] },
            });
            Arc::new(typed::from_value(pod).unwrap())
        };
        let (triggers, key) = (Triggers::default(), ObjectKey::new("default", "web"));
        let since = |pods: &[Arc<Pod>]| triggers.since(&key, &service, pods);
        assert_eq!(since(&[pod("old", 1, false)]), Some(at(5)), "NET-83: the Service is new");
        assert_eq!(since(&[pod("a", 10, false), pod("b", 12, false)]), Some(at(10)));
        assert_eq!(since(&[pod("a", 10, true), pod("b", 12, false)]), None, "a is terminating");
        assert_eq!(since(&[pod("b", 12, false)]), None, "a is deleted");
        assert_eq!(since(&[pod("b", 20, false)]), Some(at(20)), "b changed");
    }
}
