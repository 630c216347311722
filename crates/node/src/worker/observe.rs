//! What is so: the runtime's view of one pod, in `lifecycle`'s words.

use super::Worker;
use crate::config::Notes;
use crate::logs;
use lifecycle::observed::{Container, Exit, Mounted, Observed, Sandbox, State, User};
use runtime::{ContainerState, PodNetwork, SandboxState};
use std::collections::BTreeMap;
use std::path::Path;

/// Things read once that do not change: messages of ended containers, names of images.
#[derive(Default)]
pub(super) struct Memory {
    messages: BTreeMap<String, String>,
    images: BTreeMap<String, (String, String)>,
    past_attempts: Option<BTreeMap<String, u32>>,
}

/// How `network` knows a sandbox.
pub(crate) fn network_key(uid: &str, attempt: u32) -> String {
    format!("{uid}-{attempt}")
}

impl Worker {
    pub(super) async fn observe(&mut self) -> Result<Observed, String> {
        let seen = self.parts.runtime.sandboxes_of(&self.uid).await;
        let seen = seen.map_err(|error| error.to_string())?;
        let mut observed = Observed {
            sandboxes: seen.iter().map(|sandbox| self.sandbox(sandbox)).collect(),
            health: self.parts.prober.health(&self.uid),
            failures: self.failures.clone(),
            past_attempts: self.past_attempts(),
            ..Observed::default()
        };
        let mut containers: Vec<_> = seen.into_iter().flat_map(|sandbox| sandbox.containers).collect();
        containers.sort_by_key(|container| std::cmp::Reverse((container.created_at, container.attempt)));
        for container in containers {
            observed.containers.push(self.container(container).await);
        }
        Ok(observed)
    }

    fn sandbox(&self, seen: &runtime::Sandbox) -> Sandbox {
        let host_network = seen.network == PodNetwork::Host;
        let addresses = match (&self.parts.network, host_network) {
            (_, true) => self.parts.facts.host_ips.clone(),
            (Some(network), false) => {
                let attached = network.find(&network_key(&self.uid, seen.attempt));
                attached.map(|attachment| attachment.addresses).unwrap_or_default()
            }
            (None, false) => seen.addresses.clone(),
        };
        Sandbox {
            id: seen.id.clone(),
            attempt: seen.attempt,
            ready: seen.state == SandboxState::Ready,
            host_network,
            addresses,
        }
    }

    async fn container(&mut self, seen: runtime::Container) -> Container {
        let (image, image_id) = self.image_names(&seen).await;
        let notes = Notes::read(&seen.annotations);
        let state = match seen.state {
            ContainerState::Created => State::Created,
            ContainerState::Running { started_at } => State::Running { started_at },
            ContainerState::Unknown => State::Unknown,
            ContainerState::Exited(exit) => {
                let message = self.message(&seen.id, &exit, notes.as_ref(), &seen.log_path);
                State::Exited(Exit {
                    code: exit.code,
                    signal: exit.signal,
                    reason: exit.reason,
                    message,
                    started_at: exit.started_at,
                    finished_at: exit.finished_at,
                })
            }
        };
        Container {
            id: seen.id,
            name: seen.name,
            sandbox: seen.sandbox,
            attempt: seen.attempt,
            state,
            image,
            image_id,
            fingerprint: notes.map(|notes| notes.hash).unwrap_or_default(),
            resources: None,
            user: seen.user.map(|(uid, gid, groups)| User {
                uid: uid.into(),
                gid: gid.into(),
                groups: groups.into_iter().map(i64::from).collect(),
            }),
            mounts: seen
                .mounts
                .into_iter()
                .map(|mount| Mounted {
                    target: mount.target.display().to_string(),
                    recursive_read_only: mount.recursive_read_only,
                })
                .collect(),
        }
    }

    /// The image's name and its digest reference (N-82, N-178).
    async fn image_names(&mut self, seen: &runtime::Container) -> (String, String) {
        if let Some(names) = self.memory.images.get(&seen.image) {
            return names.clone();
        }
        let id = runtime::ImageReference(seen.image.clone());
        let Ok(Some(image)) = self.parts.runtime.images().find(&id).await else {
            return (seen.image_name.clone(), seen.image.clone());
        };
        let asked = seen.image_name.as_str();
        let tag = image.tags.iter().find(|tag| tag.ends_with(asked)).or(image.tags.first());
        let names = (
            tag.cloned().unwrap_or_else(|| seen.image_name.clone()),
            image.digests.first().cloned().unwrap_or(image.id),
        );
        self.memory.images.insert(seen.image.clone(), names.clone());
        names
    }

    /// T-NODE-59: the file's text, or the end of the log, after what the runtime has to say (N-62).
    fn message(
        &mut self,
        id: &str,
        exit: &runtime::Exit,
        notes: Option<&Notes>,
        log: &Path,
    ) -> String {
        if let Some(message) = self.memory.messages.get(id) {
            return message.clone();
        }
        let written = notes.map(|notes| logs::termination_message(notes, exit.code, log));
        let written = written.unwrap_or_default();
        let message = match (exit.message.is_empty(), written.is_empty()) {
            (false, false) => format!("{}: {written}", exit.message),
            (false, true) => exit.message.clone(),
            (true, _) => written,
        };
        self.memory.messages.insert(id.to_owned(), message.clone());
        message
    }

    /// N-48: restart counts go on from the log files when the runtime's records are lost.
    fn past_attempts(&mut self) -> BTreeMap<String, u32> {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let meta = &self.pod.metadata;
        let log_dir =
            || self.parts.facts.log_dir(&text(&meta.namespace), &text(&meta.name), &self.uid);
        self.memory.past_attempts.get_or_insert_with(|| logs::past_attempts(&log_dir())).clone()
    }

    pub(super) fn forget_container(&mut self, id: &str) {
        self.memory.messages.remove(id);
    }
}
