//! A container's OCI configuration (`config.json`) for libcontainer.
//!
//! It has no network, UTS and IPC namespaces, because containers inherit these from the shim. It has no limits
//! either, because the agent sets up the cgroup before.

use super::user::ProcessUser;
use crate::cgroup::{Cgroup, Layout, layout};
use crate::{ContainerSpec, Device, Error, Mount, Propagation, Result};
use serde_json::{Value, json};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The input of [`configuration`].
pub(crate) struct Parts<'a> {
    pub(crate) spec: &'a ContainerSpec,
    pub(crate) command: Vec<String>,
    pub(crate) env: Vec<String>,
    pub(crate) working_dir: PathBuf,
    pub(crate) user: &'a ProcessUser,
    pub(crate) capabilities: Vec<String>,
    pub(crate) seccomp: Option<Value>,
    pub(crate) own_pid: bool,
    /// `/dev/shm` of the pod.
    pub(crate) shm: PathBuf,
    pub(crate) volumes: Vec<(PathBuf, PathBuf)>,
    pub(crate) cgroup: &'a Cgroup,
    pub(crate) cgroup_path: String,
    pub(crate) devices: Vec<Value>,
}

pub(crate) fn configuration(parts: &Parts<'_>) -> Value {
    let security = &parts.spec.security;
    let mut process = json!({
        "terminal": parts.spec.tty,
        "user": {
            "uid": parts.user.uid,
            "gid": parts.user.gid,
            "additionalGids": parts.user.groups,
        },
        "args": parts.command,
        "env": parts.env,
        "cwd": parts.working_dir,
        "capabilities": capability_sets(&parts.capabilities, parts.user.uid),
    });
    if security.no_new_privs {
        // Set only if true: with the value false, libcontainer applies seccomp too late.
        process["noNewPrivileges"] = json!(true);
    }
    let mut namespaces = vec![json!({ "type": "mount" }), json!({ "type": "cgroup" })];
    if parts.own_pid {
        namespaces.push(json!({ "type": "pid" }));
    }
    let mut linux = json!({
        "namespaces": namespaces,
        "cgroupsPath": parts.cgroup_path,
        "devices": parts.devices,
        "rootfsPropagation": root_propagation(&parts.spec.mounts),
    });
    if !security.privileged {
        linux["maskedPaths"] = json!(security.masked_paths);
        linux["readonlyPaths"] = json!(security.read_only_paths);
    }
    if let Some(seccomp) = &parts.seccomp {
        linux["seccomp"] = seccomp.clone();
    }
    json!({
        "ociVersion": "1.0.2",
        "process": process,
        "root": { "path": "rootfs", "readonly": security.read_only_root },
        "mounts": mounts(parts),
        "linux": linux,
    })
}

/// A process that is not root has capabilities in its bounding set only (N-127).
fn capability_sets(names: &[String], uid: u32) -> Value {
    let effective: &[String] = if uid == 0 { names } else { &[] };
    json!({
        "bounding": names,
        "effective": effective,
        "permitted": effective,
        "inheritable": [],
        "ambient": [],
    })
}

fn root_propagation(mounts: &[Mount]) -> &'static str {
    let any = |propagation| mounts.iter().any(|mount| mount.propagation == propagation);
    if any(Propagation::Shared) { "shared" } else { "slave" }
}

