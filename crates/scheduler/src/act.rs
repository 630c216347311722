//! What follows from a decision: binding, saying why not, ending victims. Each deed is a task of its
//! own; how it ended is told to the loop.

mod volumes;

use crate::filters::Choice;
use crate::pod::PodInfo;
use crate::preempt::REASON;
use client::{Cache, Client, DeleteOptions, Error, Recorder, reference};
use futures::future::join_all;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, PodCondition};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::Semaphore;

/// Requests under way at most. A thousand pods a second are a few at a time.
const REQUESTS_MAX: usize = 128;

const SCHEDULED: &str = "PodScheduled";

/// So often a reason is written when others write the pod meanwhile.
const REPORTS_MAX: usize = 3;

/// How a deed ended.
#[derive(Debug)]
pub(crate) enum Done {
    Bound {
        pod: Arc<PodInfo>,
        volumes: Choice,
    },
    /// The pod has no node, and this is why.
    NotBound {
        pod: Arc<PodInfo>,
        volumes: Choice,
        why: Option<String>,
    },
    /// Victims could not be ended: the pod is to be tried again.
    NoRoom {
        pod: Arc<PodInfo>,
    },
    Nothing,
}

#[derive(Clone)]
pub(crate) struct Hands {
    pub(crate) client: Client,
    pub(crate) recorder: Recorder,
    pub(crate) claims: Cache<PersistentVolumeClaim>,
    permits: Arc<Semaphore>,
}

/// What is to be written about a pod that has no node.
pub(crate) struct Report {
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    /// `Some`: the nomination is to be this, or none.
    pub(crate) nominated: Option<Option<Arc<str>>>,
}

impl Hands {
    pub(crate) fn new(
        client: Client,
        recorder: Recorder,
        claims: Cache<PersistentVolumeClaim>,
    ) -> Hands {
        Hands { client, recorder, claims, permits: Arc::new(Semaphore::new(REQUESTS_MAX)) }
    }

    /// Binds the pod, after its volumes if it has some that wait for it (N-187).
    pub(crate) async fn bind(self, pod: Arc<PodInfo>, node: Arc<str>, volumes: Choice) -> Done {
        if !volumes.is_nothing() {
            let nominated = json!({ "status": { "nominatedNodeName": &*node } });
            let prepared = match self.patch(&pod, nominated).await {
                Ok(()) => volumes::prepare(&self, &pod, &node, &volumes).await,
                Err(error) => Err(error.to_string()),
            };
            if let Err(why) = prepared {
                return Done::NotBound { pod, volumes, why: Some(why) };
            }
        }
        let _permit = self.permits.acquire().await;
        match self.client.bind(&pod.key, Some(&pod.uid), &node).await {
            Ok(()) => {
                let message = format!("Successfully assigned {} to {node}", pod.key);
                self.recorder.doing("Binding").normal(&reference(&*pod.pod), "Scheduled", message);
                Done::Bound { pod, volumes }
            }
            // It is gone, and so is the question.
            Err(error) if error.is_not_found() => Done::NotBound { pod, volumes, why: None },
            Err(error) => {
                let why = format!(
                    "binding rejected: running Bind plugin \"DefaultBinder\": {}",
                    said(&error)
                );
                Done::NotBound { pod, volumes, why: Some(why) }
            }
        }
    }

