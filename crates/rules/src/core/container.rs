//! Containers of a pod: plain ones, init containers, sidecars, ephemeral ones.

use super::checks::{self, Duplicates, PROTOCOLS};
use super::{environment, probes, resources, security};
use api::field::{At, Errors, Wrong};
use api::names;

/// Properties of the pod that its containers depend on.
pub(super) struct Pod<'v> {
    pub(super) volumes: Vec<Volume<'v>>,
    pub(super) claims: Vec<&'v str>,
    pub(super) grace: Option<i64>,
    pub(super) restart_policy: &'v str,
    pub(super) host_users: bool,
    /// `spec.os.name`, if set.
    pub(super) os: Option<&'v str>,
}

/// Properties of a volume that mounts depend on.
pub(super) struct Volume<'v> {
    pub(super) name: &'v str,
    /// Backed by a claim, so it can be used as a block device.
    pub(super) claimed: bool,
}

pub(super) fn containers(spec: &At, pod: &Pod, errors: &mut Errors) {
    let list = spec.field("containers");
    if list.is_empty() {
        errors.required(&list, "");
        return;
    }
    let mut seen = Duplicates::default();
    for container in list.items() {
        common(&container, pod, errors);
        if seen.repeats(container.field("name").text()) {
            errors.duplicate(&container.field("name"));
        }
        probes::validate(&container, pod.grace, pod.os, errors);
        restart_policy(&container, &["Always", "OnFailure", "Never"], errors);
    }
    host_ports(list.items(), errors);
}

pub(super) fn init_containers(spec: &At, pod: &Pod, errors: &mut Errors) {
    let mut seen = Duplicates::default();
    for container in spec.field("containers").items() {
        seen.repeats(container.field("name").text());
    }
    for container in spec.field("initContainers").items() {
        common(&container, pod, errors);
        restart_policy(&container, &["Always", "OnFailure", "Never"], errors);
        let name = container.field("name");
        if !name.text().is_empty() && seen.repeats(name.text()) {
            errors.duplicate(&name);
        }
        // Init containers run one after the other, so their ports do not conflict.
        host_ports(std::iter::once(container), errors);
        if container.field("restartPolicy").text() == "Always" {
            probes::validate(&container, pod.grace, pod.os, errors);
        } else {
            probes::forbid(&container, errors);
        }
    }
}

/// Fields that would make an ephemeral container part of the workload.
const NOT_EPHEMERAL: &[&str] = &[
    "ports",
    "resources",
    "resizePolicy",
    "restartPolicy",
    "restartPolicyRules",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
];

pub(super) fn ephemeral_containers(spec: &At, pod: &Pod, errors: &mut Errors) {
    let mut seen = Duplicates::default();
    let mut others = Duplicates::default();
    for list in ["containers", "initContainers"] {
        for container in spec.field(list).items() {
            seen.repeats(container.field("name").text());
            others.repeats(container.field("name").text());
        }
    }
    let detail = "cannot be set for an Ephemeral Container";
    for container in spec.field("ephemeralContainers").items() {
        common(&container, pod, errors);
        image_whitespace(&container, errors);
        if seen.repeats(container.field("name").text()) {
            errors.duplicate(&container.field("name"));
        }
        let target = container.field("targetContainerName");
        if !target.text().is_empty() && !others.contains(&target.text()) {
            errors.not_found(&target);
        }
        for field in NOT_EPHEMERAL {
            let field = container.field(field);
            let empty = field.value().is_some_and(|value| value.is_object() || value.is_array())
                && field.is_empty();
            if field.is_set() && !empty {
                errors.forbidden(&field, detail);
            }
        }
        for mount in container.field("volumeMounts").items() {
            for field in ["subPath", "subPathExpr"] {
                if !mount.field(field).text().is_empty() {
                    errors.forbidden(&mount.field(field), detail);
                }
            }
        }
    }
}

/// Only checked in pods: stored templates may have such an image.
pub(super) fn image_whitespace(container: &At, errors: &mut Errors) {
    let image = container.field("image");
    if image.text().trim() != image.text() {
        errors.invalid(&image, "must not have leading or trailing whitespace");
    }
}

fn common(container: &At, pod: &Pod, errors: &mut Errors) {
    checks::named(&container.field("name"), names::dns1123_label, errors);
    checks::required(&container.field("image"), errors);
    let message_policy = container.field("terminationMessagePolicy");
    checks::one_of(&message_policy, &["File", "FallbackToLogsOnError"], errors);
    ports(&container.field("ports"), errors);
    environment::variables(&container.field("env"), pod, errors);
    environment::sources(&container.field("envFrom"), errors);
    mounts(container, pod, errors);
    devices(container, pod, errors);
    let pull = container.field("imagePullPolicy");
    checks::one_of(&pull, &["Always", "IfNotPresent", "Never"], errors);
    resources::requirements(
        &container.field("resources"),
        resources::container_name,
        &pod.claims,
        errors,
    );
    resize_policy(&container.field("resizePolicy"), pod.restart_policy, errors);
    security::container(&container.field("securityContext"), pod.host_users, errors);
}

