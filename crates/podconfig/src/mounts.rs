//! The mounts of a container: volumes of its pod, and files that the node writes for it (N-150 to N-156).

use crate::env::Variables;
use crate::identity::uid;
use crate::{ConfigError, NodeFacts, PodContainer, expansion, files};
use crate::{MountedVolume, MountedVolumes, subpath};
use k8s_openapi::api::core::v1::{Pod, VolumeMount};
use runtime::{Device, Mount, Propagation};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const HOSTS: &str = "/etc/hosts";
const HOSTNAME: &str = "/etc/hostname";
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// All mounts of a container, parents before children (N-154).
pub(crate) fn mounts(
    pod: &Pod,
    container: &PodContainer<'_>,
    volumes: &MountedVolumes,
    env: &Variables,
    facts: &NodeFacts,
    message_file: Option<&Path>,
) -> Result<Vec<Mount>, ConfigError> {
    let mut mounts = Vec::new();
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let Some(volume) = volumes.volumes.get(&mount.name) else {
            return Err(ConfigError::new(format!(
                "cannot find volume {:?} to mount into container {:?}",
                mount.name, container.name
            )));
        };
        if volume.block {
            return Err(ConfigError::new(format!(
                "volume {} has volumeMode Block, but is specified in volumeMounts",
                mount.name
            )));
        }
        let target = SubPathTarget { facts, uid: uid(pod), container: &container.name, index };
        let source = source(mount, volume, env, &target)?;
        mounts.push(in_container(mount, volume, source, facts)?);
    }
    add_files(&mut mounts, pod, container, facts, message_file);
    mounts.sort_by(|a, b| a.target.cmp(&b.target));
    Ok(mounts)
}

/// Determines where the part of a volume that a subPath names is bind-mounted (N-34).
struct SubPathTarget<'a> {
    facts: &'a NodeFacts,
    uid: &'a str,
    container: &'a str,
    index: usize,
}

fn in_container(
    mount: &VolumeMount,
    volume: &MountedVolume,
    source: PathBuf,
    facts: &NodeFacts,
) -> Result<Mount, ConfigError> {
    let propagation = match mount.mount_propagation.as_deref() {
        Some("HostToContainer") => Propagation::Slave,
        Some("Bidirectional") => Propagation::Shared,
        _ => Propagation::Private,
    };
    Ok(Mount {
        source,
        target: Path::new("/").join(&mount.mount_path),
        read_only: volume.read_only || mount.read_only == Some(true),
        recursive_read_only: recursive_read_only(mount, propagation, facts)?,
        propagation,
        no_exec: volume.no_exec,
    })
}

/// Whether the mount is read-only recursively; an error if that is required but not possible (N-153).
fn recursive_read_only(
    mount: &VolumeMount,
    propagation: Propagation,
    facts: &NodeFacts,
) -> Result<bool, ConfigError> {
    let mode = match mount.recursive_read_only.as_deref() {
        Some(mode @ ("Enabled" | "IfPossible")) => mode,
        _ => return Ok(false),
    };
    let refused = |why: &str| {
        Err(ConfigError::new(format!(
            "volume {:?} requested recursive read-only mode, but it is not {why}",
            mount.name
        )))
    };
    if mount.read_only != Some(true) {
        return refused("read-only");
    }
    if propagation != Propagation::Private {
        let given = mount.mount_propagation.as_deref().unwrap_or_default();
        return refused(&format!("compatible with propagation {given:?}"));
    }
    if mode == "Enabled" && !facts.recursive_read_only {
        return refused("supported by the runtime");
    }
    Ok(facts.recursive_read_only)
}

/// The path of the volume, or of the part of it that the mount's subPath names.
fn source(
    mount: &VolumeMount,
    volume: &MountedVolume,
    env: &Variables,
    place: &SubPathTarget<'_>,
) -> Result<PathBuf, ConfigError> {
    let relative = sub_path(mount, env)?;
    if relative.is_empty() {
        return Ok(volume.path.clone());
    }
    // The cause may name paths of the node, so it goes to the log and not into the pod's status.
    let failed = |doing: &str, error: std::io::Error| {
        tracing::debug!(%error, volume = mount.name, container = place.container, "a subPath cannot be mounted");
        ConfigError::new(format!(
            "failed to {doing} for volumeMount {:?} of container {:?}",
            mount.name, place.container
        ))
    };
    let relative = Path::new(&relative);
    subpath::make_if_missing(&volume.path, relative)
        .map_err(|error| failed("create subPath directory", error))?;
    let parts = place.facts.pod_dir(place.uid).join("volume-subpaths");
    let target = parts.join(&mount.name).join(place.container).join(place.index.to_string());
    subpath::bind(&volume.path, relative, &target)
        .map_err(|error| failed("prepare subPath", error))?;
    Ok(target)
}

