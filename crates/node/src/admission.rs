//! Decides whether a pod may run on this node. The agent asks once per pod (N-27 to N-30).
//!
//! Pure: `dispatch` collects the inputs and acts on the decision. What only a scheduler considers
//! is not checked again (N-30): unschedulable nodes, NoSchedule taints, preferences. "Row" refers
//! to the table of N-27.

mod fit;
mod preemption;
mod sysctls;

#[cfg(test)]
mod tests;

use crate::static_pods::{is_critical, is_static};
use k8s_openapi::api::core::v1::{AppArmorProfile, Node, Pod, Taint};
use lifecycle::placement;
use lifecycle::resources::{Qos, qos_class};
use lifecycle::status;
use std::sync::Arc;

/// The state of the node that admission depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodeState<'a> {
    pub(crate) node: &'a Node,
    /// Types of the pressure conditions that are true, oldest first: `MemoryPressure`, …
    pub(crate) pressure: &'a [String],
    /// Allowed sysctls besides the safe ones: names, or prefixes that end in `*`.
    pub(crate) sysctls: &'a [String],
    pub(crate) apparmor: bool,
    pub(crate) strict_groups: bool,
    pub(crate) shutting_down: bool,
}

/// Why a pod is rejected: reason and message of the event. `status.message` has `Pod was rejected:
/// ` before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rejection {
    pub(crate) reason: String,
    pub(crate) message: String,
}

