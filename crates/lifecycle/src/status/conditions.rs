//! The conditions of a pod: what is True, what is not, and why not (N-74, N-78 to N-80).

use super::{Facts, Verdict, whole_second};
use crate::containers::{Kind, can_restart_all, init_containers, lasting_containers};
use crate::observed::Observed;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Condition types that the node owns: values written by others are overwritten (N-75).
const OWNED: &[&str] = &[
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "PodScheduled",
    "AllContainersRestarting",
    "PodResizePending",
    "PodResizeInProgress",
];

/// Also written by others: the eviction API, the scheduler and the pod garbage collector.
pub(super) const DISRUPTION_TARGET: &str = "DisruptionTarget";

pub(super) fn is_owned(type_: &str) -> bool {
    OWNED.contains(&type_)
}

/// What the conditions are made from.
pub(super) struct Basis<'a> {
    pub(super) pod: &'a core::Pod,
    pub(super) spec: &'a core::PodSpec,
    pub(super) observed: &'a Observed,
    pub(super) facts: &'a Facts<'a>,
    pub(super) previous: &'a core::PodStatus,
    pub(super) init: &'a [core::ContainerStatus],
    pub(super) regular: &'a [core::ContainerStatus],
    pub(super) phase: &'a str,
    pub(super) restarting_all: bool,
}

/// True, or False with a reason and a message.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Value {
    is_true: bool,
    reason: Option<&'static str>,
    message: Option<String>,
}

const TRUE: Value = Value { is_true: true, reason: None, message: None };

fn not(reason: &'static str, message: impl Into<Option<String>>) -> Value {
    Value { is_true: false, reason: Some(reason), message: message.into() }
}

/// Conditions of others first, then the node's in upstream's order.
pub(super) fn conditions(basis: &Basis) -> Vec<core::PodCondition> {
    let given = |type_: &str| basis.facts.conditions.iter().any(|c| c.type_ == type_);
    let foreign = |c: &&core::PodCondition| !is_owned(&c.type_) && !given(&c.type_);
    let before = basis.previous.conditions.as_deref().unwrap_or_default();
    let mut all: Vec<_> = before.iter().filter(foreign).cloned().collect();
    all.extend(basis.facts.conditions.iter().cloned());
    let containers_ready = containers_ready(basis);
    let ready = ready(basis, &containers_ready, &all);
    for (type_, value) in [
        ("PodReadyToStartContainers", ready_to_start(basis)),
        ("Initialized", initialized(basis)),
        ("Ready", ready),
        ("ContainersReady", containers_ready),
        ("PodScheduled", TRUE),
    ] {
        all.push(condition(basis, type_, value));
    }
    if let Some(value) = all_restarting(basis) {
        all.push(condition(basis, "AllContainersRestarting", value));
    }
    all
}

/// The node terminated this pod (T-NODE-58).
pub(super) fn disruption(basis: &Basis, verdict: &Verdict) -> core::PodCondition {
    let reason = Some(super::foreign::BY_NODE);
    let value = Value { is_true: true, reason, message: Some(verdict.message.clone()) };
    condition(basis, DISRUPTION_TARGET, value)
}

fn condition(basis: &Basis, type_: &str, value: Value) -> core::PodCondition {
    let status = if value.is_true { "True" } else { "False" };
    let before = basis.previous.conditions.iter().flatten().find(|c| c.type_ == type_);
    let unchanged = before.filter(|before| before.status == status);
    let since = unchanged.and_then(|before| before.last_transition_time.clone());
    core::PodCondition {
        type_: type_.into(),
        status: status.into(),
        reason: value.reason.map(Into::into),
        message: value.message,
        last_transition_time: Some(since.unwrap_or(Time(whole_second(basis.facts.now)))),
        last_probe_time: None,
        observed_generation: basis.pod.metadata.generation,
    }
}

/// A ready sandbox with a network.
fn ready_to_start(basis: &Basis) -> Value {
    let connected =
        |sandbox: &&crate::observed::Sandbox| sandbox.host_network || !sandbox.addresses.is_empty();
    let is_true = basis.observed.ready_sandbox().filter(connected).is_some();
    Value { is_true, reason: None, message: None }
}

