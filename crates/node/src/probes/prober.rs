//! Which containers are probed, and the results. `task` runs the probes.

use super::handler::Target;
use super::task;
use client::Recorder;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, Probe};
use lifecycle::probe::{self, Inherited, Input, Outcome, Output, PublishedContainer};
use runtime::Runtime;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;

pub(crate) use lifecycle::probe::ProbeKind;

/// The name of the probe in events.
pub(super) fn name(kind: ProbeKind) -> &'static str {
    match kind {
        ProbeKind::Startup => "Startup",
        ProbeKind::Liveness => "Liveness",
        ProbeKind::Readiness => "Readiness",
    }
}

fn probe_of(container: &Container, kind: ProbeKind) -> Option<&Probe> {
    match kind {
        ProbeKind::Startup => container.startup_probe.as_ref(),
        ProbeKind::Liveness => container.liveness_probe.as_ref(),
        ProbeKind::Readiness => container.readiness_probe.as_ref(),
    }
}

/// The status of a probe has changed. The agent wakes the pod's worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProbeResult {
    pub(crate) uid: String,
    pub(crate) container: String,
    pub(crate) container_id: String,
    pub(crate) kind: ProbeKind,
    pub(crate) success: bool,
}

/// Whether a container runs, as the pod's worker reports it. It reports Running after postStart has
/// finished.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum ContainerRun {
    #[default]
    NotRunning,
    Running {
        id: String,
        since: Timestamp,
        /// For a container that ran before this agent started: its last status (N-95).
        restored: Option<Restored>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Restored {
    pub(crate) ready: bool,
    pub(crate) started: bool,
}

/// The combined status of the probes of a running container. Without probes it is started and ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProbeStatus {
    pub(crate) container_id: String,
    pub(crate) started: bool,
    pub(crate) ready: bool,
    /// The liveness or startup probe, if it has reached its failure threshold: the container must
    /// be restarted.
    pub(crate) failed: Option<ProbeKind>,
}

/// One sample of `prober_probe_total`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProbeCount {
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) uid: String,
    pub(crate) container: String,
    pub(crate) kind: ProbeKind,
    /// `successful`, `failed` or `unknown`.
    pub(crate) result: &'static str,
    pub(crate) count: u64,
}

/// Cheap to clone.
#[derive(Clone)]
pub(crate) struct Prober {
    pub(super) shared: Arc<Shared>,
}

pub(super) struct Shared {
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) recorder: Recorder,
    pub(super) results: mpsc::Sender<ProbeResult>,
    pub(super) started_at: tokio::time::Instant,
    pods: Mutex<BTreeMap<String, ProbedPod>>,
}

struct ProbedPod {
    pod: Arc<Pod>,
    ip: String,
    containers: BTreeMap<String, ProbedContainer>,
}

