//! What is probed in which pod, and what came of it. The tasks that do it are in `task`.

use super::handler::Target;
use super::task;
use client::Recorder;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, Probe};
use lifecycle::probe::{self, Inherited, Input, Outcome, Output, Seen};
use runtime::Runtime;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;

pub(crate) use lifecycle::probe::ProbeKind as Kind;

/// As events have it.
pub(super) fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Startup => "Startup",
        Kind::Liveness => "Liveness",
        Kind::Readiness => "Readiness",
    }
}

fn probe_of(container: &Container, kind: Kind) -> Option<&Probe> {
    match kind {
        Kind::Startup => container.startup_probe.as_ref(),
        Kind::Liveness => container.liveness_probe.as_ref(),
        Kind::Readiness => container.readiness_probe.as_ref(),
    }
}

/// A verdict has changed: time for the pod's worker to look again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProbeResult {
    pub(crate) uid: String,
    pub(crate) container: String,
    pub(crate) container_id: String,
    pub(crate) kind: Kind,
    pub(crate) success: bool,
}

/// What the pod's worker knows of a container. Running is told once postStart has ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum ContainerNow {
    #[default]
    NotRunning,
    Running {
        id: String,
        since: Timestamp,
        /// It ran before this agent did: what its status said then (N-95).
        restored: Option<Restored>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Restored {
    pub(crate) ready: bool,
    pub(crate) started: bool,
}

/// What is so of one running container. Without probes: started, ready and alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) container_id: String,
    pub(crate) started: bool,
    pub(crate) ready: bool,
    /// Liveness or Startup, once it has failed often enough: the container is to be restarted.
    pub(crate) failed: Option<Kind>,
}

/// One line of `prober_probe_total`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProbeCount {
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) uid: String,
    pub(crate) container: String,
    pub(crate) kind: Kind,
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
    pub(super) since: tokio::time::Instant,
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
    now: ContainerNow,
    probes: BTreeMap<Kind, Worker>,
    counts: BTreeMap<(Kind, &'static str), u64>,
}

struct Worker {
    machine: probe::Worker,
    kick: Arc<Notify>,
    task: AbortHandle,
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Prober {
    /// A full `results` channel holds the probes back; it is read by the agent.
    pub(crate) fn new(
        runtime: Arc<dyn Runtime>,
        recorder: Recorder,
        results: mpsc::Sender<ProbeResult>,
    ) -> Prober {
        let (since, pods) = (tokio::time::Instant::now(), Mutex::default());
        Prober { shared: Arc::new(Shared { runtime, recorder, results, since, pods }) }
    }

    /// Starts what is to be probed (N-89). Safe to repeat; a newer object replaces the older.
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
            let probes = [Kind::Startup, Kind::Liveness, Kind::Readiness]
                .into_iter()
                .filter_map(|kind| Some((kind, self.worker(&uid, container, kind)?)))
                .collect();
            let probed = ProbedContainer { sidecar, probes, ..ProbedContainer::default() };
            (container.name.clone(), probed)
        });
        let containers = containers.collect();
        pods.insert(uid, ProbedPod { pod: pod.clone(), ip: String::new(), containers });
    }

    fn worker(&self, uid: &str, container: &Container, kind: Kind) -> Option<Worker> {
        let probe = probe_of(container, kind)?;
        let machine = probe::Worker::new(kind, probe);
        let kick = Arc::new(Notify::new());
        let subject =
            task::Subject { uid: uid.to_owned(), container: container.name.clone(), kind };
        let run = task::run(Arc::downgrade(&self.shared), subject, probe.clone(), kick.clone());
        Some(Worker { machine, kick, task: tokio::spawn(run).abort_handle() })
    }

    /// The pod has ended or is gone.
    pub(crate) fn remove_pod(&self, uid: &str) {
        self.shared.pods().remove(uid);
    }

    /// Termination has begun: regular containers are only asked whether they are ready (T-NODE-60),
    /// sidecars are asked everything as before (T-NODE-61).
    pub(crate) fn stop_liveness(&self, uid: &str) {
        let mut pods = self.shared.pods();
        let Some(pod) = pods.get_mut(uid) else { return };
        for container in pod.containers.values_mut().filter(|container| !container.sidecar) {
            container.stop_liveness();
        }
    }

    /// This container, sidecar or not, was sent its stop signal (T-EDGE-12).
    pub(crate) fn stop_liveness_of(&self, uid: &str, container: &str) {
        let mut pods = self.shared.pods();
        let found = pods.get_mut(uid).and_then(|pod| pod.containers.get_mut(container));
        if let Some(container) = found.filter(|container| container.sidecar) {
            container.stop_liveness();
        }
    }

    /// Tells what runs now, and the pod's first address. A new instance starts from the beginning.
    pub(crate) fn observe(&self, uid: &str, pod_ip: &str, container: &str, now: ContainerNow) {
        let mut pods = self.shared.pods();
        let Some(pod) = pods.get_mut(uid) else { return };
        pod.ip = pod_ip.to_owned();
        let Some(container) = pod.containers.get_mut(container) else { return };
        if container.now.id() == now.id() {
            return;
        }
        let restored = match &now {
            ContainerNow::Running { restored, .. } => *restored,
            ContainerNow::NotRunning => None,
        };
        container.now = now;
        let ContainerNow::Running { id, .. } = &container.now else { return };
        for (kind, worker) in &mut container.probes {
            let outcome = match (kind, restored) {
                (Kind::Startup, Some(Restored { started: true, .. }))
                | (Kind::Readiness, Some(Restored { ready: true, .. })) => Outcome::Success,
                _ => continue,
            };
            let inherited = Inherited { container_id: id.clone(), outcome };
            worker.machine = worker.machine.clone().inheriting(inherited);
        }
        container.tick_all(clock::now());
    }

    /// What to say of every running container of the pod. Whoever computes a status asks this:
    /// readiness probes of containers that could be ready but are not run at once (N-92).
    pub(crate) fn judge(&self, uid: &str) -> BTreeMap<String, Verdict> {
        let pods = self.shared.pods();
        let Some(pod) = pods.get(uid) else { return BTreeMap::new() };
        for container in pod.containers.values() {
            let hopeful = container.verdict().is_some_and(|v| v.started && !v.ready);
            if let Some(readiness) = container.probes.get(&Kind::Readiness).filter(|_| hopeful) {
                readiness.kick.notify_one();
            }
        }
        pod.verdicts()
    }

    /// The same, leaving everything as it is: while a pod ends, probes keep to their periods.
    pub(crate) fn results(&self, uid: &str) -> BTreeMap<String, Verdict> {
        self.shared.pods().get(uid).map(ProbedPod::verdicts).unwrap_or_default()
    }

    /// For `/metrics`.
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

