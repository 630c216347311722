//! Removes logs that are no longer needed (N-160): those of a forgotten container instance, of a
//! deleted pod, and links without a target.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

/// Removes the log of one instance of a container and its rotated files. Call it only when the
/// agent forgets the instance: `kubectl logs --previous` reads it until then.
pub fn remove_instance(log: &Path) -> io::Result<()> {
    let (Some(directory), Some(name)) = (log.parent(), log.file_name()) else { return Ok(()) };
    let rotated = format!("{}.", name.to_string_lossy());
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_name() == name || entry.file_name().to_string_lossy().starts_with(&rotated) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Removes the directories below `root` of pods whose uid is not in `known`.
pub fn remove_orphans(root: &Path, known: &BTreeSet<String>) -> io::Result<()> {
    let entries = match fs::read_dir(root) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        // Pod directories are named `<namespace>_<pod>_<uid>`; anything else is not ours.
        let mut parts = name.to_str().unwrap_or_default().split('_');
        let (Some(_), Some(_), Some(uid), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        if !known.contains(uid) && entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

/// Removes links in `directory` (`/var/log/containers`) whose log is gone.
pub fn remove_dead_links(directory: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        if path.is_symlink() && matches!(path.try_exists(), Ok(false)) {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n_160_removal_keeps_other_instances_and_known_pods() {
        let dir = tempfile::tempdir().unwrap();
        let container = dir.path().join("shop_web_u-1/app");
        fs::create_dir_all(&container).unwrap();
        fs::create_dir_all(dir.path().join("shop_old_u-0/app")).unwrap();
        fs::create_dir_all(dir.path().join("other")).unwrap();
        for name in ["0.log", "0.log.20260101-000000.gz", "10.log"] {
            fs::write(container.join(name), "").unwrap();
        }
        let links = dir.path().join("containers");
        crate::logs::link(&links, ("shop", "web"), ("app", "x"), &container.join("0.log")).unwrap();
        crate::logs::link(&links, ("shop", "web"), ("app", "y"), &container.join("10.log"))
            .unwrap();
        remove_instance(&container.join("0.log")).unwrap();
        assert!(container.join("10.log").exists());
        assert_eq!(fs::read_dir(&container).unwrap().count(), 1);
        remove_dead_links(&links).unwrap();
        assert_eq!(fs::read_dir(&links).unwrap().count(), 1);
        remove_orphans(dir.path(), &BTreeSet::from(["u-1".to_owned()])).unwrap();
        assert!(container.exists() && dir.path().join("other").exists());
        assert!(!dir.path().join("shop_old_u-0").exists());
    }
}
