//! The containers of a pod's spec, their kinds, and when they are restarted.

use crate::observed::Exit;
use k8s_openapi::api::core::v1 as core;

/// Kinds of containers. They start in this order and terminate in different ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    Ephemeral,
    /// Has to succeed before the next one starts.
    Init,
    /// An init container with restartPolicy Always.
    Sidecar,
    Regular,
}

impl Kind {
    /// As metrics name it.
    pub fn metric(self) -> &'static str {
        match self {
            Kind::Ephemeral => "ephemeral_container",
            Kind::Init | Kind::Sidecar => "init_container",
            Kind::Regular => "container",
        }
    }

    /// `spec.containers{app}`: how events name a container (T-NODE-17).
    pub fn field_path(self, name: &str) -> String {
        let list = match self {
            Kind::Ephemeral => "ephemeralContainers",
            Kind::Init | Kind::Sidecar => "initContainers",
            Kind::Regular => "containers",
        };
        format!("spec.{list}{{{name}}}")
    }
}

/// Whether an exited container is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

impl RestartPolicy {
    /// Always is the default.
    pub fn parse(text: Option<&str>) -> RestartPolicy {
        match text {
            Some("Never") => RestartPolicy::Never,
            Some("OnFailure") => RestartPolicy::OnFailure,
            Some(_) | None => RestartPolicy::Always,
        }
    }

    pub fn of(spec: &core::PodSpec) -> RestartPolicy {
        RestartPolicy::parse(spec.restart_policy.as_deref())
    }

    /// The container's own policy, else the pod's. Without its restart rules, which do not apply to failed probes
    /// (N-43).
    pub fn of_container(spec: &core::PodSpec, container: &core::Container) -> RestartPolicy {
        match container.restart_policy.as_deref() {
            Some(own) => RestartPolicy::parse(Some(own)),
            None => RestartPolicy::of(spec),
        }
    }

    fn after(self, exit: &Exit) -> bool {
        match self {
            RestartPolicy::Always => true,
            RestartPolicy::OnFailure => exit.failed(),
            RestartPolicy::Never => false,
        }
    }
}

/// The action of a restart rule that restarts the whole pod in place.
const RESTART_ALL: &str = "RestartAllContainers";

/// What happens after an exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterExit {
    Stay,
    Restart,
    /// All containers of the pod are restarted (T-NODE-68).
    RestartAll,
}

/// The container's rules decide first, then its policy, then the pod's (N-43, T-NODE-64).
pub fn after_exit(spec: &core::PodSpec, container: &core::Container, exit: &Exit) -> AfterExit {
    let rules = container.restart_policy_rules.as_deref().unwrap_or_default();
    let matching = rules.iter().find(|rule| matches(rule, exit.code));
    match matching.map(|rule| rule.action.as_str()) {
        Some("Restart") => AfterExit::Restart,
        Some(RESTART_ALL) => AfterExit::RestartAll,
        Some(_) | None if RestartPolicy::of_container(spec, container).after(exit) => {
            AfterExit::Restart
        }
        Some(_) | None => AfterExit::Stay,
    }
}

/// A container of the pod has a rule that restarts all of them (T-NODE-68).
pub fn can_restart_all(spec: &core::PodSpec) -> bool {
    let mut all = spec.init_containers.iter().flatten().chain(&spec.containers);
    all.any(|container| {
        let mut rules = container.restart_policy_rules.iter().flatten();
        rules.any(|rule| rule.action == RESTART_ALL)
    })
}

fn matches(rule: &core::ContainerRestartRule, code: i32) -> bool {
    let Some(codes) = &rule.exit_codes else { return false };
    let listed = codes.values.as_deref().unwrap_or_default().contains(&code);
    match codes.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        _ => false,
    }
}

/// The restartPolicy Always makes an init container a sidecar.
pub fn is_sidecar(container: &core::Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// Init containers and sidecars in spec order, each with its kind.
pub fn init_containers(spec: &core::PodSpec) -> impl Iterator<Item = (Kind, &core::Container)> {
    let kind = |c: &core::Container| if is_sidecar(c) { Kind::Sidecar } else { Kind::Init };
    spec.init_containers.iter().flatten().map(move |container| (kind(container), container))
}

/// Sidecars, then regular containers: those that run as long as the pod.
pub fn lasting_containers(spec: &core::PodSpec) -> impl Iterator<Item = (Kind, &core::Container)> {
    let regular = spec.containers.iter().map(|container| (Kind::Regular, container));
    init_containers(spec).filter(|(kind, _)| *kind == Kind::Sidecar).chain(regular)
}

pub fn ephemeral_containers(spec: &core::PodSpec) -> &[core::EphemeralContainer] {
    spec.ephemeral_containers.as_deref().unwrap_or_default()
}

/// The kind of the container of that name.
pub fn kind_of(spec: &core::PodSpec, name: &str) -> Option<Kind> {
    let init = init_containers(spec).find(|(_, container)| container.name == name);
    if let Some((kind, _)) = init {
        return Some(kind);
    }
    if spec.containers.iter().any(|container| container.name == name) {
        return Some(Kind::Regular);
    }
    let ephemeral = ephemeral_containers(spec).iter().any(|container| container.name == name);
    ephemeral.then_some(Kind::Ephemeral)
}

/// `web_default(0a1b…)`: how messages name a pod.
pub(crate) fn pod_title(pod: &core::Pod) -> String {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let meta = &pod.metadata;
    format!("{}_{}({})", text(&meta.name), text(&meta.namespace), text(&meta.uid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::pod;

    #[test]
    fn t_node_17_events_name_a_container_by_its_list() {
        let pod = pod("Always", "i:one s:proxy app e:debug");
        let spec = pod.spec.as_ref().unwrap();
        for (name, wanted) in [
            ("one", "spec.initContainers{one}"),
            ("proxy", "spec.initContainers{proxy}"),
            ("app", "spec.containers{app}"),
            ("debug", "spec.ephemeralContainers{debug}"),
        ] {
            assert_eq!(kind_of(spec, name).unwrap().field_path(name), wanted, "T-NODE-17");
        }
        assert_eq!(kind_of(spec, "other"), None);
    }

    #[test]
    fn only_restart_policy_always_makes_a_sidecar() {
        let pod = pod("Always", "i:one s:proxy app");
        let spec = pod.spec.as_ref().unwrap();
        let init: Vec<_> = init_containers(spec).map(|(kind, c)| (kind, c.name.as_str())).collect();
        assert_eq!(init, [(Kind::Init, "one"), (Kind::Sidecar, "proxy")]);
        let lasting: Vec<_> = lasting_containers(spec).map(|(_, c)| c.name.as_str()).collect();
        assert_eq!(lasting, ["proxy", "app"]);
    }
}
