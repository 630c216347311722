//! Performs decisions: binds pods, reports why a pod is unschedulable, and deletes preempted pods. Each action runs in
//! its own task and returns its result to the scheduling loop.

mod volumes;

use crate::filters::VolumeChoice;
use crate::pod::PodInfo;
use crate::preempt::REASON;
use client::{Cache, Client, DeleteOptions, Error, Recorder, reference};
use futures::future::join_all;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, PodCondition};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Maximum number of concurrent requests. Even a thousand pods per second need only a few.
const REQUESTS_MAX: usize = 128;

const SCHEDULED: &str = "PodScheduled";

/// Tries to write a condition while other clients update the pod.
const REPORT_TRIES_MAX: usize = 3;

/// The result of an action.
#[derive(Debug)]
pub(crate) enum ActionResult {
    Bound {
        pod: Arc<PodInfo>,
        volumes: VolumeChoice,
    },
    /// Binding failed, with the message for users unless the pod is gone.
    NotBound {
        pod: Arc<PodInfo>,
        volumes: VolumeChoice,
        why: Option<String>,
    },
    /// Deleting victims failed: the pod must be tried again.
    PreemptionFailed {
        pod: Arc<PodInfo>,
    },
    NothingToDo,
}

#[derive(Clone)]
pub(crate) struct Actions {
    pub(crate) client: Client,
    pub(crate) recorder: Recorder,
    pub(crate) claims: Cache<PersistentVolumeClaim>,
    permits: Arc<Semaphore>,
}

/// The condition of a pod without a node.
pub(crate) struct Report {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    /// `Some` changes the nominated node, or removes it.
    pub(crate) nominated: Option<Option<Arc<str>>>,
}

impl Actions {
    pub(crate) fn new(
        client: Client,
        recorder: Recorder,
        claims: Cache<PersistentVolumeClaim>,
    ) -> Actions {
        Actions { client, recorder, claims, permits: Arc::new(Semaphore::new(REQUESTS_MAX)) }
    }

    /// Binds the pod, after volumes that wait for it (N-187).
    pub(crate) async fn bind(
        self,
        pod: Arc<PodInfo>,
        node: Arc<str>,
        volumes: VolumeChoice,
    ) -> ActionResult {
        if !volumes.is_empty() {
            let nominated = json!({ "status": { "nominatedNodeName": &*node } });
            let prepared = match self.patch(&pod, nominated).await {
                Ok(()) => volumes::prepare(&self, &pod, &node, &volumes).await,
                Err(error) => Err(error.to_string()),
            };
            if let Err(why) = prepared {
                return ActionResult::NotBound { pod, volumes, why: Some(why) };
            }
        }
        let _permit = self.permits.acquire().await;
        match self.client.bind(&pod.key, Some(&pod.uid), &node).await {
            Ok(()) => {
                let message = format!("Successfully assigned {} to {node}", pod.key);
                self.recorder.with_action("Binding").normal(
                    &reference(&*pod.pod),
                    "Scheduled",
                    message,
                );
                ActionResult::Bound { pod, volumes }
            }
            // The pod is gone.
            Err(error) if error.is_not_found() => {
                ActionResult::NotBound { pod, volumes, why: None }
            }
            Err(error) => {
                let why = format!(
                    "binding rejected: running Bind plugin \"DefaultBinder\": {}",
                    error_text(&error)
                );
                ActionResult::NotBound { pod, volumes, why: Some(why) }
            }
        }
    }

    /// Writes the condition, unless it is unchanged (N-196) or the pod has a node by now.
    pub(crate) async fn report(self, pod: Arc<PodInfo>, report: Report) -> ActionResult {
        let mut known = Arc::clone(&pod.pod);
        for _ in 0..REPORT_TRIES_MAX {
            let Some(patch) = status_patch(&known, &report, clock::now()) else { break };
            let _permit = self.permits.acquire().await;
            match self.client.patch_status::<Pod>(&pod.key, &patch).await {
                Err(error) if error.is_conflict() => {
                    let now = self.client.find::<Pod>(&pod.key).await.ok().flatten();
                    let Some(now) = now.filter(|now| is_still_waiting(now, &pod.uid)) else {
                        break;
                    };
                    known = Arc::new(now);
                }
                Err(error) if !error.is_not_found() => {
                    tracing::debug!(pod = %pod.key, %error, "cannot write the PodScheduled condition");
                    break;
                }
                _ => break,
            }
        }
        ActionResult::NothingToDo
    }

    /// Removes the nomination from a pod.
    pub(crate) async fn withdraw(self, pod: Arc<PodInfo>) -> ActionResult {
        let none = json!({ "status": { "nominatedNodeName": Value::Null } });
        if let Err(error) = self.patch(&pod, none).await {
            tracing::debug!(pod = %pod.key, %error, "cannot remove the nominated node");
        }
        ActionResult::NothingToDo
    }

    /// Deletes the victims gracefully, each after setting its DisruptionTarget condition (N-200).
    pub(crate) async fn preempt(
        self,
        pod: Arc<PodInfo>,
        node: Arc<str>,
        victims: Vec<Arc<PodInfo>>,
    ) -> ActionResult {
        let deleted = victims.iter().map(|victim| self.preempt_one(victim, &pod, &node));
        match join_all(deleted).await.into_iter().collect::<Result<Vec<()>, Error>>() {
            Ok(_) => ActionResult::NothingToDo,
            Err(error) => {
                tracing::warn!(pod = %pod.key, %error, "cannot delete all preempted pods; retrying");
                ActionResult::PreemptionFailed { pod }
            }
        }
    }