    /// Writes why the pod has no node, unless that is what it says already (N-196), or it has one by now.
    pub(crate) async fn report(self, pod: Arc<PodInfo>, report: Report) -> Done {
        let mut known = Arc::clone(&pod.pod);
        for _ in 0..REPORTS_MAX {
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
                    tracing::debug!(pod = %pod.key, %error, "the reason could not be written");
                    break;
                }
                _ => break,
            }
        }
        Done::Nothing
    }

    /// Takes a nomination away.
    pub(crate) async fn withdraw(self, pod: Arc<PodInfo>) -> Done {
        let none = json!({ "status": { "nominatedNodeName": Value::Null } });
        if let Err(error) = self.patch(&pod, none).await {
            tracing::debug!(pod = %pod.key, %error, "the nomination could not be withdrawn");
        }
        Done::Nothing
    }

    /// Ends the victims gracefully, each after it has been said why (N-200).
    pub(crate) async fn make_room(
        self,
        pod: Arc<PodInfo>,
        node: Arc<str>,
        victims: Vec<Arc<PodInfo>>,
    ) -> Done {
        let ended = join_all(victims.iter().map(|victim| self.end(victim, &pod, &node))).await;
        match ended.into_iter().collect::<Result<Vec<()>, Error>>() {
            Ok(_) => Done::Nothing,
            Err(error) => {
                tracing::warn!(pod = %pod.key, %error, "room could not be made");
                Done::NoRoom { pod }
            }
        }
    }

    async fn end(&self, victim: &PodInfo, pod: &PodInfo, node: &str) -> Result<(), Error> {
        if victim.is_going() {
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
        let ended = async {
            self.patch(victim, json!({ "status": { "conditions": [condition] } })).await?;
            let only = DeleteOptions::of_uid(&victim.uid);
            self.client.delete::<Pod>(&victim.key, &only).await
        };
        match ended.await {
            Ok(_) => {
                let message = format!("Preempted by pod {} on node {node}", pod.uid);
                let on = reference(&*victim.pod);
                self.recorder.doing("Preempting").normal(&on, "Preempted", message);
                Ok(())
            }
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Patches the status of this very pod, not of another with its name.
    async fn patch(&self, pod: &PodInfo, mut patch: Value) -> Result<(), Error> {
        patch["metadata"] = json!({ "uid": pod.uid });
        self.client.patch_status::<Pod>(&pod.key, &patch).await.map(drop)
    }

    pub(crate) fn unscheduled(&self, pod: &PodInfo, message: &str) {
        let recorder = self.recorder.doing("Scheduling");
        recorder.warning(&reference(&*pod.pod), "FailedScheduling", crate::text::cut(message));
    }
}

fn said(error: &Error) -> String {
    error.status().map_or_else(|| error.to_string(), |status| status.message.clone())
}

fn is_still_waiting(pod: &Pod, uid: &str) -> bool {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
    pod.metadata.uid.as_deref() == Some(uid) && node.is_empty()
}

/// `None` if there is nothing new to write. It is about the pod as it is in this version: what was true
/// of it must not be written over a binding.
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

        let told = read(json!({ "metadata": { "name": "p" }, "status": {
            "nominatedNodeName": "n",
            "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                             "message": "no", "lastTransitionTime": "2026-01-01T00:00:00Z" }],
        } }))
        .pod;
        assert_eq!(status_patch(&told, &report("no", None), now), None);
        assert_eq!(status_patch(&told, &report("no", Some(Some("n".into()))), now), None);
        let cleared = status_patch(&told, &report("no", Some(None)), now).unwrap();
        assert_eq!(cleared["status"], json!({ "nominatedNodeName": null }));
        let other = status_patch(&told, &report("still no", None), now).unwrap();
        let condition = &other["status"]["conditions"][0];
        assert_eq!(condition["lastTransitionTime"], "2026-01-01T00:00:00Z", "it is still False");
    }

    #[test]
    fn n_196_nothing_is_said_any_more_about_a_pod_that_has_a_node() {
        let waits = |node: Value| {
            let pod = json!({ "metadata": { "name": "p", "uid": "u" }, "spec": node });
            let pod = read(pod).pod;
            (is_still_waiting(&pod, "u"), is_still_waiting(&pod, "another"))
        };
        assert_eq!(waits(json!({ "containers": [] })), (true, false));
        assert_eq!(waits(json!({ "containers": [], "nodeName": "n" })), (false, false));
    }
}
