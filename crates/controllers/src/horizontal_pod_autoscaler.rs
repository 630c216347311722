//! Scales workloads by the resource usage of their pods (C-131 to C-137).
//!
//!     autoscaler ──▶ scale of its target, pods, usage ──▶ plan::decide ──▶ scale ──▶ status, events
//!
//! Each autoscaler is reconciled every 15 s, because no watch reports usage. `replicas` does the arithmetic of one
//! metric, `metric` evaluates a metric, `limits` applies windows and policies. Usage comes from `metrics.k8s.io`; there
//! are no custom or external metrics, and the conditions say so.

mod limits;
mod metric;
mod plan;
mod replicas;

use crate::pods;
use crate::start::Cluster;
use api::selector::{LabelSelector, Operator};
use client::{
    ApiResource, Cache, Next, ObjectKey, PodMetrics, Queue, Recorder, Selection, reference,
    run_controller,
};
use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::api::autoscaling::v2::{HorizontalPodAutoscaler, HorizontalPodAutoscalerStatus};
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use limits::History;
use metric::Usage;
use plan::{Input, Plan, Rescale, SelectorError};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

const COMPONENT: &str = "horizontal-pod-autoscaler";
const WORKERS: usize = 5;

/// Upstream: `--horizontal-pod-autoscaler-sync-period`.
const EVERY: Duration = Duration::from_secs(15);

/// Tries to write a scale or status that others write at the same time.
const TRIES_MAX: usize = 5;

struct Controller<'a> {
    cluster: &'a Cluster,
    scalers: Cache<HorizontalPodAutoscaler>,
    recorder: Recorder,
    states: Mutex<BTreeMap<ObjectKey, ScalerState>>,
}

/// The state of an existing autoscaler.
struct ScalerState {
    history: History,
    /// The selector of its target, as text.
    selector: String,
}

pub(crate) async fn run(cluster: &Cluster) {
    let queue = Queue::new();
    let scalers = Cache::<HorizontalPodAutoscaler>::start(&cluster.client);
    // Only for changes of the spec: this controller writes the status itself.
    scalers.feed_changes(&queue, |before, after| {
        let changed = before.map(|before| &before.spec) != after.map(|after| &after.spec);
        let one = after.or(before).filter(|_| changed);
        one.map(ObjectKey::of).into_iter().collect()
    });
    scalers.synced().await;
    cluster.pods.synced().await;
    let recorder = Recorder::new(&cluster.client, COMPONENT, "");
    let controller = Controller { cluster, scalers, recorder, states: Mutex::default() };
    run_controller(COMPONENT, &queue, WORKERS, |key| controller.reconcile(key)).await;
}

