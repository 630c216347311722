//! Creates a container: its directory, its cgroup and the files that the shim starts it from.

use super::command::{command, environment};
use super::image::{ImageConfig, UnpackedImages};
use super::oci::{self, Parts};
use super::record::{self, ContainerRecord};
use super::sandbox::{LiveSandbox, is_running};
use super::user::{Accounts, ProcessUser};
use super::{capability, private_mounts, seccomp};
use crate::cgroup::{Cgroup, DeviceRule, Devices, Level};
use crate::shim::message::Plan;
use crate::signals::signal_number;
use crate::{
    Container, ContainerSpec, ContainerState, ContainerUsage, Device, Error, LogLimits, Mounted,
    Namespace, Propagation, Result,
};
use std::fs;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Unit of `st_blocks`.
const BLOCK: u64 = 512;

/// Creates a container without starting it.
pub(crate) fn create(
    sandbox: &LiveSandbox,
    images: &dyn UnpackedImages,
    spec: &ContainerSpec,
) -> Result<Container> {
    let id = super::new_id();
    let outcome = prepare(sandbox, images, spec, &id);
    if outcome.is_err() {
        // Remove what was created so far.
        let _ = fs::remove_dir_all(sandbox.container_directory(&id));
        sandbox.container_cgroup(&id).remove();
        let _ = images.release(&id);
    }
    outcome
}

fn prepare(
    sandbox: &LiveSandbox,
    images: &dyn UnpackedImages,
    spec: &ContainerSpec,
    id: &str,
) -> Result<Container> {
    let image = images.config(&spec.image)?;
    images.hold(id, &spec.image)?;
    clock::crash_point("image held");
    let layers = images.layers(&spec.image)?;
    let command = command(spec, &image)?;
    let user = Accounts::read(&layers).resolve(&image.user, &spec.security)?;
    let stop_signal = stop_signal(spec, &image)?;
    let directory = sandbox.container_directory(id);
    let volumes = create_directories(sandbox, spec, &image, &directory)?;
    let working_dir = working_dir(spec, &image);
    create_inside_mount(spec, &working_dir)?;

    // With a shared volume, the root is mounted in the node's mount namespace. Staged mounts would stay there.
    let visible_root = spec.mounts.iter().any(|m| m.propagation == Propagation::Shared);
    if visible_root && sandbox.record.users.is_some() {
        return Err(Error::Refused(
            "mountPropagation Bidirectional cannot be used with hostUsers: false".into(),
        ));
    }
    let mut spec = spec.clone();
    let staged = match visible_root {
        true => Vec::new(),
        false => private_mounts::stage(&mut spec.mounts, &directory)?,
    };
    let spec = &spec;

    let devices = match spec.security.privileged {
        true => oci::all_devices(),
        false => spec.devices.clone(),
    };
    let cgroup_path = format!("{}/{id}", sandbox.record.cgroup);
    let cgroup = create_cgroup(sandbox, spec, id, &cgroup_path, &devices)?;
    let own_pid = sandbox.record.pid == Namespace::Container && spec.pid_of.is_none();
    let shm = match sandbox.record.ipc {
        Namespace::Host => PathBuf::from("/dev/shm"),
        _ => sandbox.directory.join("shm"),
    };
    let capabilities = capability::bounding(&spec.security)?;
    let parts = Parts {
        spec,
        command,
        env: environment(spec, &image, user.home.as_deref()),
        working_dir: working_dir.clone(),
        user: &user,
        seccomp: seccomp::profile(&spec.security, &capabilities)?,
        capabilities,
        own_pid,
        shm,
        volumes: volumes.clone(),
        cgroup: &cgroup,
        cgroup_path: cgroup_path.clone(),
        devices: devices.iter().map(oci::device).collect::<Result<_>>()?,
    };
    record::write(&directory.join("config.json"), &oci::configuration(&parts))?;
    warn_if_oom_score_is_ignored(spec.security.oom_score_adj);
    let log = sandbox.record.log_directory.join(&spec.log_path);
    let plan = Plan {
        layers,
        visible_root,
        staged,
        cgroup: cgroup_path,
        oom_score_adj: spec.security.oom_score_adj,
        own_pid,
        working_dir,
        volumes,
        mapped: spec.mounts.iter().map(|mount| mount.target.clone()).collect(),
        pid_of: spec.pid_of.clone(),
        terminal: spec.tty,
        stdin: spec.stdin,
        stdin_once: spec.stdin_once,
        log: log.clone(),
        log_limits: LogLimits::default(),
    };
    record::write(&directory.join("plan.json"), &plan)?;
    let record = ContainerRecord {
        container: created(sandbox, spec, id, &user, log),
        stop_signal,
        terminal: spec.tty,
        stdin: spec.stdin,
    };
    // Last: a directory without this file is not a container.
    record::write(&directory.join("container.json"), &record)?;
    clock::crash_point("container recorded");
    sandbox.put_container(record.clone());
    Ok(record.container)
}