/// The container's own restart policy and its rules.
fn restart_policy(container: &At, supported: &[&str], errors: &mut Errors) {
    let policy = container.field("restartPolicy");
    checks::optional_one_of(&policy, supported, errors);
    let rules = container.field("restartPolicyRules");
    if !rules.is_empty() && !policy.is_set() {
        errors.required(&policy, "must specify restartPolicy when restart rules are used");
    }
}

fn ports(ports: &At, errors: &mut Errors) {
    let mut seen = Duplicates::default();
    for port in ports.items() {
        let name = port.field("name");
        if !name.text().is_empty() {
            let wrong = names::port_name(name.text());
            if wrong.is_empty() && seen.repeats(name.text()) {
                errors.duplicate(&name);
            }
            checks::each(&name, wrong, errors);
        }
        let number = port.field("containerPort");
        if number.int().unwrap_or_default() == 0 {
            errors.required(&number, "");
        } else {
            checks::in_range(&number, 1, 65535, errors);
        }
        let host = port.field("hostPort");
        if host.int().unwrap_or_default() != 0 {
            checks::in_range(&host, 1, 65535, errors);
        }
        checks::one_of(&port.field("protocol"), PROTOCOLS, errors);
    }
}

fn host_ports<'p, 'v: 'p>(containers: impl Iterator<Item = At<'p, 'v>>, errors: &mut Errors) {
    let mut seen = Duplicates::default();
    for container in containers {
        for port in container.field("ports").items() {
            let host = port.field("hostPort");
            let Some(number) = host.int().filter(|number| *number != 0) else {
                continue;
            };
            let (protocol, ip) = (port.field("protocol").text(), port.field("hostIP").text());
            let key = format!("{protocol}/{ip}/{number}");
            if seen.repeats(key.clone()) {
                errors.push(Wrong::Duplicate, host.path(), Some(&key.into()), "");
            }
        }
    }
}

fn mounts(container: &At, pod: &Pod, errors: &mut Errors) {
    let mounts = container.field("volumeMounts");
    let devices = container.field("volumeDevices");
    let mut seen = Duplicates::default();
    for mount in mounts.items() {
        let (name, path) = (mount.field("name"), mount.field("mountPath"));
        checks::required(&name, errors);
        if !pod.volumes.iter().any(|volume| volume.name == name.text()) {
            errors.push(Wrong::NotFound, name.path(), Some(&name.text().into()), "");
        }
        checks::required(&path, errors);
        if seen.repeats(path.text()) {
            errors.invalid(&path, "must be unique");
        }
        if devices.items().any(|device| device.field("name").text() == name.text()) {
            errors.invalid(&name, "must not already exist in volumeDevices");
        }
        if devices.items().any(|device| device.field("devicePath").text() == path.text()) {
            errors.invalid(&path, "must not already exist as a path in volumeDevices");
        }
        sub_path(&mounts, &mount, errors);
        mount_options(container, &mounts, &mount, errors);
    }
}

fn sub_path(mounts: &At, mount: &At, errors: &mut Errors) {
    let (plain, expression) = (mount.field("subPath"), mount.field("subPathExpr"));
    if !expression.text().is_empty() && !plain.text().is_empty() {
        errors.invalid(&expression, "subPathExpr and subPath are mutually exclusive");
    }
    for field in [plain, expression] {
        // Reported at the list, as upstream does.
        let path = || {
            let name = field.path();
            let name = name.rsplit('.').next().unwrap_or_default().to_owned();
            format!("{}.{name}", mounts.path())
        };
        if field.text().starts_with('/') {
            errors.push(Wrong::Invalid, path(), field.value(), "must be a relative path");
        }
        if field.text().split('/').any(|part| part == "..") {
            errors.push(Wrong::Invalid, path(), field.value(), "must not contain '..'");
        }
    }
}

