//! Watches the workload's pods and the Service's endpoints during a run, and notes when what happened.
//!
//! Every event of the watch is noted with the time of its arrival, because some states of a pod last only milliseconds.

use crate::error::Result;
use crate::pod_timeline::{Observed, PodTimeline};
use client::{Cache, Client, ObjectKey, Queue, Selection};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use lifecycle::timeline::TerminationRecord;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Reasons for which a container waits that do not go away by themselves.
const STUCK_REASONS: &[&str] = &[
    "ErrImagePull",
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "InvalidImageName",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "CrashLoopBackOff",
];
/// How long records may take to be complete after their pods are gone.
const RECORDS_MAX: Duration = Duration::from_secs(5);
const RECORDS_POLL: Duration = Duration::from_millis(200);
/// Pods that one drill remembers.
const PODS_MAX: usize = 10_000;
/// Changes of endpoints that one drill remembers.
const ENDPOINT_CHANGES_MAX: usize = 100_000;

/// What was seen so far.
#[derive(Default)]
struct Seen {
    /// The first list is complete: what appears now is new.
    live: bool,
    pods: BTreeMap<String, Observed>,
    /// Why a pod cannot start, and since when.
    stuck: BTreeMap<String, (Instant, String)>,
    slices: BTreeMap<String, usize>,
    ready: Vec<(Timestamp, usize)>,
}

pub(crate) struct Observer {
    client: Client,
    namespace: String,
    container: String,
    seen: Arc<Mutex<Seen>>,
    pods: Cache<Pod>,
    _slices: Option<Cache<EndpointSlice>>,
}

impl Observer {
    pub(crate) async fn start(
        client: &Client,
        namespace: &str,
        selector: &str,
        container: &str,
        service: Option<&str>,
    ) -> Observer {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let nothing = Queue::<ObjectKey>::new();
        let pods = Cache::<Pod>::builder(client)
            .select(Selection::namespace(namespace).labels(selector))
            .start();
        let (notes, name) = (seen.clone(), container.to_owned());
        // The queue gets no keys: this is the one way to see every single change.
        pods.feed_changes(&nothing, move |before, after| {
            locked(&notes).pod_changed(before, after, &name);
            Vec::new()
        });
        pods.synced().await;
        let slices = service.map(|service| {
            let label = format!("kubernetes.io/service-name={service}");
            let which = Selection::namespace(namespace).labels(&label);
            let slices = Cache::<EndpointSlice>::builder(client).select(which).start();
            let notes = seen.clone();
            slices.feed_changes(&nothing, move |before, after| {
                locked(&notes).slice_changed(before, after);
                Vec::new()
            });
            slices
        });
        locked(&seen).live = true;
        Observer {
            client: client.clone(),
            namespace: namespace.to_owned(),
            container: container.to_owned(),
            seen,
            pods,
            _slices: slices,
        }
    }

    /// Pods that terminate or are too many: how far the workload is from its wanted number.
    pub(crate) fn unsettled(&self, replicas: i32) -> usize {
        let pods = self.pods.list();
        let terminating =
            pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some()).count();
        let surplus = pods.len().saturating_sub(usize::try_from(replicas).unwrap_or(0));
        terminating.max(surplus)
    }

    /// Why a pod has not started for at least this long.
    pub(crate) fn stuck(&self, at_least: Duration) -> Option<String> {
        let seen = locked(&self.seen);
        let long = seen.stuck.values().find(|(since, _)| since.elapsed() >= at_least);
        long.map(|(_, why)| why.clone())
    }

    /// Timelines of the pods that changed since `origin`. `pre_stop` is the sleep of the measured values.
    pub(crate) async fn timelines(
        &self,
        origin: Timestamp,
        pre_stop: u32,
    ) -> Result<Vec<PodTimeline>> {
        let records = self.records(origin).await?;
        let seen = locked(&self.seen);
        let changed = |pod: &&Observed| {
            [pod.created, pod.ready, pod.deleted, pod.removed]
                .into_iter()
                .flatten()
                .any(|at| at >= origin)
        };
        let build = |pod: &Observed| {
            let record = records.get(&pod.uid);
            PodTimeline::build(pod, record, &self.container, pre_stop, origin)
        };
        let mut all: Vec<_> = seen.pods.values().filter(changed).map(build).collect();
        let begins = |pod: &PodTimeline| pod.marks.first().map_or(f64::INFINITY, |mark| mark.at);
        all.sort_by(|a, b| begins(a).total_cmp(&begins(b)).then(a.name.cmp(&b.name)));
        Ok(all)
    }

    /// Termination records by UID; none if the cluster has no such kind. Waits for records that are not complete.
    async fn records(&self, origin: Timestamp) -> Result<BTreeMap<String, TerminationRecord>> {
        let deadline = Instant::now() + RECORDS_MAX;
        loop {
            let which = Selection::namespace(&self.namespace);
            let listed = match self.client.list::<TerminationRecord>(&which).await {
                Ok(listed) => listed,
                Err(error) if error.is_not_served() || error.is_forbidden() => {
                    return Ok(BTreeMap::new());
                }
                Err(error) => return Err(error.into()),
            };
            let records: BTreeMap<_, _> =
                listed.into_iter().map(|record| (record.pod.uid.clone(), record)).collect();
            let complete = locked(&self.seen)
                .pods
                .values()
                .filter(|pod| pod.removed.is_some_and(|at| at >= origin))
                .all(|pod| records.get(&pod.uid).is_some_and(|record| record.ended.is_some()));
            if complete || Instant::now() >= deadline {
                return Ok(records);
            }
            tokio::time::sleep(RECORDS_POLL).await;
        }
    }

    /// The number of ready endpoints over time, since `origin`.
    pub(crate) fn ready_endpoints(&self, origin: Timestamp) -> Vec<(f64, usize)> {
        let since = |at: Timestamp| at.duration_since(origin).as_secs_f64();
        locked(&self.seen).ready.iter().map(|(at, count)| (since(*at), *count)).collect()
    }
}

