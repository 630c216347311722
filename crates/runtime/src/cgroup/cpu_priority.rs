//! Higher CPU weights for the agent and the shims than for pods, so that they meet deadlines when all CPUs are busy.
//!
//! There are two cgroups beside that of the pods. The agent's has ten times the default weight. The shims' has less,
//! because a shim copies the output of its containers, and containers must not get more CPU time by writing much.
//! On v1 the cgroups exist for the cpu controller only. On v2, journald and systemctl identify a service by the
//! cgroup of its process, so the agent of a systemd service stays in its cgroup, and its unit has to set the weight.

use super::{Cgroup, Layout, create_all, layout, write};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Multiples of the default weight.
const AGENT_WEIGHT: u32 = 10;
const SHIMS_WEIGHT: u32 = 5;

/// The kernel's default weight on v1 and on v2.
const DEFAULT_SHARES: u32 = 1024;
const DEFAULT_WEIGHT: u32 = 100;

/// The agent holds this while it runs. Dropping it moves the process back to its original cgroup and removes the
/// cgroups that are empty.
#[derive(Debug, Default)]
pub struct CpuPriority {
    /// The agent's cgroup, and the one it was in before.
    agent: Option<(PathBuf, PathBuf)>,
    shims: Option<PathBuf>,
}

impl CpuPriority {
    /// Creates the cgroups and moves this process. Logs a warning if that fails. `pods` is the cgroup of all pods.
    pub fn acquire(pods: &str) -> CpuPriority {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let effect = "signals to pods can be tens of milliseconds late while all CPUs are busy";
        let agent = match location_of_agent(layout(), &own).and_then(|location| match location {
            Location::Unit(slice) => check_weight(&slice).map(|()| None),
            Location::Movable(before) => enter(pods).map(|group| Some((group, before))),
        }) {
            Ok(moved) => moved,
            Err(error) => {
                tracing::warn!(%error, "landfall has no CPU priority: {effect}");
                None
            }
        };
        let shims = create_group(&shims_of(pods), SHIMS_WEIGHT)
            .inspect_err(|error| tracing::warn!(%error, "shims have no CPU priority: {effect}"));
        CpuPriority { agent, shims: shims.ok() }
    }

    /// The cgroup of shims, if it exists.
    pub fn shims(&self) -> Option<PathBuf> {
        self.shims.clone()
    }

    /// Removes the cgroups of an agent that was killed.
    pub fn remove(pods: &str) {
        let root = layout().root_of("cpu");
        for group in [agent_of(pods), shims_of(pods)] {
            // The kernel does not remove a cgroup that has processes.
            let _ = root.map(|root| fs::remove_dir(root.join(group)));
        }
    }
}

impl Drop for CpuPriority {
    fn drop(&mut self) {
        if let Some((group, before)) = &self.agent {
            let _ = write(&before.join("cgroup.procs"), "0");
            let _ = fs::remove_dir(group);
        }
        if let Some(shims) = &self.shims {
            let _ = fs::remove_dir(shims);
        }
    }
}

/// Moves the calling process into the cgroup.
pub(crate) fn join(group: &Path) -> io::Result<()> {
    write(&group.join("cgroup.procs"), "0")
}

fn agent_of(pods: &str) -> String {
    format!("{}.agent", pods.trim_matches('/'))
}

fn shims_of(pods: &str) -> String {
    format!("{}.shims", pods.trim_matches('/'))
}

fn enter(pods: &str) -> io::Result<PathBuf> {
    let group = create_group(&agent_of(pods), AGENT_WEIGHT)?;
    join(&group).inspect_err(|_| drop(fs::remove_dir(&group)))?;
    Ok(group)
}

/// Creates a cgroup with a multiple of the default weight. Returns its directory in the cpu hierarchy.
fn create_group(name: &str, times: u32) -> io::Result<PathBuf> {
    let root = layout().root_of("cpu");
    let root = root.ok_or_else(|| io::Error::other("this machine has no cpu cgroup controller"))?;
    let directory = root.join(name);
    let (file, weight) = match layout() {
        Layout::V2 { .. } => {
            Cgroup::new(name).create()?;
            ("cpu.weight", times * DEFAULT_WEIGHT)
        }
        Layout::V1 { .. } => {
            create_all(&directory)?;
            ("cpu.shares", times * DEFAULT_SHARES)
        }
    };
    let written = write(&directory.join(file), &weight.to_string());
    written.inspect_err(|_| drop(fs::remove_dir(&directory)))?;
    Ok(directory)
}

