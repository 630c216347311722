//! May this pod run here? What the node checks itself, once per pod (N-27 to N-30).
//!
//! Pure: the agent gathers what is so and performs what is decided. Whether a scheduler should have
//! sent the pod here is not asked (N-30): unschedulable nodes, NoSchedule taints, preferences.

mod fit;
mod preemption;
mod sysctls;

#[cfg(test)]
mod tests;

use crate::static_pods::{is_critical, is_static};
use k8s_openapi::api::core::v1::{AppArmorProfile, Node, Pod, Taint};
use lifecycle::placement;
use lifecycle::resources::{Qos, qos_class};
use std::sync::Arc;

/// What is so on this node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Here<'a> {
    pub(crate) node: &'a Node,
    /// Condition types that are true: `MemoryPressure`, … in the order they came.
    pub(crate) pressure: &'a [String],
    /// Sysctls allowed beyond the safe ones: names, or prefixes that end in `*`.
    pub(crate) sysctls: &'a [String],
    pub(crate) apparmor: bool,
    pub(crate) strict_groups: bool,
    pub(crate) shutting_down: bool,
}

/// `status.reason`, and `status.message` after `Pod was rejected: `; the event has both as they are.
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
pub(crate) enum Verdict {
    Admit,
    /// A critical pod takes the place of these (T-NODE-83): end them first.
    AdmitAfter(Vec<Arc<Pod>>),
    Reject(Rejection),
}

/// `admitted` are the pods that run or may run here, with the resources they were given; terminal
/// ones are not among them. The pod itself may be: it is not counted twice.
pub(crate) fn decide(here: &Here, admitted: &[Arc<Pod>], pod: &Pod) -> Verdict {
    let before = under_pressure(here, pod)
        .or_else(|| sysctls::forbidden(pod, here.sysctls))
        .or_else(|| other_system(here, pod))
        .or_else(|| groups_policy(here, pod));
    if let Some(rejection) = before {
        return Verdict::Reject(rejection);
    }
    let uid = &pod.metadata.uid;
    let others: Vec<&Arc<Pod>> =
        admitted.iter().filter(|other| other.metadata.uid != *uid).collect();
    let short = fit::shortages(here.node, &others, pod);
    let misplaced = misplaced(here.node, &others, pod);
    let victims = match (short.is_empty(), misplaced) {
        (true, None) => Vec::new(),
        // Making room would not help.
        (_, Some(rejection)) if is_critical(pod) || short.is_empty() => {
            return Verdict::Reject(rejection);
        }
        (false, None) if is_critical(pod) => match preemption::victims(pod, &others, &short) {
            Ok(victims) => victims,
            Err(rejection) => return Verdict::Reject(rejection),
        },
        (false, _) | (true, Some(_)) => return Verdict::Reject(fit::rejection(&short)),
    };
    match apparmor(here, pod).or_else(|| leaving(here)) {
        Some(rejection) => Verdict::Reject(rejection),
        None if victims.is_empty() => Verdict::Admit,
        None => Verdict::AdmitAfter(victims),
    }
}

/// What is short for this pod beside the others, in admission's words. None: it fits (N-118).
pub(crate) fn shortage(node: &Node, admitted: &[Arc<Pod>], pod: &Pod) -> Option<String> {
    let uid = &pod.metadata.uid;
    let others: Vec<&Arc<Pod>> =
        admitted.iter().filter(|other| other.metadata.uid != *uid).collect();
    let short = fit::shortages(node, &others, pod);
    (!short.is_empty()).then(|| fit::rejection(&short).message)
}

/// Row 1 and T-NODE-81.
fn under_pressure(here: &Here, pod: &Pod) -> Option<Rejection> {
    if here.pressure.is_empty() || is_critical(pod) {
        return None;
    }
    if here.pressure == ["MemoryPressure"]
        && (qos(pod) != Qos::BestEffort || bears_memory_pressure(pod))
    {
        return None;
    }
    let conditions = here.pressure.join(" ");
    Some(Rejection::new("Evicted", format!("The node had condition: [{conditions}]. ")))
}

fn bears_memory_pressure(pod: &Pod) -> bool {
    let taint = Taint {
        key: "node.kubernetes.io/memory-pressure".to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    };
    let tolerations = pod.spec.iter().flat_map(|spec| spec.tolerations.iter().flatten());
    tolerations.into_iter().any(|toleration| placement::tolerates(toleration, &taint))
}

/// What the server found, or what the spec says.
fn qos(pod: &Pod) -> Qos {
    match pod.status.as_ref().and_then(|status| status.qos_class.as_deref()) {
        Some("Guaranteed") => Qos::Guaranteed,
        Some("Burstable") => Qos::Burstable,
        Some("BestEffort") => Qos::BestEffort,
        _ => pod.spec.as_ref().map_or(Qos::BestEffort, qos_class),
    }
}

/// Row 4.
fn other_system(here: &Here, pod: &Pod) -> Option<Rejection> {
    let labels = here.node.metadata.labels.as_ref();
    let here_is = labels.and_then(|labels| labels.get("kubernetes.io/os"));
    let here_is = here_is.map_or("linux", String::as_str);
    let label = pod.metadata.labels.as_ref().and_then(|labels| labels.get("kubernetes.io/os"));
    if label.is_some_and(|label| label != here_is) {
        let said = "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label";
        return Some(Rejection::new("PodOSSelectorNodeLabelDoesNotMatch", said));
    }
    let os = pod.spec.as_ref().and_then(|spec| spec.os.as_ref());
    os.filter(|os| os.name != "linux").map(|_| {
        let said = "Failed to admit pod as the OS field doesn't match node OS";
        Rejection::new("PodOSNotSupported", said)
    })
}

/// Row 5.
fn groups_policy(here: &Here, pod: &Pod) -> Option<Rejection> {
    let security = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    let policy = security.and_then(|security| security.supplemental_groups_policy.as_deref());
    (policy == Some("Strict") && !here.strict_groups).then(|| {
        let said = "SupplementalGroupsPolicy=Strict is not supported in this node";
        Rejection::new("SupplementalGroupsPolicyNotSupported", said)
    })
}

/// Rows 7 to 9: the first that fails.
fn misplaced(node: &Node, others: &[&Arc<Pod>], pod: &Pod) -> Option<Rejection> {
    let failed = |name: &str, why: &str| {
        Some(Rejection::new(name, format!("Predicate {name} failed: {why}")))
    };
    if !placement::wants_node(pod, node) {
        return failed("NodeAffinity", "node(s) didn't match Pod's node affinity/selector");
    }
    let wanted = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
    if !wanted.is_empty() && node.metadata.name.as_deref() != Some(wanted) {
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

/// Row 10.
fn apparmor(here: &Here, pod: &Pod) -> Option<Rejection> {
    if here.apparmor {
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
        let said = "Cannot enforce AppArmor: AppArmor is not enabled on the host";
        Rejection::new("AppArmor", said)
    })
}

/// Row 12.
fn leaving(here: &Here) -> Option<Rejection> {
    here.shutting_down
        .then(|| Rejection::new("NodeShutdown", "Pod was rejected as the node is shutting down."))
}
