//! Carries out a plan, and remembers what pods were like, so that slices say since when something has
//! been waiting for the network (T-NET-9), and what was written, so that nothing is written twice.

use super::plan::Plan;
use super::{Services, TRIGGER_TIME};
use crate::pods;
use client::{Client, DeleteOptions, Next, ObjectKey};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// When to look again if the caches do not show what was done.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Writes slices, and remembers for each Service what it has to see before it writes again: who decides by
/// old news lists endpoints twice. Upstream: `EndpointSliceTracker`.
pub(super) struct Writer<C> {
    unseen: Mutex<BTreeMap<ObjectKey, String>>,
    /// Is told what was done: `create`, `update`, `delete`.
    count: C,
}

impl<C: Fn(&'static str)> Writer<C> {
    pub(super) fn new(count: C) -> Writer<C> {
        Writer { unseen: Mutex::default(), count }
    }

    /// Whether the caches show what was written for `key`.
    pub(super) async fn has_seen(&self, services: &Services, key: &ObjectKey) -> bool {
        let Some(version) = self.unseen().get(key).cloned() else { return true };
        let seen = services.slices.caught_up_with(&version).await;
        if seen {
            self.unseen().remove(key);
        }
        seen
    }

    /// Nothing is written if there is nothing to do.
    pub(super) async fn carry_out(
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
                // It goes with its namespace (T-NET-12).
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
        // The next look must see what this one did.
        let seen = self.has_seen(services, key).await
            && services.slices.caught_up_with_deletes(&plan.delete).await;
        Ok(if seen { Next::Change } else { Next::After(LOOK_AGAIN) })
    }

    fn wrote(&self, key: &ObjectKey, slice: EndpointSlice, operation: &'static str) {
        (self.count)(operation);
        let version = slice.metadata.resource_version.unwrap_or_default();
        self.unseen().insert(key.clone(), version);
    }

    fn unseen(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, String>> {
        self.unseen.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
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

/// When the pods of each Service last became what they are. Upstream: `TriggerTimeTracker`.
#[derive(Default)]
pub(super) struct Triggers(Mutex<BTreeMap<ObjectKey, Known>>);

#[derive(Default, Clone)]
struct Known {
    created: Option<Timestamp>,
    pods: BTreeMap<String, Timestamp>,
}

impl Triggers {
    /// The earliest change that was not seen before. That a pod was deleted is none.
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
        // What pods were before there was a Service made nobody wait for it.
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

    /// NET-83: first when the Service was made, then the earliest of what changed of pods, or nothing.
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
        assert_eq!(since(&[pod("old", 1, false)]), Some(at(5)), "NET-83: the Service came");
        assert_eq!(since(&[pod("a", 10, false), pod("b", 12, false)]), Some(at(10)));
        assert_eq!(since(&[pod("a", 10, true), pod("b", 12, false)]), None, "a goes");
        assert_eq!(since(&[pod("b", 12, false)]), None, "a is gone");
        assert_eq!(since(&[pod("b", 20, false)]), Some(at(20)), "b changed");
    }
}
