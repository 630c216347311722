//! A right to processors before pods and other users of the machine: whoever keeps deadlines must
//! have its turn when all processors are busy.
//!
//! Two groups beside the pods'. The agent's weighs ten times what others do. The shims' weighs less: a
//! shim copies what its containers write, and nobody should get more of the machine by writing much.
//! On v1 they exist for the cpu controller only. On v2 a process is in one place, and by that place
//! journald and systemctl know a service: its process stays there, and its unit has to say the weight.

use super::{Cgroup, Layout, layout, make_all, write};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// As multiples of what a group weighs that nobody cared about.
const AGENT_WEIGHT: u32 = 10;
const SHIMS_WEIGHT: u32 = 5;

/// What that is, on v1 and v2.
const ORDINARY_SHARES: u32 = 1024;
const ORDINARY_WEIGHT: u32 = 100;

/// Held by an agent while it works. Dropped, the process is where it was before, and the groups that
/// nobody is in any more are gone.
#[derive(Debug, Default)]
pub struct Precedence {
    /// Where this process is, and where it was.
    agent: Option<(PathBuf, PathBuf)>,
    shims: Option<PathBuf>,
}

impl Precedence {
    /// Takes what it can get; what it could not get is said in the log. `pods` is the group of all pods.
    pub fn take(pods: &str) -> Precedence {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let costs = "while all processors are busy, signals can be tens of milliseconds late";
        let agent = match place_of_agent(layout(), &own).and_then(|place| match place {
            Place::Unit(slice) => check_weight(&slice).map(|()| None),
            Place::Movable(before) => enter(pods).map(|group| Some((group, before))),
        }) {
            Ok(moved) => moved,
            Err(error) => {
                tracing::warn!(%error, "landfall gets no processor before others: {costs}");
                None
            }
        };
        let shims = group(&shims_of(pods), SHIMS_WEIGHT).inspect_err(
            |error| tracing::warn!(%error, "shims get no processor before others: {costs}"),
        );
        Precedence { agent, shims: shims.ok() }
    }

    /// The group for shims, if there is one.
    pub fn shims(&self) -> Option<PathBuf> {
        self.shims.clone()
    }

    /// Removes the groups that an agent has left that was killed.
    pub fn clear_away(pods: &str) {
        let root = layout().root_of("cpu");
        for group in [agent_of(pods), shims_of(pods)] {
            // One that holds a process stays: the kernel sees to that.
            let _ = root.map(|root| fs::remove_dir(root.join(group)));
        }
    }
}

impl Drop for Precedence {
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

/// Moves the calling process.
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
    let group = group(&agent_of(pods), AGENT_WEIGHT)?;
    join(&group).inspect_err(|_| drop(fs::remove_dir(&group)))?;
    Ok(group)
}

/// Makes a group of that weight; answers its directory where the cpu controller is.
fn group(name: &str, times: u32) -> io::Result<PathBuf> {
    let root = layout().root_of("cpu");
    let root = root.ok_or_else(|| io::Error::other("there is no cpu controller"))?;
    let directory = root.join(name);
    let (file, weight) = match layout() {
        Layout::V2 { .. } => {
            Cgroup::new(name).create()?;
            ("cpu.weight", times * ORDINARY_WEIGHT)
        }
        Layout::V1 { .. } => {
            make_all(&directory)?;
            ("cpu.shares", times * ORDINARY_SHARES)
        }
    };
    let weighed = write(&directory.join(file), &weight.to_string());
    weighed.inspect_err(|_| drop(fs::remove_dir(&directory)))?;
    Ok(directory)
}

#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// Where this process is now, and can be moved away from.
    Movable(PathBuf),
    /// A service manager's. The outermost of its groups is the one that competes with pods.
    Unit(PathBuf),
}

/// `own` is /proc/self/cgroup: lines of `number:controllers:path`; v2 has no controllers there.
fn place_of_agent(layout: &Layout, own: &str) -> io::Result<Place> {
    let is_ours = |controllers: &str| match layout {
        Layout::V2 { .. } => controllers.is_empty(),
        Layout::V1 { .. } => controllers.split(',').any(|controller| controller == "cpu"),
    };
    let path = own.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        is_ours(controllers).then(|| path.trim_start_matches('/'))
    });
    let (Some(root), Some(path)) = (layout.root_of("cpu"), path) else {
        return Err(io::Error::other("there is no cpu controller"));
    };
    let mut names = path.split('/');
    let of_unit = layout.is_v2() && names.clone().any(|name| name.ends_with(".service"));
    Ok(match names.next().filter(|_| of_unit) {
        Some(outermost) => Place::Unit(root.join(outermost)),
        None => Place::Movable(root.join(path)),
    })
}

fn check_weight(slice: &Path) -> io::Result<()> {
    let text = fs::read_to_string(slice.join("cpu.weight"))?;
    let weight = text.trim().parse::<u32>().unwrap_or_default();
    if weight < AGENT_WEIGHT * ORDINARY_WEIGHT {
        let slice = slice.display();
        return Err(io::Error::other(format!(
            "{slice} weighs {weight}; landfall.slice beside landfall.service gives it more"
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
        Layout::V1 { hierarchies, unified: Some("/c/unified".into()) }
    }

    /// On v1 a service keeps its place in systemd's own tree, whatever becomes of its processors.
    #[test]
    fn an_agent_is_moved_unless_a_unified_tree_has_it_in_a_unit() {
        let v2 = Layout::V2 { root: "/c".into() };
        let unit = "0::/system.slice/landfall.service\n";
        let movable = |path: &str| Place::Movable(path.into());
        for (layout, own, wanted) in [
            (&v2, unit, Place::Unit("/c/system.slice".into())),
            (&v2, "0::/user.slice/session-3.scope\n", movable("/c/user.slice/session-3.scope")),
            (&v2, "0::/\n", movable("/c/")),
            (&v1(), "4:m:/x\n2:cpu,cpuacct:/a.service\n0::/\n", movable("/c/cpu/a.service")),
            (&v1(), "2:cpuset:/\n1:cpu,cpuacct:/\n", movable("/c/cpu/")),
        ] {
            assert_eq!(place_of_agent(layout, own).unwrap(), wanted, "{own}");
        }
        assert!(place_of_agent(&v1(), "0::/\n").is_err());
        assert!(place_of_agent(&v2, "").is_err());
    }

    #[test]
    fn a_unit_is_told_when_its_slice_weighs_too_little() {
        let slice = tempfile::tempdir().unwrap();
        let weigh = |weight: &str| {
            fs::write(slice.path().join("cpu.weight"), weight).unwrap();
            check_weight(slice.path())
        };
        assert!(weigh("100\n").unwrap_err().to_string().contains("weighs 100"));
        assert!(weigh("1000\n").is_ok());
    }
}
