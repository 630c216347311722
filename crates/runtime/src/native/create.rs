//! From a container's spec to everything on disk and in the kernel that its start needs.

use super::command::{command, environment};
use super::image::{ImageConfig, Unpacked};
use super::oci::{self, Parts};
use super::record::{self, ContainerRecord};
use super::sandbox::{LiveSandbox, is_running};
use super::user::Accounts;
use super::{capability, private, seccomp};
use crate::cgroup::{DeviceRule, Devices, Level};
use crate::shim::message::Plan;
use crate::signals::signal_number;
use crate::{
    Container, ContainerSpec, ContainerState, ContainerUsage, Device, Error, Mounted, Namespace,
    Propagation, Result,
};
use std::fs;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Everything but the start.
pub(crate) fn create(
    sandbox: &LiveSandbox,
    images: &dyn Unpacked,
    spec: &ContainerSpec,
) -> Result<Container> {
    let id = super::new_id();
    let outcome = prepare(sandbox, images, spec, &id);
    if outcome.is_err() {
        // What was made so far belongs to nobody.
        let _ = fs::remove_dir_all(sandbox.container_directory(&id));
        sandbox.container_cgroup(&id).remove();
        let _ = images.release(&id);
    }
    outcome
}

fn prepare(
    sandbox: &LiveSandbox,
    images: &dyn Unpacked,
    spec: &ContainerSpec,
    id: &str,
) -> Result<Container> {
    let image = images.config(&spec.image)?;
    images.hold(id, &spec.image)?;
    let layers = images.layers(&spec.image)?;
    let command = command(spec, &image)?;
    let user = Accounts::read(&layers).resolve(&image.user, &spec.security)?;
    let stop_signal = stop_signal(spec, &image)?;
    let directory = sandbox.container_directory(id);
    for name in ["upper", "work", "rootfs", "state"] {
        let path = directory.join(name);
        fs::create_dir_all(&path).map_err(Error::io("make", path))?;
    }
    // What the overlay shows as `/` is the upper directory itself.
    open_to_all(&directory.join("upper"))?;
    let volumes = make_volumes(spec, &image, &directory)?;
    make_missing_sources(spec)?;
    let working_dir = working_dir(spec, &image);
    make_inside_mount(spec, &working_dir)?;

    // A root that the node sees is made in the node's namespace: nothing may be bound there.
    let visible_root = spec.mounts.iter().any(|m| m.propagation == Propagation::Shared);
    let mut spec = spec.clone();
    let staged = match visible_root {
        true => Vec::new(),
        false => private::stage(&mut spec.mounts, &directory)?,
    };
    let spec = &spec;

    let devices = match spec.security.privileged {
        true => oci::all_devices(),
        false => spec.devices.clone(),
    };
    let cgroup = sandbox.container_cgroup(id);
    let cgroup_path = format!("{}/{id}", sandbox.record.cgroup);
    cgroup.create().map_err(Error::io("make the cgroup", &cgroup_path))?;
    cgroup
        .limit(&spec.resources, Level::Container)
        .and_then(|()| cgroup.allow_devices(&device_rules(spec, &devices)))
        .map_err(Error::io("limit the cgroup", &cgroup_path))?;

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
    note_oom_score(spec.security.oom_score_adj);
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
        pid_of: spec.pid_of.clone(),
        terminal: spec.tty,
        stdin: spec.stdin,
        stdin_once: spec.stdin_once,
        log: log.clone(),
    };
    record::write(&directory.join("plan.json"), &plan)?;
    let container = Container {
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
        log_path: log,
        labels: spec.labels.clone(),
        annotations: spec.annotations.clone(),
    };
    let record = ContainerRecord {
        container: container.clone(),
        stop_signal,
        terminal: spec.tty,
        stdin: spec.stdin,
    };
    // Last: a container without a record was never made.
    record::write(&directory.join("container.json"), &record)?;
    sandbox.put_container(record);
    Ok(container)
}

