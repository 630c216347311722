//! The status of a pod: its phase, conditions and container statuses, from what was observed.
//!
//!     spec, observed ──▶ container statuses ──▶ phase ──▶ conditions ──▶ status
//!
//! Computed as a whole each time. `previous` is needed for what must not change (start time, transition times,
//! a terminal phase) and for what is known from nowhere else (a container whose record is gone).
//! Not here: when it is written (`node`).

mod applied;
mod conditions;
mod containers;
mod foreign;
mod phase;
mod unknown_exits;

pub use foreign::{is_written_by_node, take_over};

use crate::containers::{AfterExit, after_exit};
use crate::observed::{Container, Observed, State};
use crate::resources::qos_class;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerStatus, HostIP, Pod, PodCondition, PodIP, PodSpec, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::net::IpAddr;

/// What the node knows besides what it observed.
#[derive(Debug, Clone)]
pub struct Facts<'a> {
    pub now: Timestamp,
    /// Of the Node object: internal addresses first, the primary family first (N-73).
    pub host_ips: &'a [IpAddr],
    /// Of the sandbox, the primary family first. Empty: not known, then earlier ones are kept.
    pub pod_ips: &'a [IpAddr],
    /// The prefix before `://` in container IDs: `landfall`, `containerd`.
    pub runtime: &'a str,
    pub stage: WorkerState,
    /// The node itself terminates this pod: eviction, preemption, shutdown, a deadline.
    pub verdict: Option<&'a Verdict>,
    /// Conditions from other parts of the node (resizes). They replace those of the same type.
    pub conditions: &'a [PodCondition],
}

/// State of the pod's worker (T-NODE-1). It never goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkerState {
    /// Containers may be started.
    Syncing,
    /// Containers are only stopped.
    Terminating,
    /// Nothing runs any more: the phase becomes terminal (T-NODE-50 to 52).
    Terminated,
}

/// Why the node terminates a pod that was not deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// `Evicted`, `Preempting`, `DeadlineExceeded`, `Terminated`
    pub reason: String,
    pub message: String,
    /// It is a disruption, and the pod gets the condition DisruptionTarget (T-NODE-58, 80).
    pub disruption: bool,
}

/// The reason of a node shutdown: the only verdict that keeps the phase Succeeded (T-NODE-88).
pub const REASON_SHUTDOWN: &str = "Terminated";

/// Total size of the messages of one pod's containers (T-NODE-59).
const MESSAGES_MAX: usize = 12 * 1024;

/// The whole status. Its phase may be terminal while containers still run; [`withheld`] is what may be
/// published meanwhile.
///
/// `pod` has the resources that the node has allocated to it. `previous` is the status that was published
/// last, by this agent or an earlier one.
pub fn status(pod: &Pod, observed: &Observed, facts: &Facts, previous: &PodStatus) -> PodStatus {
    let Some(spec) = &pod.spec else { return previous.clone() };
    let over = facts.stage == WorkerState::Terminated;
    let restarting_all = restart_all_is_pending(spec, observed);
    let was_restarting = restarting_all || condition_is_true(previous, "AllContainersRestarting");
    let basis = containers::Basis {
        spec,
        observed,
        facts,
        previous,
        deleted: pod.metadata.deletion_timestamp.is_some(),
        restarting_all: was_restarting,
    };
    let mut init = containers::init_statuses(&basis);
    let mut regular = containers::regular_statuses(&basis, &init);
    let mut ephemeral = containers::ephemeral_statuses(&basis);
    if over {
        unknown_exits::finish_containers(spec, &mut init, &mut regular);
    }
    let (phase, reason, message) =
        phase_and_reason(pod, spec, observed, facts, previous, &init, &regular);
    let basis = conditions::Basis {
        pod,
        spec,
        observed,
        facts,
        previous,
        init: &init,
        regular: &regular,
        phase: &phase,
        restarting_all,
    };
    let mut conditions = conditions::conditions(&basis);
    if let Some(verdict) = facts.verdict.filter(|verdict| verdict.disruption) {
        conditions.retain(|condition| condition.type_ != "DisruptionTarget");
        conditions.insert(0, conditions::disruption(&basis, verdict));
    }
    let count = init.len() + regular.len() + ephemeral.len();
    for status in init.iter_mut().chain(&mut regular).chain(&mut ephemeral) {
        shorten_messages(status, MESSAGES_MAX / count.max(1));
    }
    let status =
        PodStatus { phase: Some(phase), reason, message, ..base(pod, spec, facts, previous) };
    let pod_ips = pod_ips(spec, observed, facts, previous);
    PodStatus {
        conditions: Some(conditions),
        init_container_statuses: Some(init).filter(|list| !list.is_empty()),
        container_statuses: Some(regular).filter(|list| !list.is_empty()),
        ephemeral_container_statuses: Some(ephemeral).filter(|list| !list.is_empty()),
        pod_ip: pod_ips.first().cloned(),
        pod_ips: Some(pod_ips.into_iter().map(|ip| PodIP { ip }).collect::<Vec<_>>())
            .filter(|list| !list.is_empty()),
        ..status
    }
}

