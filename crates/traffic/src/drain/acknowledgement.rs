//! Keeps this node's [`DrainParticipant`] up to date: what it awaits, and what it has committed.
//!
//! The object is written only while a node waits: with a new awaited version, and when this node has committed a version
//! that another node awaits.

use super::participant::{DrainParticipant, Status, object_name};
use crate::Watched;
use client::{Cache, Client, ObjectKey};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, OwnerReference};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::sync::watch;

/// Pauses between failed writes, doubling.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Awaited versions that are remembered.
const AWAITED_MAX: usize = 1000;

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
        let (mut written, mut written_at) = (Written::default(), 0);
        let mut awaited = AwaitedVersions::default();
        let mut pause = RETRY.0;
        loop {
            let committed = *self.committed.borrow_and_update();
            let awaits = *self.awaits.borrow_and_update();
            let current = Written { committed, awaits: if self.has_others() { awaits } else { 0 } };
            if others.current() >= written_at {
                // Somebody may have deleted the object.
                written = self.stored();
            }
            awaited.add(&self.awaited_by_others(), written.committed);
            if current.awaits > written.awaits || awaited.is_any_committed(current.committed) {
                match self.write(current).await {
                    Ok(version) => {
                        (written, written_at, pause) = (current, version, RETRY.0);
                        awaited.acknowledged(current.committed);
                    }
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

    /// What this node's object says.
    fn stored(&self) -> Written {
        let own = self.participants.get(&ObjectKey::cluster(&object_name(&self.node)));
        own.map_or_else(Written::default, |own| Written {
            committed: own.committed(),
            awaits: own.awaits(),
        })
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

    /// Returns the version of the object.
    async fn write(&self, versions: Written) -> client::Result<u64> {
        let status = Status {
            committed: versions.committed.to_string(),
            awaits: text(versions.awaits),
            time: Some(MicroTime(clock::now())),
        };
        let key = ObjectKey::cluster(&object_name(&self.node));
        let patch = json!({ "status": status });
        let written = match self.client.patch_merge::<DrainParticipant>(&key, &patch).await {
            Err(error) if error.is_not_found() => {
                let mut object = DrainParticipant { status, ..DrainParticipant::default() };
                object.metadata.name = Some(object_name(&self.node));
                object.metadata.owner_references = self.owner();
                self.client.create(&object).await?
            }
            patched => patched?,
        };
        let version = written.metadata.resource_version.as_deref().unwrap_or_default();
        Ok(version.parse().unwrap_or_default())
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

/// Versions that other nodes await and that this node has not acknowledged. A node that awaits a newer version may still
/// have pods that wait for an older one.
#[derive(Debug, Default)]
struct AwaitedVersions(BTreeSet<u64>);

impl AwaitedVersions {
    fn add(&mut self, versions: &[u64], acknowledged: u64) {
        self.0.extend(versions.iter().filter(|version| **version > acknowledged));
        while self.0.len() > AWAITED_MAX {
            self.0.pop_last();
        }
    }

    fn is_any_committed(&self, committed: u64) -> bool {
        self.0.first().is_some_and(|first| *first <= committed)
    }

    fn acknowledged(&mut self, committed: u64) {
        self.0.retain(|version| *version > committed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acknowledgement_is_written_only_while_somebody_waits_for_it() {
        let mut awaited = AwaitedVersions::default();
        assert!(!awaited.is_any_committed(9), "nobody waits");
        awaited.add(&[0, 10], 0);
        assert!(!awaited.is_any_committed(9), "not committed yet");
        awaited.add(&[12], 0);
        assert!(awaited.is_any_committed(11), "a newer version does not hide an older one");
        awaited.acknowledged(11);
        awaited.add(&[12, 10], 11);
        assert!(!awaited.is_any_committed(11), "acknowledged");
        assert!(awaited.is_any_committed(12));
    }

    #[test]
    fn the_number_of_awaited_versions_is_bounded() {
        let mut awaited = AwaitedVersions::default();
        let many: Vec<u64> = (1..=2 * AWAITED_MAX as u64).rev().collect();
        awaited.add(&many, 0);
        assert_eq!(awaited.0.len(), AWAITED_MAX);
        assert!(awaited.is_any_committed(1), "the oldest stay");
    }
}