fn mount_options(container: &At, mounts: &At, mount: &At, errors: &mut Errors) {
    let propagation = mount.field("mountPropagation");
    if propagation.is_set() {
        let shown = mounts.field("mountPropagation");
        let supported = ["Bidirectional", "HostToContainer", "None"];
        if !supported.contains(&propagation.text()) {
            let detail = "supported values: \"Bidirectional\", \"HostToContainer\", \"None\"";
            errors.push(Wrong::NotSupported, shown.path(), propagation.value(), detail);
        }
        let context = container.field("securityContext");
        if propagation.text() == "Bidirectional" && !context.field("privileged").is_true() {
            errors.forbidden(
                &shown,
                "Bidirectional mount propagation is available only to privileged containers",
            );
        }
    }
    let recursive = mount.field("recursiveReadOnly");
    let shown = mounts.field("recursiveReadOnly");
    match recursive.text() {
        "" | "Disabled" => {}
        "Enabled" | "IfPossible" => {
            if !mount.field("readOnly").is_true() {
                errors.forbidden(&shown, "may only be specified when readOnly is true");
            }
            if !["", "None"].contains(&propagation.text()) {
                errors.forbidden(
                    &shown,
                    "may only be specified when mountPropagation is None or not specified",
                );
            }
        }
        _ => {
            let detail = "supported values: \"Disabled\", \"Enabled\", \"IfPossible\"";
            errors.push(Wrong::NotSupported, shown.path(), recursive.value(), detail);
        }
    }
}

fn devices(container: &At, pod: &Pod, errors: &mut Errors) {
    let mounts = container.field("volumeMounts");
    let (mut names, mut paths) = (Duplicates::default(), Duplicates::default());
    for device in container.field("volumeDevices").items() {
        let (name, path) = (device.field("name"), device.field("devicePath"));
        checks::required(&name, errors);
        if !name.text().is_empty() && names.repeats(name.text()) {
            errors.invalid(&name, "must be unique");
        }
        match pod.volumes.iter().find(|volume| volume.name == name.text()) {
            Some(volume) if !volume.claimed => errors.invalid(&name, "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"),
            Some(_) => {}
            None => errors.push(Wrong::NotFound, name.path(), Some(&name.text().into()), ""),
        }
        checks::required(&path, errors);
        if paths.repeats(path.text()) {
            errors.invalid(&path, "must be unique");
        }
        if path.text().split('/').any(|part| part == "..") {
            errors.invalid(&path, "can not contain backsteps ('..')");
        }
        if mounts.items().any(|mount| mount.field("name").text() == name.text()) {
            errors.invalid(&name, "must not already exist in volumeMounts");
        }
        if mounts.items().any(|mount| mount.field("mountPath").text() == path.text()) {
            errors.invalid(&path, "must not already exist as a path in volumeMounts");
        }
    }
}

