//! What is so: the runtime's view of one pod, in `lifecycle`'s words.

use super::Worker;
use crate::config::Notes;
use crate::last_words;
use crate::probes::{self, ContainerNow, Restored};
use futures::future::{BoxFuture, FutureExt, TryFutureExt};
use jiff::SignedDuration;
use lifecycle::observed::{Container, Exit, Health, Mounted, Observed, Sandbox, State, User};
use lifecycle::probe::Outcome;
use lifecycle::status::Stage;
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

/// N-95: a container that ran this long before the agent keeps what was said of it.
const INHERITED_AFTER: SignedDuration = SignedDuration::from_secs(10);

/// How `network` knows a sandbox.
pub(crate) fn network_key(uid: &str, attempt: u32) -> String {
    format!("{uid}-{attempt}")
}

/// What the runtime says of a pod's sandboxes.
pub(super) type Seen = Result<Vec<runtime::Sandbox>, String>;

impl Worker {
    pub(super) async fn observe(&mut self) -> Result<Observed, String> {
        let seen = self.look().await?;
        Ok(self.understand(seen).await)
    }

    /// Asks the runtime, which may take its time.
    pub(super) fn look(&self) -> BoxFuture<'static, Seen> {
        let (runtime, uid) = (self.parts.runtime.clone(), self.uid.clone());
        let seen = async move { runtime.sandboxes_of(&uid).await };
        seen.map_err(|error| error.to_string()).boxed()
    }

    pub(super) async fn understand(&mut self, seen: Vec<runtime::Sandbox>) -> Observed {
        let mut observed = Observed {
            sandboxes: seen.iter().map(|sandbox| self.sandbox(sandbox)).collect(),
            failures: self.failures.clone(),
            past_attempts: self.past_attempts(),
            ..Observed::default()
        };
        let mut containers: Vec<_> =
            seen.into_iter().flat_map(|sandbox| sandbox.containers).collect();
        runtime::newest_first(&mut containers);
        for container in containers {
            observed.containers.push(self.container(container).await);
        }
        observed.health = self.health(&observed);
        observed
    }

    /// What runs is told to the probes, and what they say of it is part of what is so.
    fn health(&self, observed: &Observed) -> BTreeMap<String, Health> {
        let prober = &self.parts.prober;
        prober.add_pod(&self.pod);
        let ip = self.addresses(observed).first().map(ToString::to_string).unwrap_or_default();
        let lasting = self.pod.spec.as_ref().into_iter();
        for (_, container) in lasting.flat_map(lifecycle::containers::lasting_containers) {
            let latest = observed.latest(&container.name);
            let now = latest.map_or(ContainerNow::NotRunning, |latest| self.now(latest));
            prober.observe(&self.uid, &ip, &container.name, now);
        }
        // Who ends is looked at every second; no probe is to run as often as that.
        let judged = match self.stage {
            Stage::Syncing => prober.judge(&self.uid),
            Stage::Terminating | Stage::Terminated => prober.results(&self.uid),
        };
        judged.into_iter().map(|(name, verdict)| (name, health(verdict))).collect()
    }

    fn now(&self, container: &Container) -> ContainerNow {
        let State::Running { started_at } = container.state else {
            return ContainerNow::NotRunning;
        };
        let inherited = started_at + INHERITED_AFTER < self.parts.started_at;
        let restored = inherited.then(|| self.restored(container)).flatten();
        ContainerNow::Running { id: container.id.clone(), since: started_at, restored }
    }

    /// What the API said of this very container before the agent was restarted (N-95).
    fn restored(&self, container: &Container) -> Option<Restored> {
        let status = self.pod.status.as_ref()?;
        let init = status.init_container_statuses.iter().flatten();
        let mut all = init.chain(status.container_statuses.iter().flatten());
        let id = format!("{}://{}", self.parts.runtime_name, container.id);
        let known = all.find(|known| known.container_id.as_deref() == Some(&id))?;
        Some(Restored { ready: known.ready, started: known.started == Some(true) })
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
        let resources = self.parts.allocations.applied_to(&self.uid, &seen.name);
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
            resources,
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
        let written = notes.map(|notes| last_words::termination_message(notes, exit.code, log));
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
        let dir = self.log_dir();
        self.memory.past_attempts.get_or_insert_with(|| last_words::past_attempts(&dir)).clone()
    }

    pub(super) fn forget_container(&mut self, id: &str) {
        self.memory.messages.remove(id);
    }
}

fn health(verdict: probes::Verdict) -> Health {
    let success = |yes: bool| if yes { Outcome::Success } else { Outcome::Failure };
    let failed = |kind: probes::Kind| verdict.failed == Some(kind);
    let startup = match (verdict.started, failed(probes::Kind::Startup)) {
        (true, _) => Outcome::Success,
        (false, true) => Outcome::Failure,
        (false, false) => Outcome::Unknown,
    };
    Health {
        startup,
        readiness: success(verdict.ready),
        liveness: success(!failed(probes::Kind::Liveness)),
        container_id: verdict.container_id,
    }
}
