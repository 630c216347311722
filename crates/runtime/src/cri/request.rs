//! What we want, in CRI's words. Pure: nothing is asked or done here.

use super::notes::{self, ContainerNotes};
use crate::cgroup;
use crate::{
    ContainerSpec, Error, Mount, Namespace, PodNetwork, Propagation, Resources, Result,
    SandboxSpec, Seccomp, Security, User,
};
use k8s_cri::v1;
use k8s_cri::v1::security_profile::ProfileType;
use std::collections::HashMap;

pub(super) const POD_UID: &str = "io.kubernetes.pod.uid";
const POD_NAME: &str = "io.kubernetes.pod.name";
const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
const CONTAINER_NAME: &str = "io.kubernetes.container.name";

/// What a quota is a part of, in microseconds.
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
        // With the node's network the hostname is the node's.
        hostname: spec.hostname.clone().unwrap_or_default(),
        log_directory: spec.log_directory.display().to_string(),
        dns_config: dns,
        port_mappings: spec.ports.iter().map(port).collect::<Result<_>>()?,
        labels,
        annotations: notes::with_sandbox(spec),
        linux: Some(linux),
        ..Default::default()
    })
}

/// The sandbox as it is told again when a container is made. Whether anything privileged may be in
/// it is asked only then.
pub(super) fn sandbox_for(
    around: &SandboxSpec,
    spec: &ContainerSpec,
) -> Result<v1::PodSandboxConfig> {
    let mut config = sandbox(around)?;
    let linux = config.linux.as_mut().and_then(|linux| linux.security_context.as_mut());
    if let Some(security) = linux {
        security.privileged = spec.security.privileged;
    }
    Ok(config)
}

pub(super) fn container(around: &SandboxSpec, spec: &ContainerSpec) -> Result<v1::ContainerConfig> {
    let mut labels = pod_labels(around);
    labels.insert(CONTAINER_NAME.into(), spec.name.clone());
    labels.extend(spec.labels.clone());
    let score = spec.security.oom_score_adj;
    let notes = ContainerNotes {
        image_name: spec.image_name.clone(),
        resources: spec.resources.clone(),
        oom_score_adj: score,
    };
    let log_path = spec.log_path.strip_prefix(&around.log_directory).unwrap_or(&spec.log_path);
    let linux = v1::LinuxContainerConfig {
        resources: Some(resources(&spec.resources, score)),
        security_context: Some(security(around, spec)?),
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
        mounts: spec.mounts.iter().map(mount).collect(),
        devices: spec.devices.iter().map(device).collect(),
        labels,
        annotations: notes::with_container(&spec.annotations, &notes),
        log_path: log_path.display().to_string(),
        stdin: spec.stdin,
        stdin_once: spec.stdin_once,
        tty: spec.tty,
        linux: Some(linux),
        ..Default::default()
    })
}

/// How everybody who looks at a runtime finds a pod's parts.
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
            let why = "a CRI runtime makes its sandboxes' networks itself";
            return Err(Error::Refused(why.into()));
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
        ..Default::default()
    })
}

fn security(
    around: &SandboxSpec,
    spec: &ContainerSpec,
) -> Result<v1::LinuxContainerSecurityContext> {
    let wanted = &spec.security;
    let mut namespaces = namespaces(around)?;
    if let Some(target) = &spec.pid_of {
        namespaces.pid = v1::NamespaceMode::Target as i32;
        namespaces.target_id = target.clone();
    }
    let number = |value: u32| v1::Int64Value { value: value.into() };
    let capabilities = v1::Capability {
        add_capabilities: wanted.capabilities.add.clone(),
        drop_capabilities: wanted.capabilities.drop.clone(),
        add_ambient_capabilities: Vec::new(),
    };
    let groups = match wanted.strict_groups {
        true => v1::SupplementalGroupsPolicy::Strict,
        false => v1::SupplementalGroupsPolicy::Merge,
    };
    Ok(v1::LinuxContainerSecurityContext {
        capabilities: Some(capabilities),
        privileged: wanted.privileged,
        namespace_options: Some(namespaces),
        run_as_user: match wanted.user {
            User::Image => None,
            User::Uid(uid) => Some(number(uid)),
        },
        run_as_group: wanted.group.map(number),
        readonly_rootfs: wanted.read_only_root,
        supplemental_groups: wanted.supplemental_groups.iter().map(|g| i64::from(*g)).collect(),
        supplemental_groups_policy: groups as i32,
        no_new_privs: wanted.no_new_privs,
        masked_paths: wanted.masked_paths.clone(),
        readonly_paths: wanted.read_only_paths.clone(),
        seccomp: Some(seccomp(wanted)),
        ..Default::default()
    })
}

