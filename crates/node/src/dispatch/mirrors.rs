//! Mirrors of static pods that are no more (T-NODE-89): a manifest went while nobody looked, or the mirror could
//! not be deleted when its pod had ended. Not here: mirrors of pods that run (`static_pods::mirror`).

use super::Dispatch;
use crate::static_pods::{delete_mirror, is_mirror};
use client::ObjectKey;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::task::{AbortHandle, JoinSet};

/// What the API refuses is asked for again after this.
const AGAIN: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(super) struct Leftover {
    /// Until the manifests were read nobody knows whose mirror is left over.
    pub(super) manifests_are_known: bool,
    /// By uid: they are being deleted.
    going: BTreeMap<String, AbortHandle>,
    tasks: JoinSet<()>,
}

impl Dispatch {
    /// If there is a mirror of that name, and no pod that it mirrors, it goes, however often that has to be tried.
    pub(super) fn clear_mirror(&mut self, key: &ObjectKey) {
        let wanted = self.statics.contains_key(key) || self.waiting.contains_key(key);
        if wanted || !self.mirrors.manifests_are_known {
            return;
        }
        let Some(mirror) = self.pods.get(key).filter(|pod| is_mirror(pod)) else { return };
        let uid = mirror.metadata.uid.clone().unwrap_or_default();
        let Leftover { going, tasks, .. } = &mut self.mirrors;
        while tasks.try_join_next().is_some() {}
        going.retain(|_, task| !task.is_finished());
        if going.contains_key(&uid) {
            return;
        }
        let (client, key) = (self.parts.client.clone(), key.clone());
        let task = tasks.spawn(async move {
            while let Err(error) = delete_mirror(&client, &mirror).await {
                tracing::warn!(pod = %key, %error, "a mirror without a pod is still there");
                tokio::time::sleep(AGAIN).await;
            }
        });
        going.insert(uid, task);
    }
}