fn locked(seen: &Mutex<Seen>) -> std::sync::MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Seen {
    fn pod_changed(&mut self, before: Option<&Pod>, after: Option<&Pod>, container: &str) {
        let now = clock::now();
        let Some(pod) = after.or(before) else { return };
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        if self.pods.len() >= PODS_MAX && !self.pods.contains_key(&uid) {
            return;
        }
        let live = self.live;
        let entry = self.pods.entry(uid.clone()).or_insert_with(|| Observed {
            name: pod.metadata.name.clone().unwrap_or_default(),
            uid: uid.clone(),
            created: live.then_some(now),
            ..Observed::default()
        });
        if after.is_none() {
            entry.removed = Some(now);
            self.stuck.remove(&uid);
            return;
        }
        let spec = pod.spec.as_ref();
        entry.node = spec.and_then(|spec| spec.node_name.clone()).unwrap_or_default();
        let status = pod.status.as_ref();
        if entry.ready.is_none() && entry.created.is_some() && status.is_some_and(is_ready) {
            entry.ready = Some(now);
        }
        let deleting = pod.metadata.deletion_timestamp.is_some();
        if deleting && entry.deleted.is_none() {
            entry.deleted = Some(now);
        }
        if deleting && entry.exited.is_none() {
            entry.exited =
                status.and_then(|status| exit_code(status, container)).map(|code| (now, code));
        }
        match why_stuck(pod).filter(|_| !deleting) {
            Some(why) => {
                let since = self.stuck.get(&uid).map_or_else(Instant::now, |(since, _)| *since);
                self.stuck.insert(uid, (since, why));
            }
            None => drop(self.stuck.remove(&uid)),
        }
    }

    fn slice_changed(&mut self, before: Option<&EndpointSlice>, after: Option<&EndpointSlice>) {
        let Some(slice) = after.or(before) else { return };
        let name = slice.metadata.name.clone().unwrap_or_default();
        match after {
            Some(slice) => drop(self.slices.insert(name, ready_in(slice))),
            None => drop(self.slices.remove(&name)),
        }
        let total = self.slices.values().sum();
        let same = self.ready.last().is_some_and(|(_, count)| *count == total);
        if !same && self.ready.len() < ENDPOINT_CHANGES_MAX {
            self.ready.push((clock::now(), total));
        }
    }
}

/// Endpoints that proxies may use: ready ones, and terminating ones that still serve, which are used if no other is left.
pub(crate) fn ready_in(slice: &EndpointSlice) -> usize {
    let usable = |conditions: &k8s_openapi::api::discovery::v1::EndpointConditions| {
        conditions.ready.unwrap_or(true) || conditions.serving == Some(true)
    };
    let endpoints = slice.endpoints.iter().flatten();
    endpoints.filter(|one| one.conditions.as_ref().is_none_or(usable)).count()
}

fn is_ready(status: &PodStatus) -> bool {
    let conditions = status.conditions.as_deref().unwrap_or_default();
    conditions.iter().any(|one| one.type_ == "Ready" && one.status == "True")
}

