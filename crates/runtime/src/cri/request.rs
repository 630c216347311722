//! Converts specs to CRI messages. Pure.

use super::stored::{self, StoredContainer};
use crate::cgroup;
use crate::{
    ContainerSpec, Error, Mount, Namespace, PodNetwork, Propagation, Resources, Result,
    SandboxSpec, Seccomp, Security, User, UserRange,
};
use k8s_cri::v1;
use k8s_cri::v1::security_profile::ProfileType;
use std::collections::HashMap;

pub(super) const POD_UID: &str = "io.kubernetes.pod.uid";
const POD_NAME: &str = "io.kubernetes.pod.name";
const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
const CONTAINER_NAME: &str = "io.kubernetes.container.name";

/// Period of CPU quotas in microseconds.
const CPU_PERIOD: i64 = 100_000;

pub(super) fn sandbox(spec: &SandboxSpec) -> Result<v1::PodSandboxConfig> {
    let mut labels = pod_labels(spec);
    labels.extend(spec.labels.clone());
    let dns = spec.dns.clone().map(|dns| v1::DnsConfig {
        servers: dns.servers,
        searches: dns.searches,
        options: dns.options,
    });
    let security = v1::LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces(spec)?),
        seccomp: Some(profile(ProfileType::RuntimeDefault, "")),
        ..Default::default()
    };
    let linux = v1::LinuxPodSandboxConfig {
        cgroup_parent: spec.cgroup.clone(),
        security_context: Some(security),
        sysctls: spec.sysctls.clone().into_iter().collect(),
        resources: Some(resources(&spec.resources, 0)),
        ..Default::default()
    };
    Ok(v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: spec.pod.name.clone(),
            uid: spec.pod.uid.clone(),
            namespace: spec.pod.namespace.clone(),
            attempt: spec.attempt,
        }),
        // Empty with the node's network: the host name is then the node's.
        hostname: spec.hostname.clone().unwrap_or_default(),
        log_directory: spec.log_directory.display().to_string(),
        dns_config: dns,
        port_mappings: spec.ports.iter().map(port).collect::<Result<_>>()?,
        labels,
        annotations: stored::with_sandbox(spec),
        linux: Some(linux),
        ..Default::default()
    })
}

/// The sandbox's configuration that CRI needs again for each container. It is marked as privileged for a privileged
/// container.
pub(super) fn sandbox_for(
    sandbox_spec: &SandboxSpec,
    spec: &ContainerSpec,
) -> Result<v1::PodSandboxConfig> {
    let mut config = sandbox(sandbox_spec)?;
    let linux = config.linux.as_mut().and_then(|linux| linux.security_context.as_mut());
    if let Some(security) = linux {
        security.privileged = spec.security.privileged;
    }
    Ok(config)
}

pub(super) fn container(
    sandbox_spec: &SandboxSpec,
    spec: &ContainerSpec,
) -> Result<v1::ContainerConfig> {
    let mut labels = pod_labels(sandbox_spec);
    labels.insert(CONTAINER_NAME.into(), spec.name.clone());
    labels.extend(spec.labels.clone());
    let score = spec.security.oom_score_adj;
    let stored = StoredContainer {
        image_name: spec.image_name.clone(),
        resources: spec.resources.clone(),
        oom_score_adj: score,
    };
    let log_path =
        spec.log_path.strip_prefix(&sandbox_spec.log_directory).unwrap_or(&spec.log_path);
    let linux = v1::LinuxContainerConfig {
        resources: Some(resources(&spec.resources, score)),
        security_context: Some(security(sandbox_spec, spec)?),
    };
    let env = spec.env.iter().cloned();
    Ok(v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: spec.name.clone(), attempt: spec.attempt }),
        image: Some(v1::ImageSpec {
            image: spec.image.clone(),
            user_specified_image: spec.image_name.clone(),
            ..Default::default()
        }),
        command: spec.command.clone().unwrap_or_default(),
        args: spec.args.clone().unwrap_or_default(),
        working_dir: spec.working_dir.clone().unwrap_or_default(),
        envs: env.map(|(key, value)| v1::KeyValue { key, value }).collect(),
        mounts: spec.mounts.iter().map(|volume| mount(volume, sandbox_spec)).collect(),
        devices: spec.devices.iter().map(device).collect(),
        labels,
        annotations: stored::with_container(&spec.annotations, &stored),
        log_path: log_path.display().to_string(),
        stdin: spec.stdin,
        stdin_once: spec.stdin_once,
        tty: spec.tty,
        linux: Some(linux),
        ..Default::default()
    })
}

