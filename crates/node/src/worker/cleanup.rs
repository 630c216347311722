//! After the last process: volumes, records, and at last the object in the API.

use super::{RETRY, Worker, jittered};
use crate::last_words::remove_logs;
use crate::static_pods::{delete_mirror, is_static};
use client::{DeleteOptions, ObjectKey};
use k8s_openapi::api::core::v1::Pod;
use lifecycle::status::{self, Stage};
use lifecycle::timeline::What;
use std::time::Duration;

/// What could not be taken away is tried again after this (T-NODE-71).
pub(crate) const AGAIN: Duration = Duration::from_millis(100);
pub(crate) const AGAIN_MAX: Duration = Duration::from_secs(10);
/// Nothing is to do until there are orders; they come by themselves.
const IDLE: Duration = Duration::from_secs(3600);

impl Worker {
    /// Nothing of the pod runs. Its end is told, and everything it had on this node but its logs goes.
    pub(super) async fn clean_up(&mut self) {
        self.stage = Stage::Terminated;
        let mut pause = AGAIN;
        loop {
            match self.try_clean_up().await {
                Ok(()) => return,
                Err(why) => tracing::warn!(pod = %self.title(), why, "clean-up goes on"),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(AGAIN_MAX);
        }
    }

    async fn try_clean_up(&mut self) -> Result<(), String> {
        let observed = self.observe().await?;
        self.publish(&observed);
        self.parts.prober.remove_pod(&self.uid);
        self.parts.objects.unregister(&self.uid);
        let taken = self.parts.volumes.tear_down(&self.uid).await;
        taken.map_err(|error| format!("volumes are still there: {error}"))?;
        self.note(What::VolumesGone);
        Ok(())
    }

    /// Waits until the object may go, lets it go, and forgets the pod. A pod that has merely finished
    /// keeps its object, its last containers' records and its logs until somebody deletes it, and one
    /// that somebody holds on to with a finalizer until they let go (T-NODE-75).
    pub(super) async fn leave(&mut self) {
        let mut let_go = false;
        loop {
            self.follow_orders();
            if self.orders.borrow().gone {
                self.remove_mirror().await;
                break;
            }
            if self.pod.metadata.deletion_timestamp.is_some() && !let_go {
                match self.remove_object().await {
                    Ok(()) => let_go = true,
                    Err(why) => {
                        tracing::warn!(pod = %self.title(), why, "the object stays");
                        self.wait(jittered(RETRY)).await;
                    }
                }
            } else if let_go && self.pod.metadata.finalizers.iter().flatten().next().is_none() {
                break;
            } else {
                self.wait(IDLE).await;
            }
        }
        self.forget().await;
    }

    /// T-NODE-55, T-NODE-74: only after the terminal status is stored, and only this very pod.
    async fn remove_object(&mut self) -> Result<(), String> {
        if !self.report.written().await {
            return Ok(()); // It is gone already.
        }
        // Who watches the end of the object can read how it came to it.
        self.parts.timeline.flush(&self.uid).await;
        debug_assert!(status::is_terminal(&self.status), "{:?}", self.status.phase);
        let key = ObjectKey::of(&*self.pod);
        let options = DeleteOptions::of_uid(&self.uid).grace(0);
        match self.parts.client.delete::<Pod>(&key, &options).await {
            Ok(_) => Ok(()),
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// T-NODE-89: a static pod's mirror goes after it has stopped. If it does not, the next pod of that name
    /// need not wait for it: `dispatch` tries on.
    async fn remove_mirror(&mut self) {
        let mirror = self.orders.borrow().mirror.clone();
        if let Some(mirror) = mirror.filter(|_| is_static(&self.pod))
            && let Err(error) = delete_mirror(&self.parts.client, &mirror).await
        {
            tracing::warn!(pod = %self.title(), %error, "the mirror was not removed");
        }
    }

    /// Nothing of it is left on this node afterwards, however often that has to be tried (T-NODE-76).
    async fn forget(&mut self) {
        self.parts.pods.remove(&self.uid);
        self.parts.metrics.forget("pod_uid", &self.uid);
        let mut pause = AGAIN;
        while let Err(error) = self.try_forget().await {
            tracing::warn!(pod = %self.title(), %error, "something of it is still there");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(AGAIN_MAX);
        }
        self.note(What::CgroupGone);
        remove_logs(&self.log_dir());
    }

    async fn try_forget(&self) -> runtime::Result<()> {
        for sandbox in self.parts.runtime.sandboxes_of(&self.uid).await? {
            self.parts.runtime.remove_sandbox(&sandbox.id).await?;
            for container in &sandbox.containers {
                self.unlink_log(&container.name, &container.id);
            }
        }
        Ok(())
    }
}