fn exit_code(status: &PodStatus, container: &str) -> Option<i32> {
    let statuses = status.container_statuses.as_deref().unwrap_or_default();
    let found = statuses.iter().find(|one| one.name == container)?;
    Some(found.state.as_ref()?.terminated.as_ref()?.exit_code)
}

/// Why this pod does not start.
fn why_stuck(pod: &Pod) -> Option<String> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let status = pod.status.as_ref()?;
    let unschedulable =
        status.conditions.as_deref().unwrap_or_default().iter().find(|one| {
            one.type_ == "PodScheduled" && one.reason.as_deref() == Some("Unschedulable")
        });
    if let Some(condition) = unschedulable {
        let message = condition.message.as_deref().unwrap_or_default();
        return Some(format!("pod {name} cannot be scheduled: {message}"));
    }
    let all = [&status.init_container_statuses, &status.container_statuses];
    let waiting = all.into_iter().flatten().flatten().filter_map(|one| {
        let waiting = one.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.as_deref()?;
        STUCK_REASONS.contains(&reason).then_some((&one.name, reason, waiting.message.as_deref()))
    });
    waiting.into_iter().next().map(|(container, reason, message)| {
        let message = message.map(|text| format!(": {text}")).unwrap_or_default();
        format!("container {container} of pod {name} waits with {reason}{message}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(deleting: bool, status: Value) -> Pod {
        let mut pod = json!({"metadata": {"name": "web-1", "uid": "u"}, "status": status});
        if deleting {
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        serde_json::from_value(pod).unwrap()
    }

    fn running() -> Value {
        json!({"conditions": [{"type": "Ready", "status": "True"}]})
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_time_of_each_state_is_kept() {
        clock::simulate("2026-01-01T00:00:00Z".parse().unwrap(), 1);
        let step = || tokio::time::sleep(Duration::from_secs(1));
        let mut seen = Seen { live: true, ..Seen::default() };
        let start = clock::now();
        let (new, ready) = (pod(false, json!({})), pod(false, running()));
        let deleted = pod(true, running());
        let exit = json!({"containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": false,
            "restartCount": 0, "state": {"terminated": {"exitCode": 137}}}]});
        let exited = pod(true, exit);
        seen.pod_changed(None, Some(&new), "c");
        for (before, after) in [
            (Some(&new), Some(&ready)),
            (Some(&ready), Some(&deleted)),
            (Some(&deleted), Some(&deleted)),
            (Some(&deleted), Some(&exited)),
            (Some(&exited), None),
        ] {
            step().await;
            seen.pod_changed(before, after, "c");
        }
        let after = |seconds| Some(start + jiff::SignedDuration::from_secs(seconds));
        let observed = &seen.pods["u"];
        assert_eq!(observed.created, after(0));
        assert_eq!(observed.ready, after(1));
        assert_eq!(observed.deleted, after(2));
        assert_eq!(observed.exited, after(4).map(|at| (at, 137)));
        assert_eq!(observed.removed, after(5));
        clock::stop_simulating();
    }

    #[test]
    fn pods_that_cannot_start_say_why() {
        let waiting = |reason: &str| {
            pod(
                false,
                json!({"containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": false,
                "restartCount": 0, "state": {"waiting": {"reason": reason, "message": "no such image"}}}]}),
            )
        };
        let why = why_stuck(&waiting("ImagePullBackOff")).unwrap();
        assert_eq!(why, "container c of pod web-1 waits with ImagePullBackOff: no such image");
        assert_eq!(why_stuck(&waiting("ContainerCreating")), None);
        let unschedulable = pod(
            false,
            json!({"conditions": [{"type": "PodScheduled", "status": "False",
            "reason": "Unschedulable", "message": "0/1 nodes"}]}),
        );
        assert!(why_stuck(&unschedulable).unwrap().contains("cannot be scheduled: 0/1 nodes"));
    }

    #[test]
    fn terminating_endpoints_count_while_they_serve() {
        let slice: EndpointSlice = serde_json::from_value(json!({"addressType": "IPv4", "endpoints": [
            {"addresses": ["a"], "conditions": {"ready": true}},
            {"addresses": ["b"], "conditions": {"ready": false, "serving": true, "terminating": true}},
            {"addresses": ["c"], "conditions": {"ready": false, "serving": false}},
            {"addresses": ["d"]}]})).unwrap();
        assert_eq!(ready_in(&slice), 3);
    }
}