/// The labels by which tools find the sandboxes and containers of a pod.
fn pod_labels(spec: &SandboxSpec) -> HashMap<String, String> {
    HashMap::from([
        (POD_NAME.to_string(), spec.pod.name.clone()),
        (POD_NAMESPACE.to_string(), spec.pod.namespace.clone()),
        (POD_UID.to_string(), spec.pod.uid.clone()),
    ])
}

fn namespaces(spec: &SandboxSpec) -> Result<v1::NamespaceOption> {
    let network = match &spec.network {
        PodNetwork::Host => v1::NamespaceMode::Node,
        PodNetwork::Runtime => v1::NamespaceMode::Pod,
        PodNetwork::Path(_) => {
            let message = "a CRI runtime creates the pod network itself";
            return Err(Error::Refused(message.into()));
        }
    };
    let mode = |namespace| match namespace {
        Namespace::Host => v1::NamespaceMode::Node,
        Namespace::Pod => v1::NamespaceMode::Pod,
        Namespace::Container => v1::NamespaceMode::Container,
    };
    Ok(v1::NamespaceOption {
        network: network as i32,
        pid: mode(spec.pid) as i32,
        ipc: mode(spec.ipc) as i32,
        userns_options: Some(users(spec)),
        ..Default::default()
    })
}

fn users(spec: &SandboxSpec) -> v1::UserNamespace {
    let mode = match spec.users {
        Some(_) => v1::NamespaceMode::Pod,
        None => v1::NamespaceMode::Node,
    };
    v1::UserNamespace { mode: mode as i32, uids: mapping(spec), gids: mapping(spec) }
}

/// The mapping for users, groups and the owners of files in volumes (N-124).
fn mapping(spec: &SandboxSpec) -> Vec<v1::IdMapping> {
    let map = |users: UserRange| v1::IdMapping {
        host_id: users.first,
        container_id: 0,
        length: users.count,
    };
    spec.users.map(map).into_iter().collect()
}

fn security(
    sandbox_spec: &SandboxSpec,
    spec: &ContainerSpec,
) -> Result<v1::LinuxContainerSecurityContext> {
    let security = &spec.security;
    let mut namespaces = namespaces(sandbox_spec)?;
    if let Some(target) = &spec.pid_of {
        namespaces.pid = v1::NamespaceMode::Target as i32;
        namespaces.target_id = target.clone();
    }
    let number = |value: u32| v1::Int64Value { value: value.into() };
    let capabilities = v1::Capability {
        add_capabilities: security.capabilities.add.clone(),
        drop_capabilities: security.capabilities.drop.clone(),
        add_ambient_capabilities: Vec::new(),
    };
    let groups = match security.strict_groups {
        true => v1::SupplementalGroupsPolicy::Strict,
        false => v1::SupplementalGroupsPolicy::Merge,
    };
    Ok(v1::LinuxContainerSecurityContext {
        capabilities: Some(capabilities),
        privileged: security.privileged,
        namespace_options: Some(namespaces),
        run_as_user: match security.user {
            User::Image => None,
            User::Uid(uid) => Some(number(uid)),
        },
        run_as_group: security.group.map(number),
        readonly_rootfs: security.read_only_root,
        supplemental_groups: security.supplemental_groups.iter().map(|g| i64::from(*g)).collect(),
        supplemental_groups_policy: groups as i32,
        no_new_privs: security.no_new_privs,
        masked_paths: security.masked_paths.clone(),
        readonly_paths: security.read_only_paths.clone(),
        seccomp: Some(seccomp(security)),
        ..Default::default()
    })
}

fn seccomp(security: &Security) -> v1::SecurityProfile {
    match &security.seccomp {
        Seccomp::Unconfined => profile(ProfileType::Unconfined, ""),
        Seccomp::RuntimeDefault => profile(ProfileType::RuntimeDefault, ""),
        Seccomp::Localhost(path) => profile(ProfileType::Localhost, &path.display().to_string()),
    }
}

fn profile(kind: ProfileType, path: &str) -> v1::SecurityProfile {
    v1::SecurityProfile { profile_type: kind as i32, localhost_ref: path.into() }
}