impl Rejection {
    fn new(reason: &str, message: impl Into<String>) -> Rejection {
        Rejection { reason: reason.to_owned(), message: message.into() }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Decision {
    Admit,
    /// A critical pod preempts these pods (T-NODE-83): terminate them first.
    AdmitAfter(Vec<Arc<Pod>>),
    Reject(Rejection),
}

/// `admitted` are the pods that use capacity of this node, with the resources that they were
/// granted. If it contains the pod itself, that is not counted twice.
pub(crate) fn decide(state: &NodeState, admitted: &[Arc<Pod>], pod: &Pod) -> Decision {
    let before = under_pressure(state, pod)
        .or_else(|| sysctls::forbidden(pod, state.sysctls))
        .or_else(|| wrong_os(state, pod))
        .or_else(|| groups_policy(state, pod));
    if let Some(rejection) = before {
        return Decision::Reject(rejection);
    }
    let uid = &pod.metadata.uid;
    let others: Vec<&Arc<Pod>> =
        admitted.iter().filter(|other| other.metadata.uid != *uid).collect();
    let short = fit::shortages(state.node, &others, pod);
    let failure = placement_failure(state.node, &others, pod);
    let victims = match (short.is_empty(), failure) {
        (true, None) => Vec::new(),
        // Preemption would not help.
        (_, Some(rejection)) if is_critical(pod) || short.is_empty() => {
            return Decision::Reject(rejection);
        }
        (false, None) if is_critical(pod) => match preemption::victims(pod, &others, &short) {
            Ok(victims) => victims,
            Err(rejection) => return Decision::Reject(rejection),
        },
        (false, _) | (true, Some(_)) => return Decision::Reject(fit::rejection(&short)),
    };
    match apparmor(state, pod).or_else(|| shutting_down(state)) {
        Some(rejection) => Decision::Reject(rejection),
        None if victims.is_empty() => Decision::Admit,
        None => Decision::AdmitAfter(victims),
    }
}

/// Whether an admitted pod still uses capacity of the node. A finished pod does not, even while the
/// agent still cleans up after it. Another client may have written a terminal phase, which does not
/// stop containers: the pod counts until the last of them has exited.
pub(crate) fn uses_capacity(pod: &Pod) -> bool {
    let Some(status) = pod.status.as_ref().filter(|status| status::is_terminal(status)) else {
        return true;
    };
    let containers = [
        &status.container_statuses,
        &status.init_container_statuses,
        &status.ephemeral_container_statuses,
    ];
    let mut states = containers.into_iter().flatten().flatten().filter_map(|c| c.state.as_ref());
    states.any(|state| state.running.is_some())
}

/// The rejection message if the pod does not fit beside the others, None if it does (N-118).
pub(crate) fn shortage(node: &Node, admitted: &[Arc<Pod>], pod: &Pod) -> Option<String> {
    let uid = &pod.metadata.uid;
    let others: Vec<&Arc<Pod>> =
        admitted.iter().filter(|other| other.metadata.uid != *uid).collect();
    let short = fit::shortages(node, &others, pod);
    (!short.is_empty()).then(|| fit::rejection(&short).message)
}

/// Row 1, T-NODE-81: pods that are rejected while the node is under pressure.
fn under_pressure(state: &NodeState, pod: &Pod) -> Option<Rejection> {
    if state.pressure.is_empty() || is_critical(pod) {
        return None;
    }
    if state.pressure == ["MemoryPressure"]
        && (qos(pod) != Qos::BestEffort || tolerates_memory_pressure(pod))
    {
        return None;
    }
    let conditions = state.pressure.join(" ");
    Some(Rejection::new("Evicted", format!("The node had condition: [{conditions}]. ")))
}

fn tolerates_memory_pressure(pod: &Pod) -> bool {
    let taint = Taint {
        key: "node.kubernetes.io/memory-pressure".to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    };
    let tolerations = pod.spec.iter().flat_map(|spec| spec.tolerations.iter().flatten());
    tolerations.into_iter().any(|toleration| placement::tolerates(toleration, &taint))
}

/// The QoS class in the status, else computed from the spec.
fn qos(pod: &Pod) -> Qos {
    match pod.status.as_ref().and_then(|status| status.qos_class.as_deref()) {
        Some("Guaranteed") => Qos::Guaranteed,
        Some("Burstable") => Qos::Burstable,
        Some("BestEffort") => Qos::BestEffort,
        _ => pod.spec.as_ref().map_or(Qos::BestEffort, qos_class),
    }
}

/// Row 4: the pod is for another operating system.
fn wrong_os(state: &NodeState, pod: &Pod) -> Option<Rejection> {
    let labels = state.node.metadata.labels.as_ref();
    let node_os = labels.and_then(|labels| labels.get("kubernetes.io/os"));
    let node_os = node_os.map_or("linux", String::as_str);
    let label = pod.metadata.labels.as_ref().and_then(|labels| labels.get("kubernetes.io/os"));
    if label.is_some_and(|label| label != node_os) {
        let message =
            "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label";
        return Some(Rejection::new("PodOSSelectorNodeLabelDoesNotMatch", message));
    }
    let os = pod.spec.as_ref().and_then(|spec| spec.os.as_ref());
    os.filter(|os| os.name != "linux").map(|_| {
        let message = "Failed to admit pod as the OS field doesn't match node OS";
        Rejection::new("PodOSNotSupported", message)
    })
}

/// Row 5: the runtime does not support supplementalGroupsPolicy Strict.
fn groups_policy(state: &NodeState, pod: &Pod) -> Option<Rejection> {
    let security = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    let policy = security.and_then(|security| security.supplemental_groups_policy.as_deref());
    (policy == Some("Strict") && !state.strict_groups).then(|| {
        let message = "SupplementalGroupsPolicy=Strict is not supported in this node";
        Rejection::new("SupplementalGroupsPolicyNotSupported", message)
    })
}

/// Rows 7 to 9: the first placement rule that the pod violates.
fn placement_failure(node: &Node, others: &[&Arc<Pod>], pod: &Pod) -> Option<Rejection> {
    let failed = |name: &str, why: &str| {
        Some(Rejection::new(name, format!("Predicate {name} failed: {why}")))
    };
    if !placement::wants_node(pod, node) {
        return failed("NodeAffinity", "node(s) didn't match Pod's node affinity/selector");
    }
    let name = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
    if !name.is_empty() && node.metadata.name.as_deref() != Some(name) {
        return failed("NodeName", "node(s) didn't match the requested node name");
    }
    let taken: Vec<_> = others.iter().flat_map(|other| placement::host_ports(other)).collect();
    if placement::ports_conflict(&placement::host_ports(pod), &taken) {
        return failed("NodePorts", "node(s) didn't have free ports for the requested pod ports");
    }
    if !is_static(pod) && placement::untolerated(pod, node, &["NoExecute"]).is_some() {
        return failed("TaintToleration", "node(s) had taints that the pod didn't tolerate");
    }
    None
}

/// Row 10: the pod asks for an AppArmor profile and the node has no AppArmor.
fn apparmor(state: &NodeState, pod: &Pod) -> Option<Rejection> {
    if state.apparmor {
        return None;
    }
    const ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";
    let confines = |profile: &AppArmorProfile| profile.type_ != "Unconfined";
    let spec = pod.spec.as_ref()?;
    let of_pod = spec.security_context.iter().filter_map(|s| s.app_armor_profile.as_ref());
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let of_containers =
        containers.filter_map(|c| c.security_context.as_ref()?.app_armor_profile.as_ref());
    let annotated = pod.metadata.annotations.iter().flatten().any(|(key, value)| {
        key.starts_with(ANNOTATION) && !matches!(value.as_str(), "" | "unconfined")
    });
    (annotated || of_pod.chain(of_containers).any(confines)).then(|| {
        let message = "Cannot enforce AppArmor: AppArmor is not enabled on the host";
        Rejection::new("AppArmor", message)
    })
}

/// Row 12: the node is shutting down.
fn shutting_down(state: &NodeState) -> Option<Rejection> {
    state
        .shutting_down
        .then(|| Rejection::new("NodeShutdown", "Pod was rejected as the node is shutting down."))
}