/// Where the kernel forbids to lower it, the value stays the parent's: said once, for the first that
/// would have needed it.
fn note_oom_score(wanted: i32) {
    static SAID: std::sync::Once = std::sync::Once::new();
    if SAID.is_completed() {
        return;
    }
    const CAP_SYS_RESOURCE: u32 = 24;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let capabilities = capabilities.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    let own = fs::read_to_string("/proc/self/oom_score_adj").unwrap_or_default();
    let lower = own.trim().parse().is_ok_and(|own: i32| wanted < own);
    if lower && capabilities.is_some_and(|held| held & (1 << CAP_SYS_RESOURCE) == 0) {
        SAID.call_once(|| {
            tracing::warn!(
                wanted,
                own = own.trim(),
                "the kernel does not let us lower oom_score_adj (no CAP_SYS_RESOURCE): when memory runs \
                 out, guaranteed pods are not spared"
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

fn open_to_all(directory: &Path) -> Result<()> {
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
fn make_volumes(
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
        fs::create_dir_all(&source).map_err(Error::io("make", &source))?;
        open_to_all(&source)?;
        volumes.push((target, source));
    }
    Ok(volumes)
}

/// N-145: what is to be mounted and does not exist becomes a directory.
fn make_missing_sources(spec: &ContainerSpec) -> Result<()> {
    for mount in &spec.mounts {
        if !mount.source.exists() {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(&mount.source)
                .map_err(Error::io("make", &mount.source))?;
        }
    }
    Ok(())
}

/// A working directory in a volume is made there; anywhere else the shim makes it in the root.
fn make_inside_mount(spec: &ContainerSpec, working_dir: &Path) -> Result<()> {
    let below = spec.mounts.iter().filter(|mount| working_dir.starts_with(&mount.target));
    let Some(mount) = below.max_by_key(|mount| mount.target.components().count()) else {
        return Ok(());
    };
    let inside = working_dir.strip_prefix(&mount.target).unwrap_or(Path::new(""));
    if mount.read_only || inside.as_os_str().is_empty() || !mount.source.is_dir() {
        return Ok(());
    }
    crate::shim::make_inside(&mount.source, inside)
        .map_err(Error::io("make the working directory in", &mount.source))
}

fn device_rules(spec: &ContainerSpec, devices: &[Device]) -> Devices {
    if spec.security.privileged {
        return Devices::All;
    }
    let mut rules = Devices::usual();
    for device in devices {
        let Ok(found) = fs::metadata(&device.source) else { continue };
        let (major, minor) = oci::numbers(found.rdev());
        rules.push(DeviceRule {
            kind: if found.file_type().is_block_device() { 'b' } else { 'c' },
            major: Some(major),
            minor: Some(minor),
            access: device.permissions.clone(),
        });
    }
    Devices::Only(rules)
}

/// What the running containers of a sandbox use; of disk only if asked for.
pub(crate) fn usage(sandbox: &LiveSandbox, disk: bool) -> Vec<ContainerUsage> {
    let running = sandbox.containers().into_iter().filter(|r| is_running(&r.container.state));
    running
        .filter_map(|record| {
            let container = record.container;
            let used = sandbox.container_cgroup(&container.id).usage()?;
            let upper = sandbox.container_directory(&container.id).join("upper");
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
                disk_bytes: if disk { disk_bytes(&upper) } else { 0 },
                processes: used.processes,
                started_at,
            })
        })
        .collect()
}

/// Blocks, not lengths: a file of holes takes no room.
fn disk_bytes(directory: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(directory) else { return 0 };
    let of_entry = |entry: fs::DirEntry| {
        let Ok(found) = entry.metadata() else { return 0 };
        let below = if found.is_dir() { disk_bytes(&entry.path()) } else { 0 };
        found.blocks() * 512 + below
    };
    entries.flatten().map(of_entry).sum()
}