fn created(
    sandbox: &LiveSandbox,
    spec: &ContainerSpec,
    id: &str,
    user: &ProcessUser,
    log_path: PathBuf,
) -> Container {
    Container {
        id: id.to_owned(),
        sandbox: sandbox.record.id.clone(),
        name: spec.name.clone(),
        attempt: spec.attempt,
        state: ContainerState::Created,
        created_at: clock::now(),
        image_name: spec.image_name.clone(),
        image: spec.image.clone(),
        resources: spec.resources.clone(),
        user: Some((user.uid, user.gid, user.groups.clone())),
        mounts: spec.mounts.iter().map(mounted).collect(),
        log_path,
        labels: spec.labels.clone(),
        annotations: spec.annotations.clone(),
    }
}

/// Creates the container's directories and those of its volumes. Returns the image's volumes.
fn create_directories(
    sandbox: &LiveSandbox,
    spec: &ContainerSpec,
    image: &ImageConfig,
    directory: &Path,
) -> Result<Vec<(PathBuf, PathBuf)>> {
    for name in ["upper", "work", "rootfs", "state"] {
        let path = directory.join(name);
        fs::create_dir_all(&path).map_err(Error::io("create", path))?;
    }
    clock::crash_point("container directory made");
    // The mode of this directory becomes the mode of `/` in the container.
    make_accessible(&directory.join("upper"))?;
    let volumes = create_volumes(spec, image, directory)?;
    if let Some(users) = sandbox.record.users {
        let upper = std::iter::once(directory.join("upper"));
        for path in upper.chain(volumes.iter().map(|(_, source)| source.clone())) {
            std::os::unix::fs::chown(&path, Some(users.first), Some(users.first))
                .map_err(Error::io("change the owner of", &path))?;
        }
    }
    create_missing_sources(spec)?;
    Ok(volumes)
}

fn create_cgroup(
    sandbox: &LiveSandbox,
    spec: &ContainerSpec,
    id: &str,
    path: &str,
    devices: &[Device],
) -> Result<Cgroup> {
    let cgroup = sandbox.container_cgroup(id);
    cgroup.create().map_err(Error::io("create the cgroup", path))?;
    clock::crash_point("container cgroup made");
    cgroup
        .limit(&spec.resources, Level::Container)
        .and_then(|()| cgroup.allow_devices(&device_rules(spec, devices)))
        .map_err(Error::io("set limits of the cgroup", path))?;
    Ok(cgroup)
}

/// Without CAP_SYS_RESOURCE the kernel does not allow a lower oom_score_adj, and the value of the parent remains.
/// Warns once, for the first container that needs a lower value.
fn warn_if_oom_score_is_ignored(oom_score_adj: i32) {
    static WARNED: std::sync::Once = std::sync::Once::new();
    if WARNED.is_completed() {
        return;
    }
    const CAP_SYS_RESOURCE: u32 = 24;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = capabilities.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    let own = fs::read_to_string("/proc/self/oom_score_adj").unwrap_or_default();
    let lower = own.trim().parse().is_ok_and(|own: i32| oom_score_adj < own);
    if lower && capabilities.is_some_and(|held| held & (1 << CAP_SYS_RESOURCE) == 0) {
        WARNED.call_once(|| {
            tracing::warn!(
                oom_score_adj,
                own = own.trim(),
                "cannot lower oom_score_adj, because landfall does not have CAP_SYS_RESOURCE: when the node \
                 runs out of memory, guaranteed pods are not protected from the OOM killer"
            );
        });
    }
}

fn mounted(mount: &crate::Mount) -> Mounted {
    Mounted {
        target: mount.target.clone(),
        read_only: mount.read_only,
        recursive_read_only: mount.recursive_read_only,
    }
}

fn make_accessible(directory: &Path) -> Result<()> {
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755))
        .map_err(Error::io("set the mode of", directory))
}

fn stop_signal(spec: &ContainerSpec, image: &ImageConfig) -> Result<i32> {
    let named = spec.stop_signal.as_deref().or(image.stop_signal.as_deref());
    named.filter(|name| !name.is_empty()).map_or(Ok(libc::SIGTERM), signal_number)
}