impl Controller<'_> {
    async fn reconcile(&self, key: ObjectKey) -> client::Result<Next> {
        let stays = |one: &Arc<HorizontalPodAutoscaler>| one.metadata.deletion_timestamp.is_none();
        let Some(scaler) = self.scalers.get(&key).filter(stays) else {
            self.states().remove(&key);
            return Ok(Next::Change);
        };
        let on = reference(scaler.as_ref());
        let status = match self.scale(&scaler).await {
            Ok((kind, scale)) => self.evaluate(&key, &scaler, &on, &kind, scale).await,
            Err(error) => {
                self.recorder.warning(&on, "FailedGetScale", &error);
                plan::scale_unknown(scaler.status.as_ref(), &error, clock::now())
            }
        };
        if let Err(error) = self.report(&key, &scaler, status).await {
            self.recorder.warning(&on, "FailedUpdateStatus", error_text(&error));
        }
        Ok(Next::After(EVERY))
    }

    fn states(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, ScalerState>> {
        self.states.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The scale of the target, and its kind.
    async fn scale(
        &self,
        scaler: &HorizontalPodAutoscaler,
    ) -> Result<(ApiResource, Scale), String> {
        let target = &scaler.spec.scale_target_ref;
        let version = target.api_version.as_deref().unwrap_or_default();
        let group = match version.split('/').collect::<Vec<_>>()[..] {
            [_] => "",
            [group, _] => group,
            _ => return Err(format!("unexpected GroupVersion string: {version}")),
        };
        let kind = match well_known(group, &target.kind) {
            Some(kind) => kind,
            None => self.discovered(group, &target.kind).await?,
        };
        let namespace = scaler.metadata.namespace.as_deref().unwrap_or_default();
        let key = ObjectKey::new(namespace, &target.name);
        let scale =
            self.cluster.client.scale(&kind, &key).await.map_err(|error| error_text(&error))?;
        Ok((kind, scale))
    }

    async fn discovered(&self, group: &str, kind: &str) -> Result<ApiResource, String> {
        let found = self.cluster.client.discover().await.map_err(|error| error_text(&error))?;
        let mut kinds = found.kinds.into_iter().filter(|known| known.preferred);
        let known =
            kinds.find(|known| known.resource.group == group && known.resource.kind == kind);
        known
            .map(|known| known.resource)
            .ok_or_else(|| format!("no matches for kind {kind:?} in group {group:?}"))
    }

    async fn evaluate(
        &self,
        key: &ObjectKey,
        scaler: &HorizontalPodAutoscaler,
        on: &ObjectReference,
        kind: &ApiResource,
        scale: Scale,
    ) -> HorizontalPodAutoscalerStatus {
        let (current, now) = (plan::current(&scale), clock::now());
        let selector = scale.status.as_ref().and_then(|status| status.selector.clone());
        let selector = selector.unwrap_or_default();
        let mut history = {
            let mut states = self.states();
            let new_state = || ScalerState {
                history: History::starting_at(current, now),
                selector: String::new(),
            };
            let state = states.entry(key.clone()).or_insert_with(new_state);
            state.selector.clone_from(&selector);
            state.history.clone()
        };
        let pods = self.pods(key, &selector);
        let usage = match needs_usage(scaler) && pods.is_ok() {
            true => self.usage(key.namespace(), &selector).await,
            false => Ok(Vec::new()),
        };
        let input = Input { scaler, scale: &scale, pods, usage, now };

        let Plan { rescale, mut status, warnings } = plan::decide(&input, &mut history);

        for (reason, message) in warnings {
            self.recorder.warning(on, reason, message);
        }
        if let Some(Rescale { from, to, reason }) = rescale {
            match self.rescale(key.namespace(), kind, scale, to).await {
                Ok(()) => {
                    let message = format!("New size: {to}; reason: {reason}");
                    self.recorder.normal(on, "SuccessfulRescale", message);
                    history.scaled(from, to, now);
                    plan::rescaled(&mut status, to, now);
                }
                Err(error) => {
                    let error = error_text(&error);
                    let message = format!("New size: {to}; reason: {reason}; error: {error}");
                    self.recorder.warning(on, "FailedRescale", message);
                    plan::refused(&mut status, scaler.status.as_ref(), &error, now);
                }
            }
        }
        if let Some(state) = self.states().get_mut(key) {
            state.history = history;
        }
        status
    }

    /// The pods of the target's selector. An error if another autoscaler selects some of them too.
    fn pods(&self, key: &ObjectKey, selector: &str) -> Result<Vec<Arc<Pod>>, SelectorError> {
        if selector.is_empty() {
            return Err(SelectorError {
                event: "SelectorRequired",
                reason: "InvalidSelector",
                message: "the HPA target's scale is missing a selector".to_owned(),
                error: "selector is required".to_owned(),
            });
        }
        let parsed = LabelSelector::parse(selector).map_err(|error| {
            let error = format!(
                "couldn't convert selector into a corresponding internal selector object: {error}"
            );
            SelectorError {
                event: "InvalidSelector",
                reason: "InvalidSelector",
                message: error.clone(),
                error,
            }
        })?;
        let pods = self.selected(key.namespace(), &parsed);
        let states = self.states();
        let near = states.iter().filter(|(other, _)| other.namespace() == key.namespace());
        let selecting = selecting(near.map(|(key, state)| (key, state.selector.as_str())), &pods);
        if selecting.len() > 1 {
            let error = format!(
                "pods by selector {selector} are controlled by multiple HPAs: [{}]",
                selecting.join(" ")
            );
            let (event, reason) = ("AmbiguousSelector", "AmbiguousSelector");
            return Err(SelectorError { event, reason, message: error.clone(), error });
        }
        Ok(pods)
    }

    fn selected(&self, namespace: &str, selector: &LabelSelector) -> Vec<Arc<Pod>> {
        let all = &self.cluster.pods;
        let exact = selector.requirements().iter().filter(|one| {
            use Operator::{DoubleEquals, Equals, In};
            one.values.len() == 1 && matches!(one.operator, Equals | DoubleEquals | In)
        });
        let exact = exact.map(|one| pods::label(namespace, &one.key, &one.values[0]));
        let mut found = match exact.min_by_key(|label| all.count(pods::BY_LABEL, label)) {
            Some(rarest) => all.by_index(pods::BY_LABEL, &rarest),
            None => all.in_namespace(namespace),
        };
        found.retain(|pod| matches(selector, pod));
        found
    }

    async fn usage(&self, namespace: &str, selector: &str) -> Usage {
        let which = Selection::namespace(namespace).labels(selector);
        self.cluster.client.list::<PodMetrics>(&which).await.map_err(|error| error_text(&error))
    }

    /// Writes the scale; retries on conflicts (C-137).
    async fn rescale(
        &self,
        namespace: &str,
        kind: &ApiResource,
        mut scale: Scale,
        to: i32,
    ) -> client::Result<()> {
        let name = scale.metadata.name.clone().unwrap_or_default();
        let key = ObjectKey::new(namespace, &name);
        let mut tries = 1;
        loop {
            scale.spec.get_or_insert_default().replicas = Some(to);
            match self.cluster.client.replace_scale(kind, &key, &scale).await {
                Err(error) if error.is_conflict() && tries < TRIES_MAX => tries += 1,
                done => return done.map(drop),
            }
            scale = self.cluster.client.scale(kind, &key).await?;
        }
    }

    /// Writes the status. On a conflict another client has changed the rest of the object.
    async fn report(
        &self,
        key: &ObjectKey,
        scaler: &HorizontalPodAutoscaler,
        status: HorizontalPodAutoscalerStatus,
    ) -> client::Result<()> {
        let client = &self.cluster.client;
        let mut tries = 1;
        let mut written = client.update_status(scaler, &status).await;
        while let Err(error) = &written
            && error.is_conflict()
            && tries < TRIES_MAX
        {
            let Some(newest) = client.find::<HorizontalPodAutoscaler>(key).await? else {
                return Ok(());
            };
            tries += 1;
            written = client.update_status(&newest, &status).await;
        }
        match written {
            Err(error) if error.is_not_found() => Ok(()),
            written => written,
        }
    }
}

/// Common kinds that need no discovery.
fn well_known(group: &str, kind: &str) -> Option<ApiResource> {
    let (version, plural) = match (group, kind) {
        ("apps", "Deployment") => ("v1", "deployments"),
        ("apps", "ReplicaSet") => ("v1", "replicasets"),
        ("apps", "StatefulSet") => ("v1", "statefulsets"),
        ("", "ReplicationController") => ("v1", "replicationcontrollers"),
        _ => return None,
    };
    let api_version =
        if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    Some(ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version,
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    })
}

