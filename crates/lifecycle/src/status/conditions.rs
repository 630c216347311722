//! The conditions of a pod: what is True, what is not, and why not (N-74, N-78 to N-80).

use super::{Facts, Verdict, whole_second};
use crate::containers::{Kind, init_containers, lasting_containers};
use crate::observed::Observed;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Those that the node owns: nobody else's word counts for them (N-75).
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
struct Word {
    so: bool,
    reason: Option<&'static str>,
    message: Option<String>,
}

const YES: Word = Word { so: true, reason: None, message: None };

fn no(reason: &'static str, message: impl Into<Option<String>>) -> Word {
    Word { so: false, reason: Some(reason), message: message.into() }
}

/// Foreign ones first, then the node's in upstream's order.
pub(super) fn conditions(basis: &Basis) -> Vec<core::PodCondition> {
    let given = |type_: &str| basis.facts.conditions.iter().any(|c| c.type_ == type_);
    let foreign = |c: &&core::PodCondition| !OWNED.contains(&c.type_.as_str()) && !given(&c.type_);
    let before = basis.previous.conditions.as_deref().unwrap_or_default();
    let mut all: Vec<_> = before.iter().filter(foreign).cloned().collect();
    all.extend(basis.facts.conditions.iter().cloned());
    if let Some(word) = all_restarting(basis) {
        all.push(condition(basis, "AllContainersRestarting", word));
    }
    let containers_ready = containers_ready(basis);
    let ready = ready(basis, &containers_ready, &all);
    for (type_, word) in [
        ("PodReadyToStartContainers", ready_to_start(basis)),
        ("Initialized", initialized(basis)),
        ("Ready", ready),
        ("ContainersReady", containers_ready),
        ("PodScheduled", YES),
    ] {
        all.push(condition(basis, type_, word));
    }
    all
}

/// T-NODE-58: this pod did not end by itself.
pub(super) fn disruption(basis: &Basis, verdict: &Verdict) -> core::PodCondition {
    let reason = Some("TerminationByKubelet");
    let word = Word { so: true, reason, message: Some(verdict.message.clone()) };
    condition(basis, "DisruptionTarget", word)
}

fn condition(basis: &Basis, type_: &str, word: Word) -> core::PodCondition {
    let status = if word.so { "True" } else { "False" };
    let before = basis.previous.conditions.iter().flatten().find(|c| c.type_ == type_);
    let unchanged = before.filter(|before| before.status == status);
    let since = unchanged.and_then(|before| before.last_transition_time.clone());
    core::PodCondition {
        type_: type_.into(),
        status: status.into(),
        reason: word.reason.map(Into::into),
        message: word.message,
        last_transition_time: Some(since.unwrap_or(Time(whole_second(basis.facts.now)))),
        last_probe_time: None,
        observed_generation: basis.pod.metadata.generation,
    }
}

/// A ready sandbox with a network.
fn ready_to_start(basis: &Basis) -> Word {
    let connected =
        |sandbox: &&crate::observed::Sandbox| sandbox.host_network || !sandbox.addresses.is_empty();
    let so = basis.observed.ready_sandbox().filter(connected).is_some();
    Word { so, reason: None, message: None }
}

fn initialized(basis: &Basis) -> Word {
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
        return Word { so: true, reason: Some("PodCompleted"), message: None };
    }
    if was_true(basis, "Initialized") || basis.regular.iter().any(has_started) {
        return YES;
    }
    match list(&[("unknown", &unknown), ("incomplete", &incomplete)]) {
        Some(message) => no("ContainersNotInitialized", message),
        None => YES,
    }
}

fn containers_ready(basis: &Basis) -> Word {
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
        return no("PodCompleted", None);
    }
    if basis.phase == "Failed" {
        return no("PodFailed", None);
    }
    match list(&[("unknown", &unknown), ("unready", &unready)]) {
        Some(message) => no("ContainersNotReady", message),
        None => YES,
    }
}

/// N-79: ready is what the containers are, and what every gate says.
fn ready(basis: &Basis, containers_ready: &Word, all: &[core::PodCondition]) -> Word {
    if !containers_ready.so {
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
    if closed.is_empty() { YES } else { no("ReadinessGatesNotReady", closed.join(", ")) }
}

/// T-NODE-68: True while the pod is being restarted in place, False ever after; absent if it never was.
fn all_restarting(basis: &Basis) -> Option<Word> {
    if basis.restarting_all {
        return Some(YES);
    }
    let before = basis.previous.conditions.iter().flatten();
    let ever = before.into_iter().any(|c| c.type_ == "AllContainersRestarting");
    ever.then_some(Word { so: false, reason: None, message: None })
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
    let said: Vec<String> = groups
        .iter()
        .filter(|(_, names)| !names.is_empty())
        .map(|(what, names)| format!("containers with {what} status: [{}]", names.join(" ")))
        .collect();
    (!said.is_empty()).then(|| said.join(", "))
}