fn working_dir(spec: &ContainerSpec, image: &ImageConfig) -> PathBuf {
    let given = spec.working_dir.as_deref().filter(|path| !path.is_empty());
    let path = given.or(image.working_dir.as_deref()).unwrap_or("/");
    Path::new("/").join(path)
}

/// N-49: a directory for each VOLUME of the image that the pod does not mount over.
fn create_volumes(
    spec: &ContainerSpec,
    image: &ImageConfig,
    directory: &Path,
) -> Result<Vec<(PathBuf, PathBuf)>> {
    let mut volumes = Vec::new();
    for (number, volume) in image.volumes.iter().enumerate() {
        let target = Path::new("/").join(volume);
        if spec.mounts.iter().any(|mount| mount.target == target) {
            continue;
        }
        let source = directory.join("volumes").join(number.to_string());
        fs::create_dir_all(&source).map_err(Error::io("create", &source))?;
        make_accessible(&source)?;
        volumes.push((target, source));
    }
    Ok(volumes)
}

/// N-145: creates a directory for every mount source that does not exist.
fn create_missing_sources(spec: &ContainerSpec) -> Result<()> {
    for mount in &spec.mounts {
        if !mount.source.exists() {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(&mount.source)
                .map_err(Error::io("create", &mount.source))?;
        }
    }
    Ok(())
}

/// Creates the working directory if it is in a volume. Otherwise the shim creates it in the root filesystem.
fn create_inside_mount(spec: &ContainerSpec, working_dir: &Path) -> Result<()> {
    let below = spec.mounts.iter().filter(|mount| working_dir.starts_with(&mount.target));
    let Some(mount) = below.max_by_key(|mount| mount.target.components().count()) else {
        return Ok(());
    };
    let inside = working_dir.strip_prefix(&mount.target).unwrap_or(Path::new(""));
    if mount.read_only || inside.as_os_str().is_empty() || !mount.source.is_dir() {
        return Ok(());
    }
    crate::shim::create_inside(&mount.source, inside)
        .map_err(Error::io("create the working directory in", &mount.source))
}

fn device_rules(spec: &ContainerSpec, devices: &[Device]) -> Devices {
    if spec.security.privileged {
        return Devices::All;
    }
    let mut rules = Devices::default_rules();
    for device in devices {
        let Ok(found) = fs::metadata(&device.source) else { continue };
        let (major, minor) = oci::device_numbers(found.rdev());
        rules.push(DeviceRule {
            kind: if found.file_type().is_block_device() { 'b' } else { 'c' },
            major: Some(major),
            minor: Some(minor),
            access: device.permissions.clone(),
        });
    }
    Devices::Only(rules)
}

/// Resource usage of a sandbox's running containers; of disk only if `disk` is set.
pub(crate) fn usage(sandbox: &LiveSandbox, disk: bool) -> Vec<ContainerUsage> {
    let running = sandbox.containers().into_iter().filter(|r| is_running(&r.container.state));
    running
        .filter_map(|record| {
            let container = record.container;
            let used = sandbox.container_cgroup(&container.id).usage()?;
            // The image's volumes count as well.
            let directory = sandbox.container_directory(&container.id);
            let written =
                || disk_bytes(&directory.join("upper")) + disk_bytes(&directory.join("volumes"));
            let started_at = match container.state {
                ContainerState::Running { started_at } => Some(started_at),
                _ => None,
            };
            Some(ContainerUsage {
                pod: sandbox.record.pod.uid.clone(),
                container_id: container.id,
                container: container.name,
                at: clock::now(),
                cpu_nanoseconds: used.cpu_nanoseconds,
                memory_bytes: used.memory_bytes,
                working_set_bytes: used.working_set_bytes,
                rss_bytes: used.rss_bytes,
                page_faults: used.page_faults,
                major_page_faults: used.major_page_faults,
                disk_bytes: if disk { written() } else { 0 },
                processes: used.processes,
                started_at,
            })
        })
        .collect()
}

/// Counts blocks, not file sizes, because of sparse files.
fn disk_bytes(directory: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(directory) else { return 0 };
    let of_entry = |entry: fs::DirEntry| {
        let Ok(found) = entry.metadata() else { return 0 };
        let below = if found.is_dir() { disk_bytes(&entry.path()) } else { 0 };
        found.blocks() * BLOCK + below
    };
    entries.flatten().map(of_entry).sum()
}
