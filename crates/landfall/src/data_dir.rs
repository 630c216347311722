//! The data directory: making it, finding it, and checking who can change it.
//!
//! landfall trusts what is in it and runs it as root: records of containers, keys, the store. So no other
//! user may write to it or replace it. Files that containers write, setuid files among them, are below
//! directories that only their owner can enter, whatever the mode of the data directory is: it may have
//! existed before, and others may be meant to read the kubeconfig in it.

use anyhow::{Context, bail, ensure};
use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

const STICKY: u32 = 0o1000;

/// Creates it if it does not exist. Refuses one that other users can change.
pub(crate) fn prepare(data_dir: &Path) -> anyhow::Result<()> {
    server::pki::make_private_dir(data_dir)
        .with_context(|| format!("cannot create {}", data_dir.display()))?;
    let caller = Caller::of_this_process();
    let real =
        data_dir.canonicalize().with_context(|| format!("cannot use {}", data_dir.display()))?;
    for (distance, path) in real.ancestors().enumerate() {
        let found =
            fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?;
        let is_parent = distance > 0;
        let Some((problem, remedy)) = caller.problem_with(Ownership::of(&found), is_parent) else {
            continue;
        };
        bail!(
            "other users of this host could change what landfall runs as root: {} {problem}. {remedy} {}, \
             or choose another directory with --data-dir",
            path.display(),
            path.display(),
        );
    }
    Ok(())
}

/// For commands that must not create the directory: a mistyped name is an error.
pub(crate) fn must_exist(data_dir: &Path) -> anyhow::Result<()> {
    ensure!(
        data_dir.is_dir(),
        "there is no landfall in {0}: the directory does not exist. Name the data directory that \
         `landfall up` uses with --data-dir",
        data_dir.display()
    );
    Ok(())
}

/// For commands that need a cluster: its administrator's kubeconfig must be there.
pub(crate) fn must_have_cluster(data_dir: &Path) -> anyhow::Result<()> {
    must_exist(data_dir)?;
    let kubeconfig = data_dir.join("kubeconfig");
    match fs::metadata(&kubeconfig) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => bail!(
            "there is no cluster in {}: nobody has run `landfall up` or `landfall server` on it. Name \
             another data directory with --data-dir",
            data_dir.display()
        ),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", kubeconfig.display())),
    }
}

/// Creates a directory that only its owner can enter, or makes an existing one so.
pub(crate) fn make_private(path: &Path) -> anyhow::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o700)))
        .with_context(|| format!("cannot make {} private", path.display()))
}

#[derive(Clone, Copy)]
struct Ownership {
    user: u32,
    group: u32,
    mode: u32,
}

impl Ownership {
    fn of(found: &fs::Metadata) -> Ownership {
        Ownership { user: found.uid(), group: found.gid(), mode: found.mode() & 0o7777 }
    }
}

/// The user who runs landfall.
struct Caller {
    user: u32,
    /// With sudo, the user who called it: whoever can become root may own the directories above.
    sudo_user: Option<u32>,
}

impl Caller {
    fn of_this_process() -> Caller {
        let sudo_user = std::env::var("SUDO_UID").ok().and_then(|uid| uid.parse().ok());
        Caller { user: nix::unistd::geteuid().as_raw(), sudo_user }
    }

    /// What is wrong with a directory, and the start of a command that corrects it. In a directory
    /// above the data directory others may write if its entries are protected, as in /tmp.
    fn problem_with(&self, directory: Ownership, is_parent: bool) -> Option<(String, String)> {
        let Ownership { user, group, mode } = directory;
        let trusted = user == 0 || user == self.user || (is_parent && self.sudo_user == Some(user));
        if !trusted {
            let remedy = format!("Make it yours: chown {}", self.user);
            return Some((format!("belongs to user {user}"), remedy));
        }
        let group_can_write = mode & 0o020 != 0 && group != 0;
        let others_can_write = mode & 0o002 != 0;
        if (group_can_write || others_can_write) && !(is_parent && mode & STICKY != 0) {
            let problem = format!("has mode {mode:04o} (group {group})");
            return Some((problem, "Forbid others to write to it: chmod go-w".to_owned()));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_others_can_write_to_is_refused() {
        let caller = Caller { user: 0, sudo_user: Some(1000) };
        let problem = |user, group, mode, is_parent| {
            let found = caller.problem_with(Ownership { user, group, mode }, is_parent);
            found.map(|(problem, _)| problem)
        };
        for is_parent in [false, true] {
            for mode in [0o700, 0o755, 0o555] {
                assert_eq!(problem(0, 0, mode, is_parent), None, "{mode:o}");
            }
            // The group of root is root.
            assert_eq!(problem(0, 0, 0o775, is_parent), None);
            assert_eq!(problem(0, 50, 0o775, is_parent).unwrap(), "has mode 0775 (group 50)");
            assert_eq!(problem(0, 0, 0o777, is_parent).unwrap(), "has mode 0777 (group 0)");
            assert_eq!(problem(7, 7, 0o755, is_parent).unwrap(), "belongs to user 7");
        }
        // As /tmp: users cannot rename each other's entries. They could add entries to the directory itself.
        assert_eq!(problem(0, 0, 0o1777, true), None);
        assert!(problem(0, 0, 0o1777, false).is_some());
        // The home directory of the user who called sudo.
        assert_eq!(problem(1000, 1000, 0o755, true), None);
        assert!(problem(1000, 1000, 0o700, false).is_some());
        assert!(problem(1000, 1000, 0o775, true).is_some());
    }

    #[test]
    fn the_error_names_the_problem_and_the_remedy() {
        let parent = tempfile::tempdir().unwrap();
        let open = parent.path().join("open");
        let data = open.join("data");
        prepare(&data).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
        let error = format!("{:#}", prepare(&data).unwrap_err());
        let open = open.canonicalize().unwrap();
        assert!(error.contains(&format!("{} has mode 0777", open.display())), "{error}");
        assert!(error.contains(&format!("chmod go-w {}", open.display())), "{error}");
        assert!(error.contains("--data-dir"), "{error}");
    }

    #[test]
    fn an_open_directory_becomes_private() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("kubelet");
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        make_private(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
    }
}
