//! Finds shim processes in /proc. If an agent is killed just after it started a shim, no record names that shim.
//!
//! All processes of a shim have its command line, `landfall shim <directory>`: the shim itself, the pause process,
//! and helpers that are starting a container.

use super::record::ShimProcess;
use crate::shim::SUBCOMMAND;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Killed processes normally disappear within milliseconds.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A process of a shim, and the directory of its sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OrphanedShim {
    pub(crate) process: ShimProcess,
    pub(crate) directory: PathBuf,
}

/// All shim processes whose sandbox is, or was, in this state directory.
pub(crate) fn find(state_dir: &Path) -> Vec<OrphanedShim> {
    let Ok(state_dir) = fs::canonicalize(state_dir) else { return Vec::new() };
    let own = nix::unistd::geteuid().as_raw();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        (entry.metadata().ok()?.uid() == own).then_some(pid)
    });
    let found = pids.filter_map(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let directory = directory_of(&line)?;
        // The path in the command line may be another spelling of the same directory.
        let parent = fs::canonicalize(directory.parent()?).ok()?;
        let name = directory.file_name()?;
        if parent != state_dir {
            return None;
        }
        Some(OrphanedShim { process: ShimProcess::of(pid)?, directory: parent.join(name) })
    });
    found.collect()
}

/// The sandbox directory in a command line, whose words end in zero bytes.
fn directory_of(line: &[u8]) -> Option<PathBuf> {
    let mut words = line.split(|byte| *byte == 0).skip(1);
    let (subcommand, directory) = (words.next()?, words.next()?);
    let directory = PathBuf::from(OsStr::from_bytes(directory));
    (subcommand == SUBCOMMAND.as_bytes() && directory.is_absolute()).then_some(directory)
}

/// Kills them and waits until they are gone.
pub(crate) async fn kill(shims: &[OrphanedShim]) {
    for shim in shims {
        if shim.process.is_alive() {
            tracing::warn!(
                pid = shim.process.pid,
                directory = %shim.directory.display(),
                "killing an orphaned shim process"
            );
            let pid = nix::unistd::Pid::from_raw(shim.process.pid);
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
    }
    let gone = async {
        while shims.iter().any(|shim| shim.process.is_alive()) {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    let _ = tokio::time::timeout(KILL_TIMEOUT, gone).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_command_lines_of_shims_are_recognised() {
        let found = |line: &str| directory_of(line.replace(' ', "\0").as_bytes());
        assert_eq!(found("landfall shim /d/run/a "), Some("/d/run/a".into()));
        assert_eq!(found("/usr/bin/landfall shim /d/run/a"), Some("/d/run/a".into()));
        for other in ["", "shim /d/run/a", "landfall up /d/run/a", "landfall shim", "x shim run/a"]
        {
            assert_eq!(found(other), None, "{other}");
        }
    }
}
