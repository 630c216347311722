//! The files that the node puts into a pod's containers: hosts, resolv.conf, hostname, and the
//! termination message (N-59 to N-62). They are in the pod's directory.

use crate::identity::{host_network, uid};
use crate::{NodeFacts, dns, hostname, hosts};
use k8s_openapi::api::core::v1::Pod;
use std::fs;
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Larger files of the node are ignored.
const NODE_FILE_MAX: u64 = 1 << 20;

pub(crate) fn hosts_file(facts: &NodeFacts, uid: &str) -> PathBuf {
    facts.pod_dir(uid).join("etc-hosts")
}

pub(crate) fn hostname_file(facts: &NodeFacts, uid: &str) -> PathBuf {
    facts.pod_dir(uid).join("etc-hostname")
}

pub(crate) fn resolv_conf_file(facts: &NodeFacts, uid: &str) -> PathBuf {
    facts.pod_dir(uid).join("etc-resolv.conf")
}

/// Files that all containers of a pod share.
pub fn pod_files(facts: &NodeFacts, uid: &str) -> [PathBuf; 3] {
    [hosts_file(facts, uid), hostname_file(facts, uid), resolv_conf_file(facts, uid)]
}

/// The directory with the termination messages of a container, one file per instance.
pub fn message_files(facts: &NodeFacts, uid: &str, container: &str) -> PathBuf {
    facts.pod_dir(uid).join("containers").join(container)
}

/// Creates `pods/<uid>` and its fixed subdirectories, readable by root only (N-34).
pub fn make_pod_directories(facts: &NodeFacts, uid: &str) -> std::io::Result<()> {
    for part in ["volumes", "containers", "plugins", "volume-subpaths"] {
        make_directory(&facts.pod_dir(uid).join(part))?;
    }
    Ok(())
}

/// The uids of all pods that have a directory below `pods`.
pub fn pod_uids(pods: &Path) -> std::io::Result<Vec<String>> {
    let entries = match fs::read_dir(pods) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut uids = Vec::new();
    for entry in entries {
        if let Ok(name) = entry?.file_name().into_string() {
            uids.push(name);
        }
    }
    Ok(uids)
}

pub fn make_directory(path: &Path) -> std::io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o750).create(path)
}

/// Writes resolv.conf and hostname, which do not change during the life of a sandbox.
pub(crate) fn write_sandbox_files(pod: &Pod, facts: &NodeFacts) -> Result<(), String> {
    let uid = uid(pod);
    let failed = |error: std::io::Error| format!("error making pod data directories: {error}");
    make_directory(&facts.pod_dir(uid)).map_err(failed)?;
    let (dns, _) = dns::dns(pod, facts, &nodes_resolv_conf(facts));
    write(&resolv_conf_file(facts, uid), &dns::resolv_conf(&dns)).map_err(failed)?;
    let name = match hostname::kernel_name(pod, &facts.cluster_domain)? {
        Some(name) => name,
        None => nix::unistd::gethostname()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_else(|_| facts.name.clone()),
    };
    write(&hostname_file(facts, uid), &format!("{name}\n")).map_err(failed)
}

pub(crate) fn nodes_resolv_conf(facts: &NodeFacts) -> String {
    read_node_file(&facts.resolv_conf)
}

/// Called at every start of a container: a new sandbox may have other addresses.
pub(crate) fn write_hosts(pod: &Pod, facts: &NodeFacts, ips: &[IpAddr]) -> Result<(), String> {
    let text = if host_network(pod) {
        hosts::for_host_network(pod, &read_node_file(&facts.hosts_file))
    } else {
        hosts::for_pod(pod, ips, &hostname::hostname(pod, &facts.cluster_domain)?)
    };
    let path = hosts_file(facts, uid(pod));
    write(&path, &text).map_err(|error| format!("failed to write {}: {error}", path.display()))
}

/// Creates an empty file that every user may write to.
pub(crate) fn make_message_file(
    facts: &NodeFacts,
    uid: &str,
    container: &str,
) -> std::io::Result<PathBuf> {
    let folder = message_files(facts, uid, container);
    make_directory(&folder)?;
    let path = folder.join(format!("{:08x}", clock::random_u64() as u32));
    fs::OpenOptions::new().write(true).create_new(true).mode(0o666).open(&path)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
    Ok(path)
}

/// Writes in place, because running containers have this file mounted.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o644).custom_flags(libc::O_NOFOLLOW);
    options.open(path)?.write_all(text.as_bytes())?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o644))
}

/// Empty if the file is missing or too large.
fn read_node_file(path: &Path) -> String {
    let small = fs::metadata(path).is_ok_and(|about| about.len() <= NODE_FILE_MAX);
    small.then(|| fs::read_to_string(path).ok()).flatten().unwrap_or_default()
}