fn seccomp(wanted: &Security) -> v1::SecurityProfile {
    match &wanted.seccomp {
        Seccomp::Unconfined => profile(ProfileType::Unconfined, ""),
        Seccomp::RuntimeDefault => profile(ProfileType::RuntimeDefault, ""),
        Seccomp::Localhost(path) => profile(ProfileType::Localhost, &path.display().to_string()),
    }
}

fn profile(kind: ProfileType, path: &str) -> v1::SecurityProfile {
    v1::SecurityProfile { profile_type: kind as i32, localhost_ref: path.into() }
}

/// Zero means "no limit" to CRI, as None does to us.
pub(super) fn resources(wanted: &Resources, oom_score_adj: i32) -> v1::LinuxContainerResources {
    let shares = wanted.cpu_shares.map(|shares| i64::try_from(shares).unwrap_or(i64::MAX));
    // Only with cgroup v2 can this be said of a container; with v1 the pod's limit has to do.
    let pids = wanted.pids_limit.filter(|limit| *limit > 0 && cgroup::layout().is_v2());
    // No swap at all for a container without a limit: only v2 has words for it.
    let no_swap = wanted.swap_limit.filter(|swap| *swap == 0 && cgroup::layout().is_v2());
    v1::LinuxContainerResources {
        cpu_period: wanted.cpu_quota.map_or(0, |_| CPU_PERIOD),
        cpu_quota: wanted.cpu_quota.unwrap_or_default(),
        cpu_shares: shares.unwrap_or_default(),
        memory_limit_in_bytes: wanted.memory_limit.unwrap_or_default(),
        memory_swap_limit_in_bytes: wanted.swap_limit.unwrap_or_default(),
        oom_score_adj: oom_score_adj.into(),
        hugepage_limits: wanted
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

fn mount(wanted: &Mount) -> v1::Mount {
    let propagation = match wanted.propagation {
        Propagation::Private => v1::MountPropagation::PropagationPrivate,
        Propagation::Slave => v1::MountPropagation::PropagationHostToContainer,
        Propagation::Shared => v1::MountPropagation::PropagationBidirectional,
    };
    v1::Mount {
        container_path: wanted.target.display().to_string(),
        host_path: wanted.source.display().to_string(),
        readonly: wanted.read_only,
        recursive_read_only: wanted.recursive_read_only,
        propagation: propagation as i32,
        ..Default::default()
    }
}

fn device(wanted: &crate::Device) -> v1::Device {
    v1::Device {
        container_path: wanted.target.display().to_string(),
        host_path: wanted.source.display().to_string(),
        permissions: wanted.permissions.clone(),
    }
}

fn port(wanted: &crate::PortMapping) -> Result<v1::PortMapping> {
    let protocol = match wanted.protocol.as_str() {
        "TCP" | "" => v1::Protocol::Tcp,
        "UDP" => v1::Protocol::Udp,
        "SCTP" => v1::Protocol::Sctp,
        other => return Err(Error::Refused(format!("{other:?} is not a protocol of ports"))),
    };
    Ok(v1::PortMapping {
        protocol: protocol as i32,
        container_port: wanted.container_port.into(),
        host_port: wanted.host_port.into(),
        host_ip: wanted.host_ip.map(|address| address.to_string()).unwrap_or_default(),
    })
}