/// In CRI, zero means no limit.
pub(super) fn resources(limits: &Resources, oom_score_adj: i32) -> v1::LinuxContainerResources {
    let shares = limits.cpu_shares.map(|shares| i64::try_from(shares).unwrap_or(i64::MAX));
    // CRI can set this for a container only on cgroup v2. On v1 the pod's limit applies.
    let pids = limits.pids_limit.filter(|limit| *limit > 0 && cgroup::layout().is_v2());
    // A container without swap: only possible on v2.
    let no_swap = limits.swap_limit.filter(|swap| *swap == 0 && cgroup::layout().is_v2());
    v1::LinuxContainerResources {
        cpu_period: limits.cpu_quota.map_or(0, |_| CPU_PERIOD),
        cpu_quota: limits.cpu_quota.unwrap_or_default(),
        cpu_shares: shares.unwrap_or_default(),
        memory_limit_in_bytes: limits.memory_limit.unwrap_or_default(),
        memory_swap_limit_in_bytes: limits.swap_limit.unwrap_or_default(),
        oom_score_adj: oom_score_adj.into(),
        hugepage_limits: limits
            .hugepage_limits
            .iter()
            .map(|(size, limit)| v1::HugepageLimit { page_size: size.clone(), limit: *limit })
            .collect(),
        unified: pids
            .map(|limit| ("pids.max".to_string(), limit.to_string()))
            .into_iter()
            .chain(no_swap.map(|none| ("memory.swap.max".to_string(), none.to_string())))
            .collect(),
        ..Default::default()
    }
}

fn mount(mount: &Mount, sandbox_spec: &SandboxSpec) -> v1::Mount {
    let propagation = match mount.propagation {
        Propagation::Private => v1::MountPropagation::PropagationPrivate,
        Propagation::Slave => v1::MountPropagation::PropagationHostToContainer,
        Propagation::Shared => v1::MountPropagation::PropagationBidirectional,
    };
    v1::Mount {
        container_path: mount.target.display().to_string(),
        host_path: mount.source.display().to_string(),
        readonly: mount.read_only,
        recursive_read_only: mount.recursive_read_only,
        propagation: propagation as i32,
        uid_mappings: mapping(sandbox_spec),
        gid_mappings: mapping(sandbox_spec),
        ..Default::default()
    }
}

fn device(device: &crate::Device) -> v1::Device {
    v1::Device {
        container_path: device.target.display().to_string(),
        host_path: device.source.display().to_string(),
        permissions: device.permissions.clone(),
    }
}

fn port(port: &crate::PortMapping) -> Result<v1::PortMapping> {
    let protocol = match port.protocol.as_str() {
        "TCP" | "" => v1::Protocol::Tcp,
        "UDP" => v1::Protocol::Udp,
        "SCTP" => v1::Protocol::Sctp,
        other => {
            return Err(Error::Refused(format!("{other:?} is not a valid protocol of a port")));
        }
    };
    Ok(v1::PortMapping {
        protocol: protocol as i32,
        container_port: port.container_port.into(),
        host_port: port.host_port.into(),
        host_ip: port.host_ip.map(|address| address.to_string()).unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Identity;
    use std::collections::BTreeMap;

    fn spec(users: Option<UserRange>) -> SandboxSpec {
        SandboxSpec {
            pod: Identity { uid: "u".into(), namespace: "default".into(), name: "web".into() },
            attempt: 0,
            hostname: None,
            network: PodNetwork::Runtime,
            ipc: Namespace::Pod,
            pid: Namespace::Container,
            sysctls: BTreeMap::new(),
            users,
            cgroup: "/pods/podu".into(),
            resources: Resources::default(),
            log_directory: "/logs".into(),
            dns: None,
            ports: Vec::new(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            handler: String::new(),
        }
    }

    /// N-124: a CRI runtime gets the same range for users, for groups and for the owners of files in volumes.
    #[test]
    fn n_124_a_user_namespace_is_requested_from_the_runtime() {
        let volume = Mount {
            source: "/volume".into(),
            target: "/v".into(),
            read_only: false,
            recursive_read_only: false,
            propagation: Propagation::Private,
            no_exec: false,
        };
        let own = spec(Some(UserRange { first: 65536, count: 65536 }));
        let range = vec![v1::IdMapping { host_id: 65536, container_id: 0, length: 65536 }];
        let requested = namespaces(&own).unwrap().userns_options.unwrap();
        assert_eq!(requested.mode, v1::NamespaceMode::Pod as i32);
        assert_eq!((requested.uids, requested.gids), (range.clone(), range.clone()));
        let mounted = mount(&volume, &own);
        assert_eq!((mounted.uid_mappings, mounted.gid_mappings), (range.clone(), range));

        let nodes = spec(None);
        let requested = namespaces(&nodes).unwrap().userns_options.unwrap();
        assert_eq!(requested.mode, v1::NamespaceMode::Node as i32);
        assert!(requested.uids.is_empty() && mount(&volume, &nodes).uid_mappings.is_empty());
    }
}