impl ContainerNow {
    fn id(&self) -> Option<&str> {
        match self {
            ContainerNow::NotRunning => None,
            ContainerNow::Running { id, .. } => Some(id),
        }
    }
}

impl ProbedPod {
    fn verdicts(&self) -> BTreeMap<String, Verdict> {
        let all = self.containers.iter();
        all.filter_map(|(name, container)| Some((name.clone(), container.verdict()?))).collect()
    }
}

impl ProbedContainer {
    /// Only readiness is asked from now on. Whether it has started is not: what was known of that stays so,
    /// for who has not started is not ready either (T-NODE-44).
    fn stop_liveness(&mut self) {
        self.probes.remove(&Kind::Liveness);
        if let Some(startup) = self.probes.get(&Kind::Startup) {
            startup.task.abort();
        }
    }

    fn verdict(&self) -> Option<Verdict> {
        let container_id = self.now.id()?.to_owned();
        let of = |kind| match self.probes.get(&kind).map(|worker| worker.machine.result()) {
            Some((Some(id), outcome)) if id == container_id => Some(outcome),
            Some(_) => Some(probe::initial(kind)),
            None => None,
        };
        let succeeds = |kind| of(kind).is_none_or(|outcome| outcome == Outcome::Success);
        let started = succeeds(Kind::Startup);
        let ready = started && succeeds(Kind::Readiness);
        let has_failed = |kind: &Kind| of(*kind) == Some(Outcome::Failure);
        let failed = [Kind::Liveness, Kind::Startup].into_iter().find(has_failed);
        Some(Verdict { container_id, started, ready, failed })
    }

    /// How the machines see the container; None while it does not run: then they rest.
    fn seen(&self) -> Option<Seen> {
        let ContainerNow::Running { id, since, .. } = &self.now else { return None };
        let started = self.verdict()?.started;
        Some(Seen { container_id: id.clone(), running_since: Some(*since), started })
    }

    /// Lets every probe meet a new container; whether it is time to probe is asked later.
    fn tick_all(&mut self, now: Timestamp) {
        let seen = self.seen();
        for worker in self.probes.values_mut() {
            worker.machine.step(now, Input::Tick(seen.clone()));
        }
    }
}

/// For the tasks.
impl Shared {
    fn pods(&self) -> MutexGuard<'_, BTreeMap<String, ProbedPod>> {
        self.pods.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Whom to ask, if it is time to ask at all (N-90, N-93).
    pub(super) fn due(&self, subject: &task::Subject, now: Timestamp) -> Option<Target> {
        let mut pods = self.pods();
        let pod = pods.get_mut(&subject.uid)?;
        let container = pod.containers.get_mut(&subject.container)?;
        let seen = container.seen()?;
        let container_id = seen.container_id.clone();
        let machine = &mut container.probes.get_mut(&subject.kind)?.machine;
        if machine.step(now, Input::Tick(Some(seen))) != Output::ProbeNow {
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

    /// Counts an attempt. What comes out is news, to be told.
    pub(super) fn record(
        &self,
        subject: &task::Subject,
        container_id: &str,
        success: bool,
    ) -> Option<ProbeResult> {
        let mut pods = self.pods();
        let container = pods.get_mut(&subject.uid)?.containers.get_mut(&subject.container)?;
        let machine = &mut container.probes.get_mut(&subject.kind)?.machine;
        // Late news of an instance that is gone is no news.
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

    pub(super) fn tally(&self, subject: &task::Subject, result: &'static str) {
        let mut pods = self.pods();
        let container =
            pods.get_mut(&subject.uid).and_then(|pod| pod.containers.get_mut(&subject.container));
        if let Some(container) = container {
            *container.counts.entry((subject.kind, result)).or_default() += 1;
        }
    }
}
