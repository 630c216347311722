//! The containers of a pod, of all kinds, in one shape.

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, Pod};
use lifecycle::Kind;
use std::borrow::Cow;
use std::ops::Deref;

/// One container of a pod; reads like the API's `Container`.
#[derive(Debug, Clone)]
pub struct PodContainer<'a> {
    pub kind: Kind,
    container: Cow<'a, Container>,
    /// `targetContainerName` of an ephemeral container.
    pub target: Option<&'a str>,
}

impl Deref for PodContainer<'_> {
    type Target = Container;

    fn deref(&self) -> &Container {
        &self.container
    }
}

impl PodContainer<'_> {
    /// The field path that events use: `spec.containers{web}`.
    pub fn field_path(&self) -> String {
        self.kind.field_path(&self.name)
    }

    pub fn image_name(&self) -> &str {
        self.image.as_deref().unwrap_or_default()
    }
}

/// Init containers and sidecars, then regular, then ephemeral containers, each in the order of the spec.
pub fn containers(pod: &Pod) -> Vec<PodContainer<'_>> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let init = lifecycle::containers::init_containers(spec);
    let init = init.map(|(kind, container)| plain(kind, container));
    let regular = spec.containers.iter().map(|container| plain(Kind::Regular, container));
    let ephemeral = spec.ephemeral_containers.iter().flatten().map(|container| PodContainer {
        kind: Kind::Ephemeral,
        container: Cow::Owned(as_container(container)),
        target: container.target_container_name.as_deref().filter(|name| !name.is_empty()),
    });
    init.chain(regular).chain(ephemeral).collect()
}

fn plain(kind: Kind, container: &Container) -> PodContainer<'_> {
    PodContainer { kind, container: Cow::Borrowed(container), target: None }
}

/// An ephemeral container has the fields of a container, and `targetContainerName`.
fn as_container(it: &EphemeralContainer) -> Container {
    let it = it.clone();
    Container {
        args: it.args,
        command: it.command,
        env: it.env,
        env_from: it.env_from,
        image: it.image,
        image_pull_policy: it.image_pull_policy,
        lifecycle: it.lifecycle,
        liveness_probe: it.liveness_probe,
        name: it.name,
        ports: it.ports,
        readiness_probe: it.readiness_probe,
        resize_policy: it.resize_policy,
        resources: it.resources,
        restart_policy: it.restart_policy,
        restart_policy_rules: it.restart_policy_rules,
        security_context: it.security_context,
        startup_probe: it.startup_probe,
        stdin: it.stdin,
        stdin_once: it.stdin_once,
        termination_message_path: it.termination_message_path,
        termination_message_policy: it.termination_message_policy,
        tty: it.tty,
        volume_devices: it.volume_devices,
        volume_mounts: it.volume_mounts,
        working_dir: it.working_dir,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn containers_are_listed_by_kind_with_their_field_paths() {
        let pod: Pod = typed::from_value(json!({ "spec": {
            "containers": [{ "name": "web", "image": "w" }],
            "initContainers": [
                { "name": "first", "image": "f" },
                { "name": "side", "image": "s", "restartPolicy": "Always" },
            ],
            "ephemeralContainers": [
                { "name": "look", "image": "l", "targetContainerName": "web" },
            ],
        }}))
        .unwrap();
        let found: Vec<_> =
            containers(&pod).iter().map(|c| (c.kind, c.field_path(), c.target)).collect();
        assert_eq!(
            found,
            [
                (Kind::Init, "spec.initContainers{first}".into(), None),
                (Kind::Sidecar, "spec.initContainers{side}".into(), None),
                (Kind::Regular, "spec.containers{web}".into(), None),
                (Kind::Ephemeral, "spec.ephemeralContainers{look}".into(), Some("web")),
            ]
        );
    }
}
