//! Observes one pod: what the runtime and the probes know, translated for `lifecycle`.

use super::Worker;
use crate::probes::{self, ContainerRun, Restored};
use crate::termination_message;
use futures::future::{BoxFuture, FutureExt, TryFutureExt};
use jiff::SignedDuration;
use lifecycle::observed::{Container, Exit, Health, Mounted, Observed, Sandbox, State, User};
use lifecycle::probe::Outcome;
use lifecycle::status::WorkerState;
use podconfig::ContainerAnnotations;
use runtime::{ContainerState, PodNetwork, SandboxState};
use std::collections::BTreeMap;
use std::path::Path;

/// What is read once and does not change: messages of ended containers, names of images.
#[derive(Default)]
pub(super) struct Cache {
    messages: BTreeMap<String, String>,
    images: BTreeMap<String, (String, String)>,
    past_attempts: Option<BTreeMap<String, u32>>,
}

/// A container that started this long before the agent keeps its published probe results (N-95).
const INHERITED_AFTER: SignedDuration = SignedDuration::from_secs(10);

/// The key by which `network` knows a sandbox.
pub(crate) fn network_key(uid: &str, attempt: u32) -> String {
    format!("{uid}-{attempt}")
}

/// The runtime's answer: the pod's sandboxes with their containers.
pub(super) type Listing = Result<Vec<runtime::Sandbox>, String>;

impl Worker {
    pub(super) async fn observe(&mut self) -> Result<Observed, String> {
        let sandboxes = self.list_sandboxes().await?;
        Ok(self.translate(sandboxes).await)
    }

