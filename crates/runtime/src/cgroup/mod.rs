//! Control groups on v2, v1 and hybrid machines: limits, usage, and killing of all processes.
//!
//! A cgroup is identified by its path below the root; on v1 the same path exists in every hierarchy. On hybrid
//! machines, processes also join the v2 tree, which has no controllers there but can kill a whole cgroup at once.

mod cpu_priority;
mod device;
mod device_filter;
mod layout;
mod limits;
mod usage;

pub use cpu_priority::CpuPriority;
pub(crate) use cpu_priority::join as join_group;
pub(crate) use device::{Devices, Rule as DeviceRule};
pub(crate) use layout::{Layout, layout};
pub(crate) use limits::Level;

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// A cgroup, which may not exist yet.
#[derive(Debug, Clone)]
pub(crate) struct Cgroup {
    /// `/kubepods/burstable/pod<uid>`, with or without the leading slash.
    path: String,
}

impl Cgroup {
    pub(crate) fn new(path: &str) -> Cgroup {
        Cgroup { path: path.trim_matches('/').to_owned() }
    }

    pub(crate) fn child(&self, name: &str) -> Cgroup {
        Cgroup { path: format!("{}/{name}", self.path) }
    }

    /// The directories of this cgroup, one per hierarchy.
    fn directories(&self) -> impl Iterator<Item = PathBuf> + '_ {
        layout().roots().map(|root| root.join(&self.path))
    }

    /// Its directory in the hierarchy of a controller (with the name of v1).
    pub(crate) fn directory(&self, controller: &str) -> Option<PathBuf> {
        Some(layout().root_of(controller)?.join(&self.path))
    }

    /// Creates the cgroup and its parents.
    pub(crate) fn create(&self) -> io::Result<()> {
        match layout() {
            Layout::V2 { root } => {
                let mut directory = root.clone();
                for name in Path::new(&self.path).components() {
                    enable_controllers(&directory);
                    directory.push(name);
                    create(&directory)?;
                }
                Ok(())
            }
            Layout::V1 { .. } => {
                for directory in self.directories() {
                    create_all(&directory)?;
                    if directory.join("cpuset.cpus").exists() {
                        copy_cpuset(&directory)?;
                    }
                }
                Ok(())
            }
        }
    }

    /// Moves a process into the cgroup, in all hierarchies.
    pub(crate) fn join(&self, pid: u32) -> io::Result<()> {
        for directory in self.directories() {
            write(&directory.join("cgroup.procs"), &pid.to_string())?;
        }
        Ok(())
    }

    /// Moves a process into the cgroup in the v2 tree of a hybrid machine only.
    pub(crate) fn join_v2_of_hybrid(&self, pid: u32) -> io::Result<()> {
        let Layout::V1 { unified: Some(root), .. } = layout() else { return Ok(()) };
        write(&root.join(&self.path).join("cgroup.procs"), &pid.to_string())
    }

    /// All processes in the cgroup and its children.
    pub(crate) fn processes(&self) -> Vec<i32> {
        let mut found = Vec::new();
        let directory = layout().process_root().join(&self.path);
        collect_processes(&directory, &mut found);
        found
    }

    /// Sends SIGKILL to all processes. Returns true if there are none left.
    pub(crate) fn kill(&self) -> bool {
        if let Some(unified) = layout().unified() {
            let _ = write(&unified.join(&self.path).join("cgroup.kill"), "1");
        }
        let processes = self.processes();
        for pid in &processes {
            let pid = nix::unistd::Pid::from_raw(*pid);
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
        processes.is_empty()
    }

    /// Removes the cgroup if it has no processes and no children.
    pub(crate) fn remove_if_empty(&self) {
        for directory in self.directories() {
            let _ = fs::remove_dir(directory);
        }
    }

    /// Like [`Cgroup::remove`], also in hierarchies that only other runtimes use.
    pub(crate) fn remove_everywhere(&self) -> bool {
        let others = layout().other_roots().iter().map(|root| remove_all(&root.join(&self.path)));
        others.fold(self.remove(), |removed, other| removed & other)
    }

    /// Removes the cgroup and its children. Returns false if there is still a process.
    pub(crate) fn remove(&self) -> bool {
        let mut removed = true;
        for directory in self.directories() {
            removed &= remove_all(&directory);
        }
        removed
    }
}

/// Sets limits of a cgroup above the containers, for example of a pod. Creates it if needed.
pub(crate) fn limit_group(path: &str, resources: &crate::Resources) -> io::Result<()> {
    let group = Cgroup::new(path);
    group.create()?;
    group.limit(resources, Level::Pod)
}

fn create(directory: &Path) -> io::Result<()> {
    match fs::create_dir(directory) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Like `create_dir_all`, but faster in the usual case that only the last directory is missing.
fn create_all(directory: &Path) -> io::Result<()> {
    match create(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => fs::create_dir_all(directory),
        other => other,
    }
}

/// Enables all available controllers for the children of a v2 cgroup. If that fails, setting a limit will fail.
fn enable_controllers(directory: &Path) {
    let Ok(available) = fs::read_to_string(directory.join("cgroup.controllers")) else { return };
    let control = directory.join("cgroup.subtree_control");
    let enabled = fs::read_to_string(&control).unwrap_or_default();
    for controller in available.split_whitespace() {
        if !enabled.split_whitespace().any(|on| on == controller) {
            let _ = write(&control, &format!("+{controller}"));
        }
    }
}

/// A new v1 cpuset is empty and accepts no process until it has CPUs, so copy those of the parent.
fn copy_cpuset(directory: &Path) -> io::Result<()> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let own = fs::read_to_string(directory.join(file))?;
        let Some(parent) = directory.parent() else { continue };
        if own.trim().is_empty() && parent.join(file).exists() {
            copy_cpuset(parent)?;
            let inherited = fs::read_to_string(parent.join(file))?;
            write(&directory.join(file), inherited.trim())?;
        }
    }
    Ok(())
}

fn collect_processes(directory: &Path, found: &mut Vec<i32>) {
    if let Ok(list) = fs::read_to_string(directory.join("cgroup.procs")) {
        found.extend(list.lines().filter_map(|line| line.parse::<i32>().ok()));
    }
    for child in child_groups(directory) {
        collect_processes(&child, found);
    }
}

fn child_groups(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

fn remove_all(directory: &Path) -> bool {
    match fs::remove_dir(directory) {
        Ok(()) => return true,
        Err(error) if error.kind() == ErrorKind::NotFound => return true,
        Err(_) => {}
    }
    for child in child_groups(directory) {
        remove_all(&child);
    }
    match fs::remove_dir(directory) {
        Ok(()) => true,
        Err(error) => error.kind() == ErrorKind::NotFound,
    }
}

/// Writes to an existing control file with a single write(2).
pub(crate) fn write(path: &Path, value: &str) -> io::Result<()> {
    use io::Write;
    fs::File::options().write(true).open(path)?.write_all(value.as_bytes())
}