/// What does not depend on the containers. Fields of others are left as they are (N-75).
fn base(pod: &Pod, spec: &PodSpec, facts: &Facts, previous: &PodStatus) -> PodStatus {
    let qos = || qos_class(spec).as_str().to_owned();
    let generation = pod.metadata.generation.max(previous.observed_generation);
    let host_ips: Vec<HostIP> =
        one_per_family(facts.host_ips, None).into_iter().map(|ip| HostIP { ip }).collect();
    let now = Time(whole_second(facts.now));
    let mut status = PodStatus {
        observed_generation: generation,
        start_time: Some(previous.start_time.clone().unwrap_or(now)),
        qos_class: Some(previous.qos_class.clone().unwrap_or_else(qos)),
        ..previous.clone()
    };
    if !host_ips.is_empty() {
        status.host_ip = host_ips.first().map(|first| first.ip.clone());
        status.host_ips = Some(host_ips);
    }
    status
}

/// Reason and message belong to the phase and change with it (N-77).
fn phase_and_reason(
    pod: &Pod,
    spec: &PodSpec,
    observed: &Observed,
    facts: &Facts,
    previous: &PodStatus,
    init: &[ContainerStatus],
    regular: &[ContainerStatus],
) -> (String, Option<String>, Option<String>) {
    // A terminal phase never changes, no matter which client wrote it (T-NODE-57).
    let published = [Some(previous), pod.status.as_ref()];
    if let Some(last) = published.into_iter().flatten().find(|status| is_terminal(status)) {
        let phase = last.phase.clone().unwrap_or_default();
        return (phase, last.reason.clone(), last.message.clone());
    }
    let over = facts.stage == WorkerState::Terminated && !is_static(pod);
    let begun = has_begun(spec, observed);
    let restarting_all = restart_all_is_pending(spec, observed);
    let counted = phase::Counted { spec, init, regular, begun, over, restarting_all };
    let mut phase = phase::phase(&counted);
    if over && !api::pod::is_terminal_phase(phase) {
        phase = "Failed";
    }
    if let Some(verdict) = facts.verdict {
        let spared = phase == "Succeeded" && verdict.reason == REASON_SHUTDOWN;
        let phase = if spared { "Succeeded" } else { "Failed" };
        return (phase.into(), Some(verdict.reason.clone()), Some(verdict.message.clone()));
    }
    match previous.phase.as_deref() == Some(phase) {
        true => (phase.into(), previous.reason.clone(), previous.message.clone()),
        false => (phase.into(), None, None),
    }
}

/// A regular container has started in the newest sandbox.
fn has_begun(spec: &PodSpec, observed: &Observed) -> bool {
    let Some(sandbox) = observed.sandboxes.first() else { return false };
    let started = |container: &Container| match &container.state {
        State::Running { .. } => true,
        State::Exited(exit) => exit.started_at.is_some(),
        State::Created | State::Unknown => false,
    };
    let regular = |container: &Container| spec.containers.iter().any(|c| c.name == container.name);
    let mut all = observed.containers.iter().filter(|c| c.sandbox == sandbox.id);
    all.any(|container| regular(container) && started(container))
}

/// One address per family (N-73). A stopped pod keeps the addresses it had (T-NODE-56).
fn pod_ips(
    spec: &PodSpec,
    observed: &Observed,
    facts: &Facts,
    previous: &PodStatus,
) -> Vec<String> {
    let known = || previous.pod_ips.iter().flatten().map(|ip| ip.ip.clone()).collect::<Vec<_>>();
    let primary = facts.host_ips.first().map(IpAddr::is_ipv6);
    if spec.host_network.unwrap_or(false) {
        let known = known();
        return if known.is_empty() { one_per_family(facts.host_ips, primary) } else { known };
    }
    let addresses = match facts.pod_ips {
        [] => observed.ready_sandbox().map_or(&[][..], |sandbox| &sandbox.addresses),
        given => given,
    };
    if addresses.is_empty() && facts.stage != WorkerState::Syncing {
        return known();
    }
    one_per_family(addresses, primary)
}