fn resize_policy(policies: &At, pod_restart: &str, errors: &mut Errors) {
    let mut seen = Duplicates::default();
    for policy in policies.items() {
        let (name, restart) = (policy.field("resourceName"), policy.field("restartPolicy"));
        if seen.repeats(name.text()) {
            errors.push(Wrong::Duplicate, policy.path(), name.value(), "");
        }
        let mut known = |field: &At, supported: &[&str], detail: &str| {
            if field.text().is_empty() {
                errors.required(policies, "");
            } else if !supported.contains(&field.text()) {
                errors.push(Wrong::NotSupported, policies.path(), field.value(), detail);
            }
        };
        known(&name, &["cpu", "memory"], "supported values: \"cpu\", \"memory\"");
        let detail = "supported values: \"NotRequired\", \"RestartContainer\"";
        known(&restart, &["NotRequired", "RestartContainer"], detail);
        if pod_restart == "Never" && restart.text() != "NotRequired" {
            let detail = "must be 'NotRequired' when `restartPolicy` is 'Never'";
            errors.invalid_value(policies, restart.text(), detail);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::trial::{NOTHING, create, pod, pod_with};
    use serde_json::json;

    /// T-NODE-23: a stop signal needs an operating system that has it.
    #[test]
    fn t_node_23_a_stop_signal_must_exist_on_the_named_operating_system() {
        let messages = |signal: &str, os: &str| {
            let mut pod = pod_with(json!({"lifecycle": {"stopSignal": signal}}));
            if !os.is_empty() {
                pod["spec"]["os"] = json!({"name": os});
            }
            create("Pod", pod)
        };
        let at = "spec.containers[0].lifecycle.stopSignal";
        let without_os =
            format!("{at}: Forbidden: may not be set for containers with empty `spec.os.name`");
        let windows = format!(
            "{at}: Unsupported value: \"SIGUSR1\": supported values: \"SIGKILL\", \"SIGTERM\""
        );
        assert_eq!(messages("SIGUSR1", ""), [without_os]);
        assert_eq!(messages("SIGUSR1", "windows"), [windows]);
        assert_eq!(messages("SIGRTMIN+15", "linux"), NOTHING);
        assert_eq!(messages("SIGTERM", "windows"), NOTHING);
        assert_eq!(messages("TERM", "linux").len(), 1);
        assert_eq!(super::super::probes::LINUX_SIGNALS.split_whitespace().count(), 65);
    }

    /// NET-10: a pod uses a host port once.
    #[test]
    fn a_92_invalid_containers_are_rejected_with_upstreams_messages() {
        let hook = |handler| json!({"lifecycle": {"preStop": handler}});
        let rows: &[(_, &str)] = &[
            (json!({"image": ""}), "spec.containers[0].image: Required value"),
            (
                json!({"ports": [{"containerPort": 70000}]}),
                "spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
            ),
            (
                json!({"ports": [{"containerPort": 80, "name": "a"}, {"containerPort": 81, "name": "a"}]}),
                "spec.containers[0].ports[1].name: Duplicate value: \"a\"",
            ),
            (
                json!({"ports": [{"containerPort": 80, "hostPort": 1}, {"containerPort": 81, "hostPort": 1}]}),
                "spec.containers[0].ports[1].hostPort: Duplicate value: \"TCP//1\"",
            ),
            (
                json!({"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}),
                "spec.containers[0].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
            ),
            (
                json!({"resources": {"limits": {"hugepages-2Mi": "2Mi"}}}),
                "spec.containers[0].resources: Forbidden: HugePages require cpu or memory",
            ),
            (
                json!({"volumeMounts": [{"name": "none", "mountPath": "/x"}]}),
                "spec.containers[0].volumeMounts[0].name: Not found: \"none\"",
            ),
            (
                json!({"imagePullPolicy": "Sometimes"}),
                "spec.containers[0].imagePullPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"IfNotPresent\", \"Never\"",
            ),
            (
                json!({"env": [{"name": "A", "value": "b", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}),
                "spec.containers[0].env[0].valueFrom: Invalid value: \"\": may not be specified when `value` is not empty",
            ),
            (
                json!({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.phase"}}}]}),
                "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Unsupported value: \"status.phase\": supported values: \"metadata.name\", \"metadata.namespace\", \"metadata.uid\", \"spec.nodeName\", \"spec.serviceAccountName\", \"status.hostIP\", \"status.hostIPs\", \"status.podIP\", \"status.podIPs\"",
            ),
            (
                hook(json!({"exec": {"command": ["a"]}, "sleep": {"seconds": 1}})),
                "spec.containers[0].lifecycle.preStop.sleep: Forbidden: may not specify more than 1 handler type",
            ),
            (
                hook(json!({"sleep": {"seconds": 60}})),
                "spec.containers[0].lifecycle.preStop.sleep: Invalid value: 60: must be non-negative and less than terminationGracePeriodSeconds (30)",
            ),
            (
                hook(json!({})),
                "spec.containers[0].lifecycle.preStop: Required value: must specify a handler type",
            ),
            (
                json!({"livenessProbe": {"tcpSocket": {"port": 80}, "successThreshold": 2}}),
                "spec.containers[0].livenessProbe.successThreshold: Invalid value: 2: must be 1",
            ),
            (
                json!({"readinessProbe": {"tcpSocket": {"port": 80}, "terminationGracePeriodSeconds": 2}}),
                "spec.containers[0].readinessProbe.terminationGracePeriodSeconds: Invalid value: 2: must not be set for readinessProbes",
            ),
            (
                json!({"securityContext": {"runAsUser": -1}}),
                "spec.containers[0].securityContext.runAsUser: Invalid value: -1: must be between 0 and 4294967295, inclusive",
            ),
        ];
        for (container, message) in rows {
            assert_eq!(create("Pod", pod_with(container.clone())), [*message]);
        }
        assert_eq!(create("Pod", pod_with(hook(json!({"sleep": {"seconds": 0}})))), NOTHING);
    }

    #[test]
    fn only_sidecars_among_init_containers_may_have_probes() {
        let init = |more: serde_json::Value| {
            let mut container =
                json!({"name": "i", "image": "i", "readinessProbe": {"tcpSocket": {"port": 80}}});
            super::super::trial::merge(&mut container, more);
            create("Pod", pod(json!({"initContainers": [container]})))
        };
        assert_eq!(init(json!({"restartPolicy": "Always"})), NOTHING);
        assert_eq!(
            init(json!({})),
            [
                "spec.initContainers[0].readinessProbe: Forbidden: may not be set for init containers without restartPolicy=Always"
            ]
        );
        assert_eq!(
            init(json!({"name": "app", "restartPolicy": "Always"})),
            ["spec.initContainers[0].name: Duplicate value: \"app\""]
        );
    }
}
