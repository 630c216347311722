//! Removes a pod's directory, given only the pod's uid.
//!
//! It unmounts everything first and removes nothing while a mount is left: the content behind a mount (a
//! PersistentVolume, an image) does not belong to the pod.

use podconfig::mount_table;
use std::io::{Error, ErrorKind, Result};
use std::path::Path;

/// Mounts may be stacked; each round removes the topmost ones.
const ROUNDS: usize = 16;

/// Removes `pods/<uid>` and everything in it. Idempotent.
pub(crate) fn tear_down(pods: &Path, uid: &str) -> Result<()> {
    if !is_valid(uid) {
        return Err(Error::new(ErrorKind::InvalidInput, format!("{uid:?} is not a uid")));
    }
    let pods = match pods.canonicalize() {
        Ok(pods) => pods,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let pod = pods.join(uid);
    match std::fs::symlink_metadata(&pod) {
        Ok(about) if about.is_dir() => {}
        // A link or a file is removed itself; never follow a link.
        Ok(_) => return std::fs::remove_file(&pod),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    }
    unmount_all(&pod)?;
    match std::fs::remove_dir_all(&pod) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn unmount_all(pod: &Path) -> Result<()> {
    for _ in 0..ROUNDS {
        let mut mounted = mount_table::below(pod)?;
        if mounted.is_empty() {
            return Ok(());
        }
        // Outer mounts first: unmounting one makes it private and detaches those inside. Unmounting
        // an inner one before that could unmount it on the host too.
        mounted.sort();
        mounted.dedup();
        for point in &mounted {
            mount_table::unmount(point)?;
        }
    }
    let left = mount_table::below(pod)?;
    match left.first() {
        None => Ok(()),
        Some(point) => Err(Error::other(format!("{} is still mounted", point.display()))),
    }
}

fn is_valid(uid: &str) -> bool {
    !uid.is_empty() && !uid.contains('/') && uid != "." && uid != ".."
}

#[cfg(test)]
mod tests {
    use super::*;
    use podconfig::pod_uids;
    use std::fs;

    #[test]
    fn only_directories_named_by_a_valid_uid_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let pods = dir.path().join("pods");
        fs::create_dir_all(pods.join("u-1/volumes")).unwrap();
        fs::write(dir.path().join("keep"), "").unwrap();
        std::os::unix::fs::symlink(dir.path(), pods.join("link")).unwrap();
        for uid in ["", ".", "..", "../keep", "u-1/volumes"] {
            assert!(tear_down(&pods, uid).is_err(), "{uid}");
        }
        assert_eq!(pod_uids(&pods).unwrap().len(), 2);
        tear_down(&pods, "u-1").unwrap();
        tear_down(&pods, "link").unwrap();
        tear_down(&pods, "never-there").unwrap();
        assert!(dir.path().join("keep").exists());
        assert!(pod_uids(&pods).unwrap().is_empty());
    }
}
