//! Tells the API how a pod is doing: the latest status, once, and never an older one after it.
//!
//!     worker ──latest status──▶ one task per pod ──PATCH pods/status──▶ API
//!
//! The worker does not wait for the API, except before the object may go ([`Report::written`]).
//! A write that fails is tried again every ten seconds or when there is news (N-70).
//! Not here: what the status is (`lifecycle::status`).

mod patch;

use crate::static_pods::is_mirror;
use client::{Client, ObjectKey};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use lifecycle::status::is_terminal;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// A status that could not be written is tried again after this (N-70).
const RETRY: Duration = Duration::from_secs(10);
/// Before the object goes, the last status is tried this often.
const RETRY_LAST: Duration = Duration::from_millis(500);

pub(crate) struct Report {
    latest: watch::Sender<Option<Arc<PodStatus>>>,
    written: watch::Receiver<Option<Arc<PodStatus>>>,
    seen: watch::Sender<Option<Arc<Pod>>>,
}

impl Report {
    /// `pod` is the object in the API: of a static pod, its mirror, once there is one.
    pub(crate) fn on(client: &Client, pod: Option<Arc<Pod>>) -> Report {
        let (latest, news) = watch::channel(None);
        let (told, written) = watch::channel(None);
        let (seen, object) = watch::channel(pod);
        tokio::spawn(run(client.clone(), object, news, told));
        Report { latest, written, seen }
    }

    /// The object as the API has it now: what somebody else wrote into its status is put right.
    pub(crate) fn observed(&self, pod: Option<Arc<Pod>>) {
        self.seen.send_if_modified(|seen| {
            let version = |pod: &Option<Arc<Pod>>| {
                pod.as_ref()
                    .map(|pod| (pod.metadata.uid.clone(), pod.metadata.resource_version.clone()))
            };
            let news = version(seen) != version(&pod);
            *seen = pod;
            news
        });
    }

    pub(crate) fn tell(&self, status: PodStatus) {
        self.latest.send_if_modified(|latest| {
            let news = latest.as_deref() != Some(&status);
            if news {
                *latest = Some(Arc::new(status));
            }
            news
        });
    }

    /// Waits until what was told last is stored. False: the object is gone.
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

/// Ends when the worker lets go of its end, or the object is gone.
async fn run(
    client: Client,
    mut object: watch::Receiver<Option<Arc<Pod>>>,
    mut news: watch::Receiver<Option<Arc<PodStatus>>>,
    told: watch::Sender<Option<Arc<PodStatus>>>,
) {
    let mut base = object.borrow_and_update().clone();
    loop {
        let status = news.borrow_and_update().clone();
        base = newer(base, object.borrow_and_update().clone());
        let outcome = match (&status, &base) {
            (Some(status), Some(base)) if is_overtaken(base, status) => Outcome::Overtaken,
            (Some(status), Some(base)) => write(&client, base, status).await,
            (None, _) | (_, None) => Outcome::Same,
        };
        let retry = match outcome {
            Outcome::Same => {
                told.send_replace(status);
                None
            }
            Outcome::Overtaken => None,
            Outcome::Stored(pod) => {
                base = Some(pod);
                told.send_replace(status);
                None
            }
            // Of a static pod, another mirror may come; until then there is nobody to tell.
            Outcome::Gone if base.as_deref().is_some_and(is_mirror) => {
                told.send_replace(status);
                None
            }
            Outcome::Gone => return,
            Outcome::Failed if base.as_deref().is_some_and(is_going) => Some(RETRY_LAST),
            Outcome::Failed => Some(RETRY),
        };
        let pause = tokio::time::sleep(retry.unwrap_or(Duration::MAX / 4));
        tokio::select! {
            biased;
            changed = news.changed() => if changed.is_err() { return },
            changed = object.changed() => if changed.is_err() { return },
            () = pause, if retry.is_some() => {}
        }
    }
}

enum Outcome {
    /// The API has this status already.
    Same,
    /// Somebody else has said how it ended. The worker has heard of it too, and has more to say soon.
    Overtaken,
    Stored(Arc<Pod>),
    Gone,
    Failed,
}

async fn write(client: &Client, base: &Pod, status: &PodStatus) -> Outcome {
    let Some(patch) = patch::between(base, status) else {
        return Outcome::Same;
    };
    match client.patch_status::<Pod>(&ObjectKey::of(base), &patch).await {
        Ok(pod) => Outcome::Stored(pod),
        // Another pod of that name has come: the precondition on the uid says so with a conflict.
        Err(error) if error.is_not_found() || error.is_conflict() => Outcome::Gone,
        Err(error) => {
            tracing::warn!(pod = %ObjectKey::of(base), %error, "the status was not written");
            Outcome::Failed
        }
    }
}

/// T-NODE-57: a terminal phase is never left. A mirror says what its pod does, whatever is written to it.
fn is_overtaken(base: &Pod, status: &PodStatus) -> bool {
    let over = base.status.as_ref().is_some_and(is_terminal);
    over && !is_terminal(status) && !is_mirror(base)
}

fn is_going(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// The watch may tell of a version older than the answer to our own last write.
fn newer(ours: Option<Arc<Pod>>, seen: Option<Arc<Pod>>) -> Option<Arc<Pod>> {
    let version = |pod: &Pod| -> u64 {
        pod.metadata.resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(0)
    };
    match (ours, seen) {
        (Some(ours), Some(seen))
            if ours.metadata.uid == seen.metadata.uid && version(&ours) > version(&seen) =>
        {
            Some(ours)
        }
        (_, seen) => seen,
    }
}