/// The cgroup of the agent's process before it is moved.
#[derive(Debug, PartialEq, Eq)]
enum Location {
    /// A cgroup that the process may leave.
    Movable(PathBuf),
    /// The cgroup of a systemd unit. This is its outermost slice, which competes with the pods for CPU time.
    Unit(PathBuf),
}

/// `own` is the content of /proc/self/cgroup: lines of `number:controllers:path`. On v2 there are no controllers.
fn location_of_agent(layout: &Layout, own: &str) -> io::Result<Location> {
    let is_cpu = |controllers: &str| match layout {
        Layout::V2 { .. } => controllers.is_empty(),
        Layout::V1 { .. } => controllers.split(',').any(|controller| controller == "cpu"),
    };
    let path = own.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        is_cpu(controllers).then(|| path.trim_start_matches('/'))
    });
    let (Some(root), Some(path)) = (layout.root_of("cpu"), path) else {
        return Err(io::Error::other("this machine has no cpu cgroup controller"));
    };
    let mut names = path.split('/');
    let of_unit = layout.is_v2() && names.clone().any(|name| name.ends_with(".service"));
    Ok(match names.next().filter(|_| of_unit) {
        Some(outermost) => Location::Unit(root.join(outermost)),
        None => Location::Movable(root.join(path)),
    })
}

fn check_weight(slice: &Path) -> io::Result<()> {
    let text = fs::read_to_string(slice.join("cpu.weight"))?;
    let weight = text.trim().parse::<u32>().unwrap_or_default();
    if weight < AGENT_WEIGHT * DEFAULT_WEIGHT {
        let slice = slice.display();
        return Err(io::Error::other(format!(
            "{slice} has the CPU weight {weight}; install landfall.slice together with landfall.service to raise it"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::layout::Hierarchy;
    use super::*;

    fn v1() -> Layout {
        let hierarchy = |root: &str, controllers: &[&str]| Hierarchy {
            root: root.into(),
            controllers: controllers.iter().map(|name| (*name).to_owned()).collect(),
        };
        let hierarchies = vec![hierarchy("/c/cpu", &["cpu", "cpuacct"]), hierarchy("/c/m", &["m"])];
        Layout::V1 { hierarchies, unified: Some("/c/unified".into()), others: vec![] }
    }

    /// On v1 a service stays in systemd's own hierarchy even if it moves in the cpu hierarchy.
    #[test]
    fn the_agent_is_moved_unless_it_is_a_systemd_unit_on_v2() {
        let v2 = Layout::V2 { root: "/c".into() };
        let unit = "0::/system.slice/landfall.service\n";
        let movable = |path: &str| Location::Movable(path.into());
        for (layout, own, expected) in [
            (&v2, unit, Location::Unit("/c/system.slice".into())),
            (&v2, "0::/user.slice/session-3.scope\n", movable("/c/user.slice/session-3.scope")),
            (&v2, "0::/\n", movable("/c/")),
            (&v1(), "4:m:/x\n2:cpu,cpuacct:/a.service\n0::/\n", movable("/c/cpu/a.service")),
            (&v1(), "2:cpuset:/\n1:cpu,cpuacct:/\n", movable("/c/cpu/")),
        ] {
            assert_eq!(location_of_agent(layout, own).unwrap(), expected, "{own}");
        }
        assert!(location_of_agent(&v1(), "0::/\n").is_err());
        assert!(location_of_agent(&v2, "").is_err());
    }

    #[test]
    fn a_slice_with_too_little_weight_is_an_error() {
        let slice = tempfile::tempdir().unwrap();
        let check = |weight: &str| {
            fs::write(slice.path().join("cpu.weight"), weight).unwrap();
            check_weight(slice.path())
        };
        assert!(check("100\n").unwrap_err().to_string().contains("CPU weight 100;"));
        assert!(check("1000\n").is_ok());
    }
}