#[derive(Default)]
struct ProbedContainer {
    sidecar: bool,
    now: ContainerRun,
    probes: BTreeMap<ProbeKind, Worker>,
    counts: BTreeMap<(ProbeKind, &'static str), u64>,
}

struct Worker {
    machine: probe::Worker,
    /// Wakes the task before its period is over.
    kick: Arc<Notify>,
    task: AbortHandle,
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Prober {
    /// Probes wait while the `results` channel is full; the agent reads it.
    pub(crate) fn new(
        runtime: Arc<dyn Runtime>,
        recorder: Recorder,
        results: mpsc::Sender<ProbeResult>,
    ) -> Prober {
        let (started_at, pods) = (tokio::time::Instant::now(), Mutex::default());
        Prober { shared: Arc::new(Shared { runtime, recorder, results, started_at, pods }) }
    }

    /// Starts the probes of a pod (N-89). Idempotent; a newer object replaces the older.
    pub(crate) fn add_pod(&self, pod: &Arc<Pod>) {
        let Some(uid) = pod.metadata.uid.clone() else { return };
        let Some(spec) = &pod.spec else { return };
        let mut pods = self.shared.pods();
        if let Some(known) = pods.get_mut(&uid) {
            known.pod = pod.clone();
            return;
        }
        let is_sidecar = |init: &&Container| init.restart_policy.as_deref() == Some("Always");
        let sidecars = spec.init_containers.iter().flatten().filter(is_sidecar);
        let all = spec.containers.iter().map(|c| (c, false)).chain(sidecars.map(|c| (c, true)));
        let containers = all.map(|(container, sidecar)| {
            let probes = [ProbeKind::Startup, ProbeKind::Liveness, ProbeKind::Readiness]
                .into_iter()
                .filter_map(|kind| Some((kind, self.worker(&uid, container, kind)?)))
                .collect();
            let probed = ProbedContainer { sidecar, probes, ..ProbedContainer::default() };
            (container.name.clone(), probed)
        });
        let containers = containers.collect();
        pods.insert(uid, ProbedPod { pod: pod.clone(), ip: String::new(), containers });
    }

    fn worker(&self, uid: &str, container: &Container, kind: ProbeKind) -> Option<Worker> {
        let probe = probe_of(container, kind)?;
        let machine = probe::Worker::new(kind, probe);
        let kick = Arc::new(Notify::new());
        let subject =
            task::Subject { uid: uid.to_owned(), container: container.name.clone(), kind };
        let run = task::run(Arc::downgrade(&self.shared), subject, probe.clone(), kick.clone());
        Some(Worker { machine, kick, task: tokio::spawn(run).abort_handle() })
    }

    /// Stops all probes of a pod that has terminated or is gone.
    pub(crate) fn remove_pod(&self, uid: &str) {
        self.shared.pods().remove(uid);
    }

    /// The termination has begun: from now on regular containers have only readiness probes
    /// (T-NODE-60), sidecars keep all of theirs (T-NODE-61).
    pub(crate) fn stop_liveness(&self, uid: &str) {
        let mut pods = self.shared.pods();
        let Some(pod) = pods.get_mut(uid) else { return };
        for container in pod.containers.values_mut().filter(|container| !container.sidecar) {
            container.stop_liveness();
        }
    }

    /// This sidecar was sent its stop signal and has only readiness probes from now on (T-EDGE-12).
    pub(crate) fn stop_liveness_of(&self, uid: &str, container: &str) {
        let mut pods = self.shared.pods();
        let found = pods.get_mut(uid).and_then(|pod| pod.containers.get_mut(container));
        if let Some(container) = found.filter(|container| container.sidecar) {
            container.stop_liveness();
        }
    }

    /// Reports the state of a container and the pod's first address. The probes of a new instance
    /// start from the beginning.
    pub(crate) fn observe(&self, uid: &str, pod_ip: &str, container: &str, now: ContainerRun) {
        let mut pods = self.shared.pods();
        let Some(pod) = pods.get_mut(uid) else { return };
        pod.ip = pod_ip.to_owned();
        let Some(container) = pod.containers.get_mut(container) else { return };
        if container.now.id() == now.id() {
            return;
        }
        let restored = match &now {
            ContainerRun::Running { restored, .. } => *restored,
            ContainerRun::NotRunning => None,
        };
        container.now = now;
        let ContainerRun::Running { id, .. } = &container.now else { return };
        for (kind, worker) in &mut container.probes {
            let outcome = match (kind, restored) {
                (ProbeKind::Startup, Some(Restored { started: true, .. }))
                | (ProbeKind::Readiness, Some(Restored { ready: true, .. })) => Outcome::Success,
                _ => continue,
            };
            let inherited = Inherited { container_id: id.clone(), outcome };
            worker.machine = worker.machine.clone().inheriting(inherited);
        }
        container.tick_all(clock::now());
    }

    /// The status of every running container of the pod, for a new pod status. Also wakes the
    /// readiness probes of containers that have started but are not ready (N-92).
    pub(crate) fn refresh(&self, uid: &str) -> BTreeMap<String, ProbeStatus> {
        let pods = self.shared.pods();
        let Some(pod) = pods.get(uid) else { return BTreeMap::new() };
        for container in pod.containers.values() {
            let waiting = container.status().is_some_and(|status| status.started && !status.ready);
            if let Some(readiness) = container.probes.get(&ProbeKind::Readiness).filter(|_| waiting)
            {
                readiness.kick.notify_one();
            }
        }
        pod.statuses()
    }

    /// The same without waking probes: while a pod terminates, they keep to their periods.
    pub(crate) fn statuses(&self, uid: &str) -> BTreeMap<String, ProbeStatus> {
        self.shared.pods().get(uid).map(ProbedPod::statuses).unwrap_or_default()
    }

    /// The numbers of attempts, for metrics.
    pub(crate) fn counts(&self) -> Vec<ProbeCount> {
        let pods = self.shared.pods();
        let mut counts = Vec::new();
        for (uid, pod) in pods.iter() {
            let meta = |field: &Option<String>| field.clone().unwrap_or_default();
            for (name, container) in &pod.containers {
                counts.extend(container.counts.iter().map(|((kind, result), count)| ProbeCount {
                    namespace: meta(&pod.pod.metadata.namespace),
                    pod: meta(&pod.pod.metadata.name),
                    uid: uid.clone(),
                    container: name.clone(),
                    kind: *kind,
                    result,
                    count: *count,
                }));
            }
        }
        counts
    }
}

impl ContainerRun {
    fn id(&self) -> Option<&str> {
        match self {
            ContainerRun::NotRunning => None,
            ContainerRun::Running { id, .. } => Some(id),
        }
    }
}

impl ProbedPod {
    fn statuses(&self) -> BTreeMap<String, ProbeStatus> {
        let all = self.containers.iter();
        all.filter_map(|(name, container)| Some((name.clone(), container.status()?))).collect()
    }
}

impl ProbedContainer {
    /// Keeps only the readiness probe. The result of the startup probe stays, because a container
    /// that has not started is not ready (T-NODE-44).
    fn stop_liveness(&mut self) {
        self.probes.remove(&ProbeKind::Liveness);
        if let Some(startup) = self.probes.get(&ProbeKind::Startup) {
            startup.task.abort();
        }
    }