    /// Asks the runtime, which may take a while; the worker can do other things meanwhile.
    pub(super) fn list_sandboxes(&self) -> BoxFuture<'static, Listing> {
        let (runtime, uid) = (self.deps.runtime.clone(), self.uid.clone());
        let listing = async move { runtime.sandboxes_of(&uid).await };
        listing.map_err(|error| error.to_string()).boxed()
    }

    pub(super) async fn translate(&mut self, sandboxes: Vec<runtime::Sandbox>) -> Observed {
        let mut observed = Observed {
            sandboxes: sandboxes.iter().map(|sandbox| self.sandbox(sandbox)).collect(),
            failures: self.attempts.failures.clone(),
            past_attempts: self.past_attempts(),
            ..Observed::default()
        };
        let mut containers: Vec<_> =
            sandboxes.into_iter().flat_map(|sandbox| sandbox.containers).collect();
        runtime::newest_first(&mut containers);
        for container in containers {
            observed.containers.push(self.container(container).await);
        }
        observed.health = self.health(&observed);
        observed
    }

    /// Tells the probes which containers run, and returns their results.
    fn health(&self, observed: &Observed) -> BTreeMap<String, Health> {
        let prober = &self.deps.prober;
        prober.add_pod(&self.pod);
        let ip = self.addresses(observed).first().map(ToString::to_string).unwrap_or_default();
        let lasting = self.pod.spec.as_ref().into_iter();
        for (_, container) in lasting.flat_map(lifecycle::containers::lasting_containers) {
            let latest = observed.latest(&container.name);
            let now = latest.map_or(ContainerRun::NotRunning, |latest| self.container_now(latest));
            prober.observe(&self.uid, &ip, &container.name, now);
        }
        // A terminating pod is observed every second; that must not run its probes more often.
        let results = match self.status.state {
            WorkerState::Syncing => prober.refresh(&self.uid),
            WorkerState::Terminating | WorkerState::Terminated => prober.statuses(&self.uid),
        };
        results.into_iter().map(|(name, verdict)| (name, health(verdict))).collect()
    }

    fn container_now(&self, container: &Container) -> ContainerRun {
        let State::Running { started_at } = container.state else {
            return ContainerRun::NotRunning;
        };
        let inherited = started_at + INHERITED_AFTER < self.deps.started_at;
        let restored = inherited.then(|| self.restored(container)).flatten();
        ContainerRun::Running { id: container.id.clone(), since: started_at, restored }
    }

    /// The results that the API has of this instance from before the agent's restart (N-95).
    fn restored(&self, container: &Container) -> Option<Restored> {
        let status = self.pod.status.as_ref()?;
        let init = status.init_container_statuses.iter().flatten();
        let mut all = init.chain(status.container_statuses.iter().flatten());
        let id = format!("{}://{}", self.deps.runtime_name, container.id);
        let known = all.find(|known| known.container_id.as_deref() == Some(&id))?;
        Some(Restored { ready: known.ready, started: known.started == Some(true) })
    }

    fn sandbox(&self, known: &runtime::Sandbox) -> Sandbox {
        let host_network = known.network == PodNetwork::Host;
        let addresses = match (&self.deps.network, host_network) {
            (_, true) => self.deps.facts.host_ips.clone(),
            (Some(network), false) => {
                let attached = network.find(&network_key(&self.uid, known.attempt));
                attached.map(|attachment| attachment.addresses).unwrap_or_default()
            }
            (None, false) => known.addresses.clone(),
        };
        Sandbox {
            id: known.id.clone(),
            attempt: known.attempt,
            ready: known.state == SandboxState::Ready,
            host_network,
            addresses,
        }
    }

    async fn container(&mut self, known: runtime::Container) -> Container {
        let (image, image_id) = self.image_names(&known).await;
        let resources = self.deps.allocations.applied_to(&self.uid, &known.name);
        let notes = ContainerAnnotations::read(&known.annotations);
        let state = match known.state {
            ContainerState::Created => State::Created,
            ContainerState::Running { started_at } => State::Running { started_at },
            ContainerState::Unknown => State::Unknown,
            ContainerState::Exited(exit) => {
                let message = self.message(&known.id, &exit, notes.as_ref(), &known.log_path);
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
            id: known.id,
            name: known.name,
            sandbox: known.sandbox,
            attempt: known.attempt,
            state,
            image,
            image_id,
            fingerprint: notes.map(|notes| notes.hash).unwrap_or_default(),
            resources,
            user: known.user.map(|(uid, gid, groups)| User {
                uid: uid.into(),
                gid: gid.into(),
                groups: groups.into_iter().map(i64::from).collect(),
            }),
            mounts: known
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
    async fn image_names(&mut self, known: &runtime::Container) -> (String, String) {
        if let Some(names) = self.observations.images.get(&known.image) {
            return names.clone();
        }
        let id = runtime::ImageReference(known.image.clone());
        let Ok(Some(image)) = self.deps.runtime.images().find(&id).await else {
            return (known.image_name.clone(), known.image.clone());
        };
        let requested = known.image_name.as_str();
        let tag = image.tags.iter().find(|tag| tag.ends_with(requested)).or(image.tags.first());
        let names = (
            tag.cloned().unwrap_or_else(|| known.image_name.clone()),
            image.digests.first().cloned().unwrap_or(image.id),
        );
        self.observations.images.insert(known.image.clone(), names.clone());
        names
    }

    /// The termination message: the file's text or the end of the log (T-NODE-59), after the runtime's own
    /// message (N-62).
    fn message(
        &mut self,
        id: &str,
        exit: &runtime::Exit,
        notes: Option<&ContainerAnnotations>,
        log: &Path,
    ) -> String {
        if let Some(message) = self.observations.messages.get(id) {
            return message.clone();
        }
        let written = notes.map(|notes| termination_message::read(notes, exit.code, log));
        let written = written.unwrap_or_default();
        let message = match (exit.message.is_empty(), written.is_empty()) {
            (false, false) => format!("{}: {written}", exit.message),
            (false, true) => exit.message.clone(),
            (true, _) => written,
        };
        self.observations.messages.insert(id.to_owned(), message.clone());
        message
    }

    /// Restart counts continue from the log files when the runtime's records are lost (N-48).
    fn past_attempts(&mut self) -> BTreeMap<String, u32> {
        let dir = self.log_dir();
        self.observations
            .past_attempts
            .get_or_insert_with(|| termination_message::past_attempts(&dir))
            .clone()
    }

    pub(super) fn forget_container(&mut self, id: &str) {
        self.observations.messages.remove(id);
    }
}

fn health(verdict: probes::ProbeStatus) -> Health {
    let success = |yes: bool| if yes { Outcome::Success } else { Outcome::Failure };
    let failed = |kind: probes::ProbeKind| verdict.failed == Some(kind);
    let startup = match (verdict.started, failed(probes::ProbeKind::Startup)) {
        (true, _) => Outcome::Success,
        (false, true) => Outcome::Failure,
        (false, false) => Outcome::Unknown,
    };
    Health {
        startup,
        readiness: success(verdict.ready),
        liveness: success(!failed(probes::ProbeKind::Liveness)),
        container_id: verdict.container_id,
    }
}
