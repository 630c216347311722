//! Keeps this node's [`DrainParticipant`] up to date: what it awaits, and what it has committed.
//!
//! The object is written only while a node waits: with a new awaited version, and when this node has committed a version
//! that another node awaits.

use super::participant::{DrainParticipant, Status, object_name};
use crate::Watched;
use client::{Cache, Client, ObjectKey};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, OwnerReference};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::sync::watch;

/// Pauses between failed writes, doubling.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

pub(super) struct Acknowledger {
    pub(super) client: Client,
    pub(super) node: String,
    pub(super) watched: Watched,
    pub(super) participants: Cache<DrainParticipant>,
    /// The version that this node's proxy has committed.
    pub(super) committed: watch::Receiver<u64>,
    /// The newest version that a pod of this node waits for.
    pub(super) awaits: watch::Receiver<u64>,
}

/// Versions in this node's object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Written {
    committed: u64,
    awaits: u64,
}

impl Acknowledger {
    pub(super) async fn run(mut self) {
        self.participants.synced().await;
        let mut others = self.participants.versions();
        let mut nodes = self.watched.nodes.versions();
        let mut written = Written::default();
        let mut pause = RETRY.0;
        loop {
            let committed = *self.committed.borrow_and_update();
            let awaits = *self.awaits.borrow_and_update();
            let current = Written { committed, awaits: if self.has_others() { awaits } else { 0 } };
            let awaited = self.awaited_by_others();
            if is_needed(current, written, &awaited) {
                match self.write(current).await {
                    Ok(()) => (written, pause) = (current, RETRY.0),
                    Err(error) => {
                        tracing::warn!(%error, "acknowledging a version of the EndpointSlices failed, will retry");
                        tokio::time::sleep(pause).await;
                        pause = (pause * 2).min(RETRY.1);
                    }
                }
                continue;
            }
            let alive = tokio::select! {
                changed = self.committed.changed() => changed.is_ok(),
                changed = self.awaits.changed() => changed.is_ok(),
                changed = others.changed() => changed,
                changed = nodes.changed() => changed,
            };
            if !alive {
                return; // The proxy has stopped.
            }
        }
    }

    /// Whether there is anybody to ask.
    fn has_others(&self) -> bool {
        self.watched.nodes.len() > 1
            || self.participants.list().iter().any(|participant| participant.node().is_none())
    }

    fn awaited_by_others(&self) -> Vec<u64> {
        let own = object_name(&self.node);
        let all = self.participants.list();
        all.iter().filter(|other| other.name() != own).map(|other| other.awaits()).collect()
    }

    async fn write(&self, versions: Written) -> client::Result<()> {
        let status = Status {
            committed: versions.committed.to_string(),
            awaits: text(versions.awaits),
            time: Some(MicroTime(clock::now())),
        };
        let key = ObjectKey::cluster(&object_name(&self.node));
        let patch = json!({ "status": status });
        match self.client.patch_merge::<DrainParticipant>(&key, &patch).await {
            Err(error) if error.is_not_found() => {
                let mut object = DrainParticipant { status, ..DrainParticipant::default() };
                object.metadata.name = Some(object_name(&self.node));
                object.metadata.owner_references = self.owner();
                self.client.create(&object).await.map(drop)
            }
            patched => patched.map(drop),
        }
    }

    /// The garbage collector deletes the object with its Node.
    fn owner(&self) -> Option<Vec<OwnerReference>> {
        let node = self.watched.nodes.get(&ObjectKey::cluster(&self.node))?;
        let owner: Value = json!({ "apiVersion": "v1", "kind": "Node", "name": self.node,
            "uid": node.metadata.uid.as_ref()? });
        serde_json::from_value(owner).ok().map(|owner| vec![owner])
    }
}

fn text(version: u64) -> String {
    if version == 0 { String::new() } else { version.to_string() }
}

/// Whether `current` has something that others wait for and that is not `written` yet.
fn is_needed(current: Written, written: Written, awaited_by_others: &[u64]) -> bool {
    let committed_now =
        |awaited: &u64| written.committed < *awaited && *awaited <= current.committed;
    current.awaits > written.awaits || awaited_by_others.iter().any(committed_now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledgement_is_written_only_while_somebody_waits_for_it() {
        let versions = |committed, awaits| Written { committed, awaits };
        for (current, written, others, expected) in [
            (versions(9, 0), versions(0, 0), &[][..], false),
            (versions(9, 0), versions(0, 0), &[0], false),
            (versions(9, 0), versions(0, 0), &[10], false),
            (versions(9, 0), versions(0, 0), &[9], true),
            (versions(9, 0), versions(0, 0), &[12, 4], true),
            (versions(9, 0), versions(9, 0), &[9], false),
            (versions(11, 0), versions(9, 0), &[9], false),
            (versions(11, 0), versions(9, 0), &[10], true),
            (versions(9, 5), versions(9, 0), &[], true),
            (versions(9, 5), versions(9, 5), &[], false),
        ] {
            assert_eq!(is_needed(current, written, others), expected, "{current:?} {others:?}");
        }
    }
}