    async fn preempt_one(&self, victim: &PodInfo, pod: &PodInfo, node: &str) -> Result<(), Error> {
        if victim.is_terminating() {
            return Ok(());
        }
        let _permit = self.permits.acquire().await;
        let condition = json!({
            "type": "DisruptionTarget",
            "status": "True",
            "reason": REASON,
            "message": "default-scheduler: preempting to accommodate a higher priority pod",
            "lastTransitionTime": clock::now_rfc3339(),
            "observedGeneration": victim.pod.metadata.generation,
        });
        let deleted = async {
            self.patch(victim, json!({ "status": { "conditions": [condition] } })).await?;
            let only = DeleteOptions::of_uid(&victim.uid);
            self.client.delete::<Pod>(&victim.key, &only).await
        };
        match deleted.await {
            Ok(_) => {
                let message = format!("Preempted by pod {} on node {node}", pod.uid);
                let on = reference(&*victim.pod);
                self.recorder.with_action("Preempting").normal(&on, "Preempted", message);
                Ok(())
            }
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Patches the status of this pod, not of another with the same name.
    async fn patch(&self, pod: &PodInfo, mut patch: Value) -> Result<(), Error> {
        patch["metadata"] = json!({ "uid": pod.uid });
        self.client.patch_status::<Pod>(&pod.key, &patch).await.map(drop)
    }

    pub(crate) fn record_failure(&self, pod: &PodInfo, message: &str) {
        let recorder = self.recorder.with_action("Scheduling");
        recorder.warning(&reference(&*pod.pod), "FailedScheduling", crate::messages::cut(message));
    }
}

fn error_text(error: &Error) -> String {
    error.status().map_or_else(|| error.to_string(), |status| status.message.clone())
}

fn is_still_waiting(pod: &Pod, uid: &str) -> bool {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
    pod.metadata.uid.as_deref() == Some(uid) && node.is_empty()
}

/// `None` if nothing has changed. The patch applies only to this version of the pod, so that it does not overwrite the
/// condition after a binding.
fn status_patch(pod: &Pod, report: &Report, now: jiff::Timestamp) -> Option<Value> {
    let status = pod.status.as_ref();
    let mut conditions = status.iter().flat_map(|status| status.conditions.iter().flatten());
    let before = conditions.find(|condition| condition.type_ == SCHEDULED);
    let nominated_before = status.and_then(|status| status.nominated_node_name.as_deref());
    let nominated_before = nominated_before.filter(|name| !name.is_empty());

    let same = |before: &PodCondition| {
        before.status == "False"
            && before.reason.as_deref() == Some(report.reason)
            && before.message.as_deref() == Some(&report.message)
    };
    let mut patch = json!({});
    if !before.is_some_and(same) {
        let since = before.filter(|before| before.status == "False");
        let since = since.and_then(|before| before.last_transition_time.as_ref());
        patch["conditions"] = json!([{
            "type": SCHEDULED,
            "status": "False",
            "reason": report.reason,
            "message": report.message,
            "lastProbeTime": null,
            "lastTransitionTime": clock::rfc3339(since.map_or(now, |time| time.0)),
            "observedGeneration": pod.metadata.generation,
        }]);
    }
    match &report.nominated {
        Some(node) if node.as_deref() != nominated_before => {
            patch["nominatedNodeName"] = json!(node.as_deref());
        }
        _ => (),
    }
    let nothing = patch.as_object().is_none_or(serde_json::Map::is_empty);
    let (uid, version) = (&pod.metadata.uid, &pod.metadata.resource_version);
    let meta = json!({ "uid": uid, "resourceVersion": version });
    (!nothing).then(|| json!({ "metadata": meta, "status": patch }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::read;

    #[test]
    fn n_196_the_condition_is_written_again_only_when_it_changes() {
        let now: jiff::Timestamp = "2026-01-02T00:00:00Z".parse().unwrap();
        let report = |message: &str, nominated| Report {
            reason: "Unschedulable",
            message: message.into(),
            nominated,
        };
        let fresh = json!({ "metadata": { "name": "p", "uid": "u", "resourceVersion": "7" } });
        let fresh = read(fresh).pod;
        let patch = status_patch(&fresh, &report("no", None), now).unwrap();
        let condition = &patch["status"]["conditions"][0];
        assert_eq!(condition["lastTransitionTime"], "2026-01-02T00:00:00Z");
        assert_eq!(condition["reason"], "Unschedulable");
        assert_eq!(patch["metadata"], json!({ "uid": "u", "resourceVersion": "7" }));

        let written = read(json!({ "metadata": { "name": "p" }, "status": {
            "nominatedNodeName": "n",
            "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                             "message": "no", "lastTransitionTime": "2026-01-01T00:00:00Z" }],
        } }))
        .pod;
        assert_eq!(status_patch(&written, &report("no", None), now), None);
        assert_eq!(status_patch(&written, &report("no", Some(Some("n".into()))), now), None);
        let cleared = status_patch(&written, &report("no", Some(None)), now).unwrap();
        assert_eq!(cleared["status"], json!({ "nominatedNodeName": null }));
        let other = status_patch(&written, &report("still no", None), now).unwrap();
        let condition = &other["status"]["conditions"][0];
        assert_eq!(
            condition["lastTransitionTime"], "2026-01-01T00:00:00Z",
            "the status is still False"
        );
    }

    #[test]
    fn n_196_no_condition_is_written_for_a_bound_pod() {
        let waits = |node: Value| {
            let pod = json!({ "metadata": { "name": "p", "uid": "u" }, "spec": node });
            let pod = read(pod).pod;
            (is_still_waiting(&pod, "u"), is_still_waiting(&pod, "another"))
        };
        assert_eq!(waits(json!({ "containers": [] })), (true, false));
        assert_eq!(waits(json!({ "containers": [], "nodeName": "n" })), (false, false));
    }
}
