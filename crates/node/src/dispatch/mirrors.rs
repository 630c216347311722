//! Deletes mirrors whose static pod is gone (T-NODE-89): the manifest was removed while no agent ran, or the
//! mirror could not be deleted when its pod had terminated. Not here: mirrors of pods that run (`static_pods::mirror`).

use super::Dispatch;
use crate::static_pods::{delete_mirror, is_mirror};
use client::ObjectKey;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::task::{AbortHandle, JoinSet};

/// A failed delete is repeated after this time.
const RETRY: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(super) struct Leftover {
    /// Before the manifests have been read, it is unknown which mirrors are left over.
    pub(super) manifests_are_known: bool,
    /// Deletes in progress, by UID.
    deleting: BTreeMap<String, AbortHandle>,
    tasks: JoinSet<()>,
}

impl Dispatch {
    /// Deletes the mirror of that name if it has no pod, and repeats that until it succeeds.
    pub(super) fn delete_leftover_mirror(&mut self, key: &ObjectKey) {
        let wanted = self.statics.contains_key(key) || self.waiting.contains_key(key);
        if wanted || !self.mirrors.manifests_are_known {
            return;
        }
        let Some(mirror) = self.pods.get(key).filter(|pod| is_mirror(pod)) else { return };
        let uid = mirror.metadata.uid.clone().unwrap_or_default();
        let Leftover { deleting, tasks, .. } = &mut self.mirrors;
        while tasks.try_join_next().is_some() {}
        deleting.retain(|_, task| !task.is_finished());
        if deleting.contains_key(&uid) {
            return;
        }
        let (client, key) = (self.deps.client.clone(), key.clone());
        let task = tasks.spawn(async move {
            while let Err(error) = delete_mirror(&client, &mirror).await {
                tracing::warn!(pod = %key, %error, "deleting a leftover mirror pod failed, will retry");
                tokio::time::sleep(RETRY).await;
            }
        });
        deleting.insert(uid, task);
    }
}