/// The first of each family, the primary family first.
fn one_per_family(addresses: &[IpAddr], primary_is_v6: Option<bool>) -> Vec<String> {
    let first = |v6: bool| addresses.iter().find(|ip| ip.is_ipv6() == v6);
    let primary = primary_is_v6.or_else(|| addresses.first().map(IpAddr::is_ipv6)).unwrap_or(false);
    [first(primary), first(!primary)].into_iter().flatten().map(ToString::to_string).collect()
}

/// A container exited in a way that restarts all containers, which has not happened yet (T-NODE-68).
fn restart_all_is_pending(spec: &PodSpec, observed: &Observed) -> bool {
    let mut all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    all.any(|container| {
        let exit = observed.latest(&container.name).and_then(Container::exit);
        exit.is_some_and(|exit| after_exit(spec, container, exit) == AfterExit::RestartAll)
    })
}

fn condition_is_true(status: &PodStatus, type_: &str) -> bool {
    status.conditions.iter().flatten().any(|c| c.type_ == type_ && c.status == "True")
}

fn shorten_messages(status: &mut ContainerStatus, bytes: usize) {
    for state in [&mut status.state, &mut status.last_state].into_iter().flatten() {
        if let Some(message) = state.terminated.as_mut().and_then(|end| end.message.as_mut()) {
            message.truncate(message.floor_char_boundary(bytes));
        }
    }
}

/// All times in a status are whole seconds (N-88).
fn whole_second(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

/// What may be published while a container may still run: a terminal phase, its reason and the condition
/// DisruptionTarget are held back until nothing runs (T-NODE-53, 58).
///
/// `published` is the status that was really published last, not the one computed last: otherwise a terminal
/// phase would pass the second time.
pub fn withheld(mut status: PodStatus, published: &PodStatus) -> PodStatus {
    if !is_terminal(&status) || is_terminal(published) {
        return status;
    }
    status.phase = published.phase.clone();
    status.reason = published.reason.clone();
    status.message = published.message.clone();
    let disruption = |conditions: &Option<Vec<PodCondition>>| {
        conditions.iter().flatten().find(|c| c.type_ == "DisruptionTarget").cloned()
    };
    let before = disruption(&published.conditions);
    let conditions = status.conditions.get_or_insert_default();
    conditions.retain(|condition| condition.type_ != "DisruptionTarget");
    conditions.splice(0..0, before);
    status
}

/// The phase of the pod is Succeeded or Failed.
pub fn is_terminal_pod(pod: &Pod) -> bool {
    pod.status.as_ref().is_some_and(is_terminal)
}

/// Succeeded or Failed.
pub fn is_terminal(status: &PodStatus) -> bool {
    status.phase.as_deref().is_some_and(api::pod::is_terminal_phase)
}

/// The pod comes from a manifest of its node, not from the API. Its phase is never forced to a terminal one (T-NODE-92).
pub fn is_static(pod: &Pod) -> bool {
    let source =
        pod.metadata.annotations.as_ref().and_then(|a| a.get("kubernetes.io/config.source"));
    source.is_some_and(|source| source != "api")
}

/// The status of a pod that the node does not admit (N-27, T-NODE-82). It never had containers.
pub fn rejected(pod: &Pod, facts: &Facts, reason: &str, message: &str) -> PodStatus {
    let previous = pod.status.clone().unwrap_or_default();
    let base = match &pod.spec {
        Some(spec) => base(pod, spec, facts, &previous),
        None => previous,
    };
    PodStatus {
        phase: Some("Failed".into()),
        reason: Some(reason.into()),
        message: Some(format!("Pod was rejected: {message}")),
        init_container_statuses: None,
        container_statuses: None,
        ephemeral_container_statuses: None,
        ..base
    }
}

/// When a pod with activeDeadlineSeconds has to terminate (T-NODE-77).
pub fn deadline(pod: &Pod, status: &PodStatus) -> Option<Timestamp> {
    let seconds = pod.spec.as_ref()?.active_deadline_seconds?;
    let start = status.start_time.as_ref()?.0;
    start.checked_add(jiff::SignedDuration::from_secs(seconds)).ok()
}

/// The verdict on a pod past its activeDeadlineSeconds (T-NODE-77).
pub fn deadline_exceeded(pod: &Pod, status: &PodStatus, now: Timestamp) -> Option<Verdict> {
    (deadline(pod, status)? <= now).then(|| Verdict {
        reason: "DeadlineExceeded".into(),
        message: "Pod was active on the node longer than the specified deadline".into(),
        disruption: false,
    })
}

#[cfg(test)]
mod tests;
