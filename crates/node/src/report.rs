//! Writes the latest status of a pod to the API, each once, and never an older one after a newer one.
//!
//!     worker ──latest status──▶ one task per pod ──PATCH pods/status──▶ API
//!
//! The worker does not wait for the API, except before the object may be deleted ([`Report::written`]).
//! A failed write is repeated after ten seconds, or when there is a newer status (N-70).
//! Not here: what the status is (`lifecycle::status`).

mod patch;

use crate::static_pods::is_mirror;
use client::{Client, ObjectKey};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use lifecycle::status::{is_terminal, is_terminal_pod};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Pause before a failed write is repeated (N-70).
const RETRY: Duration = Duration::from_secs(10);
/// The same for a pod that is being deleted: its object waits for the write.
const RETRY_LAST: Duration = Duration::from_millis(500);

pub(crate) struct Report {
    latest: watch::Sender<Option<Arc<PodStatus>>>,
    written: watch::Receiver<Option<Arc<PodStatus>>>,
    object: watch::Sender<Option<Arc<Pod>>>,
}

impl Report {
    /// `pod` is the object in the API; for a static pod its mirror, once there is one.
    pub(crate) fn on(client: &Client, pod: Option<Arc<Pod>>) -> Report {
        let (latest, statuses) = watch::channel(None);
        let (stored, written) = watch::channel(None);
        let (object, objects) = watch::channel(pod);
        tokio::spawn(run(client.clone(), objects, statuses, stored));
        Report { latest, written, object }
    }

    /// The object as the API has it now. If another client changed its status, it is written again.
    pub(crate) fn observed(&self, pod: Option<Arc<Pod>>) {
        self.object.send_if_modified(|object| {
            let version = |pod: &Option<Arc<Pod>>| {
                pod.as_ref()
                    .map(|pod| (pod.metadata.uid.clone(), pod.metadata.resource_version.clone()))
            };
            let is_new = version(object) != version(&pod);
            *object = pod;
            is_new
        });
    }

    pub(crate) fn write(&self, status: PodStatus) {
        self.latest.send_if_modified(|latest| {
            let is_new = latest.as_deref() != Some(&status);
            if is_new {
                *latest = Some(Arc::new(status));
            }
            is_new
        });
    }

    /// Waits until the API has the latest status. False: the object is gone.
    pub(crate) async fn written(&mut self) -> bool {
        let wanted = self.latest.borrow().clone();
        let stored = self.written.wait_for(|written| match (written, &wanted) {
            (Some(written), Some(wanted)) => written == wanted,
            (_, None) => true,
            (None, Some(_)) => false,
        });
        stored.await.is_ok()
    }
}

/// Runs until the worker drops its [`Report`], or the object is gone.
async fn run(
    client: Client,
    mut objects: watch::Receiver<Option<Arc<Pod>>>,
    mut statuses: watch::Receiver<Option<Arc<PodStatus>>>,
    stored: watch::Sender<Option<Arc<PodStatus>>>,
) {
    let mut base = objects.borrow_and_update().clone();
    loop {
        let status = statuses.borrow_and_update().clone();
        base = newer(base, objects.borrow_and_update().clone());
        let outcome = match (&status, &base) {
            (Some(status), Some(base)) if is_overtaken(base, status) => Outcome::Overtaken,
            (Some(status), Some(base)) => write(&client, base, status).await,
            (None, _) | (_, None) => Outcome::Unchanged,
        };
        let retry = match outcome {
            Outcome::Unchanged => {
                stored.send_replace(status);
                None
            }
            Outcome::Overtaken => None,
            Outcome::Stored(pod) => {
                base = Some(pod);
                stored.send_replace(status);
                None
            }
            // A static pod may get another mirror.
            Outcome::Gone if base.as_deref().is_some_and(is_mirror) => {
                stored.send_replace(status);
                None
            }
            Outcome::Gone => return,
            Outcome::Failed if base.as_deref().is_some_and(is_deleted) => Some(RETRY_LAST),
            Outcome::Failed => Some(RETRY),
        };
        let pause = tokio::time::sleep(retry.unwrap_or(Duration::MAX / 4));
        tokio::select! {
            biased;
            changed = statuses.changed() => if changed.is_err() { return },
            changed = objects.changed() => if changed.is_err() { return },
            () = pause, if retry.is_some() => {}
        }
    }
}

enum Outcome {
    /// The API has this status already.
    Unchanged,
    /// Another client wrote a terminal phase. The worker learns of it too and computes a new status soon.
    Overtaken,
    Stored(Arc<Pod>),
    Gone,
    Failed,
}

async fn write(client: &Client, base: &Pod, status: &PodStatus) -> Outcome {
    let Some(patch) = patch::between(base, status) else {
        return Outcome::Unchanged;
    };
    match client.patch_status::<Pod>(&ObjectKey::of(base), &patch).await {
        Ok(pod) => Outcome::Stored(pod),
        // A conflict means that another pod has this name now: the patch names the UID.
        Err(error) if error.is_not_found() || error.is_conflict() => Outcome::Gone,
        Err(error) => {
            tracing::warn!(pod = %ObjectKey::of(base), %error, "writing the pod's status failed, will retry");
            Outcome::Failed
        }
    }
}

/// A terminal phase is never left (T-NODE-57). A mirror shows the state of its pod, whatever was written to it.
fn is_overtaken(base: &Pod, status: &PodStatus) -> bool {
    is_terminal_pod(base) && !is_terminal(status) && !is_mirror(base)
}

fn is_deleted(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// The watch may deliver a version older than the reply to our own last write.
fn newer(ours: Option<Arc<Pod>>, watched: Option<Arc<Pod>>) -> Option<Arc<Pod>> {
    let version = |pod: &Pod| -> u64 {
        pod.metadata.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(0)
    };
    match (ours, watched) {
        (Some(ours), Some(watched))
            if ours.metadata.uid == watched.metadata.uid && version(&ours) > version(&watched) =>
        {
            Some(ours)
        }
        (_, watched) => watched,
    }
}