fn initialized(basis: &Basis) -> Value {
    let (mut unknown, mut incomplete) = (Vec::new(), Vec::new());
    for (kind, container) in init_containers(basis.spec) {
        let status = basis.init.iter().find(|status| status.name == container.name);
        let complete = status.map(|status| match kind {
            Kind::Sidecar => status.started == Some(true),
            Kind::Init | Kind::Regular | Kind::Ephemeral => status.ready,
        });
        match complete {
            None => unknown.push(container.name.as_str()),
            Some(false) => incomplete.push(container.name.as_str()),
            Some(true) => {}
        }
    }
    if basis.phase == "Succeeded" && unknown.is_empty() {
        return Value { is_true: true, reason: Some("PodCompleted"), message: None };
    }
    if was_true(basis, "Initialized") || basis.regular.iter().any(has_started) {
        return TRUE;
    }
    match list(&[("unknown", &unknown), ("incomplete", &incomplete)]) {
        Some(message) => not("ContainersNotInitialized", message),
        None => TRUE,
    }
}

fn containers_ready(basis: &Basis) -> Value {
    let (mut unknown, mut unready) = (Vec::new(), Vec::new());
    for (_, container) in lasting_containers(basis.spec) {
        let mut statuses = basis.init.iter().chain(basis.regular);
        match statuses.find(|status| status.name == container.name).map(|status| status.ready) {
            None => unknown.push(container.name.as_str()),
            Some(false) => unready.push(container.name.as_str()),
            Some(true) => {}
        }
    }
    if basis.phase == "Succeeded" && unknown.is_empty() {
        return not("PodCompleted", None);
    }
    if basis.phase == "Failed" {
        return not("PodFailed", None);
    }
    match list(&[("unknown", &unknown), ("unready", &unready)]) {
        Some(message) => not("ContainersNotReady", message),
        None => TRUE,
    }
}

/// Ready requires ready containers and True for every readiness gate (N-79).
fn ready(basis: &Basis, containers_ready: &Value, all: &[core::PodCondition]) -> Value {
    if !containers_ready.is_true {
        return containers_ready.clone();
    }
    let gates = basis.spec.readiness_gates.as_deref().unwrap_or_default();
    let closed: Vec<String> = gates
        .iter()
        .filter_map(|gate| {
            let name = &gate.condition_type;
            match all.iter().find(|condition| condition.type_ == *name) {
                None => Some(format!(
                    "corresponding condition of pod readiness gate {name:?} does not exist."
                )),
                Some(c) if c.status != "True" => Some(format!(
                    "the status of pod readiness gate {name:?} is not \"True\", but {}",
                    c.status
                )),
                Some(_) => None,
            }
        })
        .collect();
    if closed.is_empty() { TRUE } else { not("ReadinessGatesNotReady", closed.join(", ")) }
}

/// True while all containers are being removed for a restart, else False (T-NODE-68). Only pods with a rule that
/// can restart all containers have this condition.
fn all_restarting(basis: &Basis) -> Option<Value> {
    if !can_restart_all(basis.spec) {
        return None;
    }
    Some(match basis.phase {
        "Succeeded" => not("PodCompleted", None),
        "Failed" => not("PodFailed", None),
        _ if basis.restarting_all => Value {
            is_true: true,
            reason: Some("RestartAllContainersStarted"),
            message: Some("container exited with restart policy rule".into()),
        },
        _ => Value { is_true: false, reason: None, message: None },
    })
}

fn was_true(basis: &Basis, type_: &str) -> bool {
    let mut before = basis.previous.conditions.iter().flatten();
    before.any(|c| c.type_ == type_ && c.status == "True")
}

/// It runs or ran at some time.
fn has_started(status: &core::ContainerStatus) -> bool {
    let runs_or_ran =
        |state: &core::ContainerState| state.running.is_some() || state.terminated.is_some();
    status.state.as_ref().is_some_and(runs_or_ran)
        || status.last_state.as_ref().is_some_and(runs_or_ran)
}

/// `containers with unready status: [a b]`
fn list(groups: &[(&str, &[&str])]) -> Option<String> {
    let parts: Vec<String> = groups
        .iter()
        .filter(|(_, names)| !names.is_empty())
        .map(|(what, names)| format!("containers with {what} status: [{}]", names.join(" ")))
        .collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}