/// The standard mounts (N-63), then the pod's own, each after the mount that contains its target (N-154).
fn mounts(parts: &Parts<'_>) -> Vec<Value> {
    let privileged = parts.spec.security.privileged;
    let access = if privileged { "rw" } else { "ro" };
    let mount = |target: &str, kind: &str, source: &str, options: &[&str]| json!({ "destination": target, "type": kind, "source": source, "options": options });
    let mut mounts = vec![
        mount("/proc", "proc", "proc", &["nosuid", "noexec", "nodev"]),
        mount("/dev", "tmpfs", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
        mount(
            "/dev/pts",
            "devpts",
            "devpts",
            &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
        ),
        mount("/dev/mqueue", "mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
        mount("/sys", "sysfs", "sysfs", &["nosuid", "noexec", "nodev", access]),
    ];
    mounts.extend(cgroup_mounts(parts, access));
    mounts.push(json!({
        "destination": "/dev/shm", "type": "bind", "source": parts.shm,
        "options": ["rbind", "rprivate", "nosuid", "nodev", "noexec", "rw"],
    }));
    let mut volumes: Vec<Mount> = parts.spec.mounts.clone();
    volumes.extend(parts.volumes.iter().map(|(target, source)| Mount {
        source: source.clone(),
        target: target.clone(),
        read_only: false,
        recursive_read_only: false,
        propagation: Propagation::Private,
        no_exec: false,
    }));
    volumes.sort_by_key(|mount| mount.target.components().count());
    mounts.retain(|mount| {
        !volumes.iter().any(|own| mount["destination"].as_str() == own.target.to_str())
    });
    mounts.extend(volumes.iter().map(bind));
    mounts
}

fn bind(mount: &Mount) -> Value {
    let mut options = vec!["rbind"];
    options.push(match mount.propagation {
        Propagation::Private => "rprivate",
        Propagation::Slave => "rslave",
        Propagation::Shared => "rshared",
    });
    options.push(if mount.read_only { "ro" } else { "rw" });
    if mount.recursive_read_only {
        options.push("rro");
    }
    if mount.no_exec {
        options.push("noexec");
    }
    json!({
        "destination": mount.target, "type": "bind", "source": mount.source, "options": options,
    })
}

/// Mounts the container's own cgroups at /sys/fs/cgroup. On v1, each hierarchy is a bind mount, because the
/// mounts that libcontainer makes would be writable.
fn cgroup_mounts(parts: &Parts<'_>, access: &str) -> Vec<Value> {
    const ROOT: &str = "/sys/fs/cgroup";
    let Layout::V1 { hierarchies, .. } = layout() else {
        return vec![json!({
            "destination": ROOT, "type": "cgroup", "source": "cgroup",
            "options": ["nosuid", "noexec", "nodev", "relatime", access],
        })];
    };
    let mut mounts = vec![json!({
        "destination": ROOT, "type": "tmpfs", "source": "tmpfs",
        "options": ["nosuid", "noexec", "nodev", "mode=755", "size=64k"],
    })];
    for controller in hierarchies.iter().flat_map(|hierarchy| &hierarchy.controllers) {
        let Some(source) = parts.cgroup.directory(controller) else { continue };
        mounts.push(json!({
            "destination": format!("{ROOT}/{controller}"), "type": "bind", "source": source,
            "options": ["bind", "rprivate", "nosuid", "noexec", "nodev", access],
        }));
    }
    mounts
}

/// The entry of a device in the configuration.
pub(crate) fn device(device: &Device) -> Result<Value> {
    let found = std::fs::metadata(&device.source)
        .map_err(Error::io("inspect the device", &device.source))?;
    let kind = found.file_type();
    let kind = match (kind.is_char_device(), kind.is_block_device()) {
        (true, _) => "c",
        (_, true) => "b",
        _ => {
            return Err(Error::Refused(format!("{} is not a device", device.source.display())));
        }
    };
    let (major, minor) = device_numbers(found.rdev());
    Ok(json!({
        "path": device.target, "type": kind, "major": major, "minor": minor,
        "fileMode": found.mode() & 0o777, "uid": found.uid(), "gid": found.gid(),
    }))
}

pub(crate) fn device_numbers(device: u64) -> (u64, u64) {
    (nix::sys::stat::major(device), nix::sys::stat::minor(device))
}

/// All devices in /dev, for privileged containers (N-127).
pub(crate) fn all_devices() -> Vec<Device> {
    let mut found = Vec::new();
    collect_devices(Path::new("/dev"), &mut found, 0);
    found
}

fn collect_devices(directory: &Path, found: &mut Vec<Device>, depth: usize) {
    /// Every container has its own mounts or files of these names.
    const OWN: &[&str] = &["pts", "shm", "mqueue", "console", "fd", "ptmx", ".udev", ".lxc"];
    const DEPTH_MAX: usize = 8;
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        if depth == 0 && OWN.iter().any(|own| entry.file_name() == *own) {
            continue;
        }
        let path = entry.path();
        if kind.is_dir() && depth < DEPTH_MAX {
            collect_devices(&path, found, depth + 1);
        } else if kind.is_char_device() || kind.is_block_device() {
            found.push(Device { source: path.clone(), target: path, permissions: "rwm".into() });
        }
    }
}
