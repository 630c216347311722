//! Which sysctls a pod may set (N-131).

use super::Rejection;
use k8s_openapi::api::core::v1::Pod;
use podconfig::dotted_sysctl;

/// Sysctls that affect only the pod.
const SAFE: &[&str] = &[
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];

/// Prefixes of namespaced sysctls, and their namespace.
const NAMESPACED: &[(&str, Namespace)] = &[
    ("kernel.sem", Namespace::Ipc),
    ("kernel.shm", Namespace::Ipc),
    ("kernel.msg", Namespace::Ipc),
    ("fs.mqueue.", Namespace::Ipc),
    ("net.", Namespace::Net),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Namespace {
    Ipc,
    Net,
}

pub(super) fn forbidden(pod: &Pod, allowed: &[String]) -> Option<Rejection> {
    let spec = pod.spec.as_ref()?;
    let sysctls = spec.security_context.as_ref()?.sysctls.as_deref()?;
    let host_net = spec.host_network.unwrap_or_default();
    let host_ipc = spec.host_ipc.unwrap_or_default();
    let why = sysctls.iter().find_map(|sysctl| {
        let name = dotted_sysctl(&sysctl.name);
        match namespace(&name, allowed) {
            None => Some(format!("{name:?} not allowlisted")),
            Some(Namespace::Net) if host_net => {
                Some(format!("{name:?} not allowed with host Net enabled"))
            }
            Some(Namespace::Ipc) if host_ipc => {
                Some(format!("{name:?} not allowed with host IPC enabled"))
            }
            Some(_) => None,
        }
    })?;
    Some(Rejection::new("SysctlForbidden", format!("forbidden sysctl: {why}")))
}

/// The namespace of an allowed sysctl; None if it is not allowed.
fn namespace(name: &str, allowed: &[String]) -> Option<Namespace> {
    let matches = |pattern: &String| match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(&dotted_sysctl(prefix)),
        None => name == dotted_sysctl(pattern),
    };
    if !SAFE.contains(&name) && !allowed.iter().any(matches) {
        return None;
    }
    let is_in = |row: &&(&str, Namespace)| match row.0 {
        exact @ "kernel.sem" => name == exact,
        prefix => name.starts_with(prefix),
    };
    NAMESPACED.iter().find(is_in).map(|row| row.1)
}