/// Empty means the whole volume.
fn sub_path(mount: &VolumeMount, env: &Variables) -> Result<String, ConfigError> {
    let expression = mount.sub_path_expr.as_deref().filter(|text| !text.is_empty());
    let path = match expression {
        Some(expression) => expanded(expression, env)?,
        None => mount.sub_path.clone().unwrap_or_default(),
    };
    if path.starts_with('/') {
        return Err(ConfigError::new(format!(
            "error SubPath `{path}` must not be an absolute path"
        )));
    }
    if path.split('/').any(|part| part == "..") {
        return Err(ConfigError::new(format!(
            "unable to provision SubPath `{path}`: must not contain '..'"
        )));
    }
    Ok(path)
}

/// Expands subPathExpr. Unlike elsewhere, an unknown variable is an error (N-151).
fn expanded(expression: &str, env: &Variables) -> Result<String, ConfigError> {
    let mut missing = BTreeSet::new();
    let path = expansion::expand(expression, |name| {
        let value = env.get(name).filter(|value| !value.is_empty());
        if value.is_none() {
            missing.insert(name.to_owned());
        }
        value.cloned()
    });
    match missing.is_empty() {
        true => Ok(path),
        false => {
            let names = missing.into_iter().collect::<Vec<_>>().join(", ");
            Err(ConfigError::new(format!("missing value for {names}")))
        }
    }
}

/// Adds the node's files, except where the container mounts a volume instead.
fn add_files(
    mounts: &mut Vec<Mount>,
    pod: &Pod,
    container: &PodContainer<'_>,
    facts: &NodeFacts,
    message_file: Option<&Path>,
) {
    let own = container.security_context.as_ref();
    let read_only_root = own.and_then(|own| own.read_only_root_filesystem) == Some(true);
    let uid = uid(pod);
    for (target, source, read_only) in [
        (HOSTS, files::hosts_file(facts, uid), false),
        (HOSTNAME, files::hostname_file(facts, uid), read_only_root),
        (RESOLV_CONF, files::resolv_conf_file(facts, uid), read_only_root),
    ] {
        if !mounts.iter().any(|mount| mount.target == Path::new(target)) {
            mounts.push(file(source, target, read_only));
        }
    }
    let path = container.termination_message_path.as_deref().unwrap_or_default();
    if let Some(source) = message_file {
        mounts.push(file(source.to_owned(), path, false));
    }
}

fn file(source: PathBuf, target: &str, read_only: bool) -> Mount {
    Mount {
        source,
        target: Path::new("/").join(target),
        read_only,
        recursive_read_only: false,
        propagation: Propagation::Private,
        no_exec: false,
    }
}