/// The autoscalers whose targets select any of these pods, as Go prints them.
fn selecting<'a>(
    targets: impl Iterator<Item = (&'a ObjectKey, &'a str)>,
    pods: &[Arc<Pod>],
) -> Vec<String> {
    let selecting = targets.filter(|(_, selector)| {
        let parsed = LabelSelector::parse(selector).ok().filter(|_| !selector.is_empty());
        parsed.is_some_and(|selector| pods.iter().any(|pod| matches(&selector, pod)))
    });
    selecting.map(|(key, _)| format!("{{{} {}}}", key.name(), key.namespace())).collect()
}

fn needs_usage(scaler: &HorizontalPodAutoscaler) -> bool {
    let mut metrics = scaler.spec.metrics.iter().flatten();
    metrics.any(|metric| matches!(metric.type_.as_str(), "Resource" | "ContainerResource"))
}

fn matches(selector: &LabelSelector, pod: &Pod) -> bool {
    let labels = pod.metadata.labels.as_ref();
    selector.matches(|key| labels?.get(key).map(String::as_str))
}

/// The server's own message if it answered, as in upstream.
fn error_text(error: &client::Error) -> String {
    error.status().map_or_else(|| error.to_string(), |status| status.message.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// C-136: the reason is AmbiguousSelector.
    #[test]
    fn c_136_autoscalers_of_the_same_pods_are_detected() {
        let pod = json!({ "metadata": { "labels": { "app": "web", "tier": "front" } } });
        let pods = [Arc::new(typed::from_value::<Pod>(pod).unwrap())];
        let keys = ["a", "b", "c", "d"].map(|name| ObjectKey::new("n", name));
        let targets = ["app=web", "tier in (front)", "app=other", ""];
        let found = selecting(keys.iter().zip(targets), &pods);
        assert_eq!(found, ["{a n}", "{b n}"]);
    }

    /// C-137: the scale is written and an event recorded.
    #[test]
    fn c_137_common_kinds_need_no_discovery() {
        for (group, kind, version) in [
            ("apps", "Deployment", "apps/v1"),
            ("apps", "StatefulSet", "apps/v1"),
            ("apps", "ReplicaSet", "apps/v1"),
            ("", "ReplicationController", "v1"),
        ] {
            assert_eq!(well_known(group, kind).unwrap().api_version, version, "{kind}");
        }
        assert_eq!(well_known("example.com", "Deployment"), None);
    }
}