    fn status(&self) -> Option<ProbeStatus> {
        let container_id = self.now.id()?.to_owned();
        let outcome = |kind| match self.probes.get(&kind).map(|worker| worker.machine.result()) {
            Some((Some(id), outcome)) if id == container_id => Some(outcome),
            Some(_) => Some(probe::initial(kind)),
            None => None,
        };
        let succeeds = |kind| outcome(kind).is_none_or(|outcome| outcome == Outcome::Success);
        let started = succeeds(ProbeKind::Startup);
        let ready = started && succeeds(ProbeKind::Readiness);
        let has_failed = |kind: &ProbeKind| outcome(*kind) == Some(Outcome::Failure);
        let failed = [ProbeKind::Liveness, ProbeKind::Startup].into_iter().find(has_failed);
        Some(ProbeStatus { container_id, started, ready, failed })
    }

    /// The container as the state machines need it; None while it does not run.
    fn published(&self) -> Option<PublishedContainer> {
        let ContainerRun::Running { id, since, .. } = &self.now else { return None };
        let started = self.status()?.started;
        Some(PublishedContainer { container_id: id.clone(), running_since: Some(*since), started })
    }

    /// Tells every probe about a new container. When to probe is decided later.
    fn tick_all(&mut self, now: Timestamp) {
        let container = self.published();
        for worker in self.probes.values_mut() {
            worker.machine.step(now, Input::Tick(container.clone()));
        }
    }
}

/// What the tasks use.
impl Shared {
    fn pods(&self) -> MutexGuard<'_, BTreeMap<String, ProbedPod>> {
        self.pods.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The container to probe, if it is time to probe (N-90, N-93).
    pub(super) fn due(&self, subject: &task::Subject, now: Timestamp) -> Option<Target> {
        let mut pods = self.pods();
        let pod = pods.get_mut(&subject.uid)?;
        let container = pod.containers.get_mut(&subject.container)?;
        let published = container.published()?;
        let container_id = published.container_id.clone();
        let machine = &mut container.probes.get_mut(&subject.kind)?.machine;
        if machine.step(now, Input::Tick(Some(published))) != Output::ProbeNow {
            return None;
        }
        Some(Target {
            pod: pod.pod.clone(),
            container: subject.container.clone(),
            container_id,
            pod_ip: pod.ip.clone(),
            runtime: self.runtime.clone(),
        })
    }

    /// Adds the result of an attempt. Returns the new status if it has changed.
    pub(super) fn record(
        &self,
        subject: &task::Subject,
        container_id: &str,
        success: bool,
    ) -> Option<ProbeResult> {
        let mut pods = self.pods();
        let container = pods.get_mut(&subject.uid)?.containers.get_mut(&subject.container)?;
        let machine = &mut container.probes.get_mut(&subject.kind)?.machine;
        // The state machine ignores results of an earlier instance.
        let input = Input::Answered { container_id: container_id.to_owned(), success };
        let Output::Changed(outcome) = machine.step(clock::now(), input) else { return None };
        Some(ProbeResult {
            uid: subject.uid.clone(),
            container: subject.container.clone(),
            container_id: container_id.to_owned(),
            kind: subject.kind,
            success: outcome == Outcome::Success,
        })
    }

    /// Counts an attempt for metrics.
    pub(super) fn count(&self, subject: &task::Subject, result: &'static str) {
        let mut pods = self.pods();
        let container =
            pods.get_mut(&subject.uid).and_then(|pod| pod.containers.get_mut(&subject.container));
        if let Some(container) = container {
            *container.counts.entry((subject.kind, result)).or_default() += 1;
        }
    }
}