/// The block devices of a container (N-155).
pub(crate) fn devices(
    container: &PodContainer<'_>,
    volumes: &MountedVolumes,
) -> Result<Vec<Device>, ConfigError> {
    let devices = container.volume_devices.iter().flatten();
    devices
        .map(|device| {
            let volume = volumes.volumes.get(&device.name).filter(|volume| volume.block);
            let volume = volume.ok_or_else(|| {
                ConfigError::new(format!(
                    "cannot find volume {:?} to pass into container {:?}",
                    device.name, container.name
                ))
            })?;
            Ok(Device {
                source: volume.path.clone(),
                target: device.device_path.clone().into(),
                permissions: if volume.read_only { "r".into() } else { "mrw".into() },
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::containers;
    use serde_json::{Value, json};
    use std::collections::BTreeMap;

    fn build(volume_mounts: Value, mut container: Value) -> Result<Vec<Mount>, String> {
        container["name"] = "c".into();
        container["volumeMounts"] = volume_mounts;
        let pod: Pod = typed::from_value(json!({
            "metadata": { "uid": "u" }, "spec": { "containers": [container] },
        }))
        .unwrap();
        let facts = NodeFacts::new("n", "/root-dir");
        let mut config = MountedVolume::writable(Path::new("/vol/config"));
        config.read_only = true;
        let volumes = MountedVolumes {
            volumes: BTreeMap::from([
                ("data".into(), MountedVolume::writable(Path::new("/vol/data"))),
                ("config".into(), config),
            ]),
        };
        let env = Variables::from([
            ("ABS".into(), "/tmp".into()),
            ("UP".into(), "..".into()),
            ("NO".into(), "".into()),
        ]);
        let message = Path::new("/root-dir/pods/u/containers/c/1");
        let containers = containers(&pod);
        mounts(&pod, &containers[0], &volumes, &env, &facts, Some(message)).map_err(|e| e.message)
    }

    fn shown(mounts: &[Mount]) -> Vec<String> {
        let mode = |mount: &Mount| if mount.read_only { "ro" } else { "rw" };
        mounts
            .iter()
            .map(|m| format!("{} {} {}", m.source.display(), m.target.display(), mode(m)))
            .collect()
    }

    /// Hosts (N-59), termination message (N-62), hostname and resolv.conf (N-63), read-only mounts
    /// (N-153), order (N-154).
    #[test]
    fn parents_are_mounted_before_children_and_the_nodes_files_are_added() {
        let volume_mounts = json!([
            { "name": "data", "mountPath": "/etc/app/data" },
            { "name": "config", "mountPath": "/etc/app", "readOnly": false },
            { "name": "data", "mountPath": "/ro", "readOnly": true },
        ]);
        let container = json!({ "terminationMessagePath": "/dev/termination-log",
            "securityContext": { "readOnlyRootFilesystem": true } });
        assert_eq!(
            shown(&build(volume_mounts, container).unwrap()),
            [
                "/root-dir/pods/u/containers/c/1 /dev/termination-log rw",
                "/vol/config /etc/app ro",
                "/vol/data /etc/app/data rw",
                "/root-dir/pods/u/etc-hostname /etc/hostname ro",
                "/root-dir/pods/u/etc-hosts /etc/hosts rw",
                "/root-dir/pods/u/etc-resolv.conf /etc/resolv.conf ro",
                "/vol/data /ro ro",
            ]
        );
    }

    #[test]
    fn n_59_a_container_that_mounts_its_own_hosts_file_keeps_it() {
        let volume_mounts = json!([{ "name": "data", "mountPath": "/etc/hosts" }]);
        let mounts = build(volume_mounts, json!({ "terminationMessagePath": "/m" })).unwrap();
        let hosts: Vec<_> = mounts.iter().filter(|m| m.target == Path::new("/etc/hosts")).collect();
        assert_eq!(hosts.len(), 1);
        assert_eq!(hosts[0].source, Path::new("/vol/data"));
    }

    /// Errors of subPathExpr (N-151), recursiveReadOnly (N-153) and missing volumes (N-156).
    #[test]
    fn the_error_names_what_cannot_be_mounted() {
        for (mount, expected) in [
            (
                json!({ "name": "none", "mountPath": "/x" }),
                "cannot find volume \"none\" to mount into container \"c\"",
            ),
            (
                json!({ "name": "data", "mountPath": "/x", "subPath": "/tmp" }),
                "error SubPath `/tmp` must not be an absolute path",
            ),
            (
                json!({ "name": "data", "mountPath": "/x", "subPathExpr": "$(ABS)" }),
                "error SubPath `/tmp` must not be an absolute path",
            ),
            (
                json!({ "name": "data", "mountPath": "/x", "subPathExpr": "a/$(UP)" }),
                "unable to provision SubPath `a/..`: must not contain '..'",
            ),
            (
                json!({ "name": "data", "mountPath": "/x", "subPathExpr": "$(NO)-$(GONE)" }),
                "missing value for GONE, NO",
            ),
            (
                json!({ "name": "data", "mountPath": "/x", "recursiveReadOnly": "Enabled" }),
                "volume \"data\" requested recursive read-only mode, but it is not read-only",
            ),
            (
                json!({ "name": "data", "mountPath": "/x", "readOnly": true, "recursiveReadOnly": "Enabled",
                    "mountPropagation": "HostToContainer" }),
                "volume \"data\" requested recursive read-only mode, but it is not compatible with propagation \"HostToContainer\"",
            ),
        ] {
            let built = build(json!([mount]), json!({}));
            assert_eq!(built.unwrap_err(), expected);
        }
    }

    #[test]
    fn n_152_mount_propagation_is_passed_to_the_runtime() {
        for (given, expected) in [
            (json!(null), Propagation::Private),
            (json!("None"), Propagation::Private),
            (json!("HostToContainer"), Propagation::Slave),
            (json!("Bidirectional"), Propagation::Shared),
        ] {
            let mount = json!([{ "name": "data", "mountPath": "/aaa", "mountPropagation": given }]);
            assert_eq!(
                build(mount, json!({ "terminationMessagePath": "/z" })).unwrap()[0].propagation,
                expected
            );
        }
    }
}
