//! Control groups on v2, v1 and hybrid machines: limits, counts, and the end of every process.
//!
//! A group is named by its path below the controllers' roots; on v1 the same path exists in every
//! hierarchy. On hybrid machines the v2 tree (which has no controllers there) is joined as well,
//! because it can kill a whole group in one step.

mod device;
mod device_filter;
mod layout;
mod limits;
mod precedence;
mod usage;

pub(crate) use device::{Devices, Rule as DeviceRule};
pub(crate) use layout::{Layout, layout};
pub(crate) use limits::Level;
pub use precedence::Precedence;
pub(crate) use precedence::join as join_group;

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// One group, whether it exists or not.
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

    /// The directories of this group, one for each hierarchy of the machine.
    fn directories(&self) -> impl Iterator<Item = PathBuf> + '_ {
        layout().roots().map(|root| root.join(&self.path))
    }

    /// Its directory where the named controller (as v1 calls it) lives.
    pub(crate) fn directory(&self, controller: &str) -> Option<PathBuf> {
        Some(layout().root_of(controller)?.join(&self.path))
    }

    /// Makes the group and those above it.
    pub(crate) fn create(&self) -> io::Result<()> {
        match layout() {
            Layout::V2 { root } => {
                let mut directory = root.clone();
                for name in Path::new(&self.path).components() {
                    enable_controllers(&directory);
                    directory.push(name);
                    make(&directory)?;
                }
                Ok(())
            }
            Layout::V1 { .. } => {
                for directory in self.directories() {
                    make_all(&directory)?;
                    if directory.join("cpuset.cpus").exists() {
                        copy_cpuset(&directory)?;
                    }
                }
                Ok(())
            }
        }
    }

    /// Moves a process into the group, in every hierarchy.
    pub(crate) fn join(&self, pid: u32) -> io::Result<()> {
        for directory in self.directories() {
            write(&directory.join("cgroup.procs"), &pid.to_string())?;
        }
        Ok(())
    }

    /// Moves a process into the group in a hybrid machine's v2 tree, and nowhere else.
    pub(crate) fn join_bare_tree(&self, pid: u32) -> io::Result<()> {
        let Layout::V1 { unified: Some(root), .. } = layout() else { return Ok(()) };
        write(&root.join(&self.path).join("cgroup.procs"), &pid.to_string())
    }

    /// Every process in the group and below it.
    pub(crate) fn processes(&self) -> Vec<i32> {
        let mut found = Vec::new();
        let directory = layout().process_root().join(&self.path);
        collect_processes(&directory, &mut found);
        found
    }

    /// Sends SIGKILL to every process. True when there was none left to kill.
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

    /// Removes the group unless something is in it or below it.
    pub(crate) fn remove_if_empty(&self) {
        for directory in self.directories() {
            let _ = fs::remove_dir(directory);
        }
    }

    /// Removes the group and everything below it. False when a process is still in it.
    pub(crate) fn remove(&self) -> bool {
        let mut gone = true;
        for directory in self.directories() {
            gone &= remove_all(&directory);
        }
        gone
    }
}

/// Limits of a group above the containers, which is made if it is not there.
pub(crate) fn limit_group(path: &str, resources: &crate::Resources) -> io::Result<()> {
    let group = Cgroup::new(path);
    group.create()?;
    group.limit(resources, Level::Pod)
}

fn make(directory: &Path) -> io::Result<()> {
    match fs::create_dir(directory) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Like create_dir_all, but one call when only the last is missing, which is the usual case.
fn make_all(directory: &Path) -> io::Result<()> {
    match make(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => fs::create_dir_all(directory),
        other => other,
    }
}

/// A v2 group passes on to its children what its own parent gave it. What cannot be passed on is
/// noticed when a limit is written.
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

/// A new v1 cpuset is empty and takes no process until it is given processors.
fn copy_cpuset(directory: &Path) -> io::Result<()> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let own = fs::read_to_string(directory.join(file))?;
        let Some(parent) = directory.parent() else { continue };
        if own.trim().is_empty() && parent.join(file).exists() {
            copy_cpuset(parent)?;
            let given = fs::read_to_string(parent.join(file))?;
            write(&directory.join(file), given.trim())?;
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

/// One write(2), as control files want it, into a file that exists.
pub(crate) fn write(path: &Path, value: &str) -> io::Result<()> {
    use io::Write;
    fs::File::options().write(true).open(path)?.write_all(value.as_bytes())
}
