//! Taking a pod's directory away, knowing nothing but its uid.
//!
//! Mounts go first, and nothing is removed while one is left: what lies behind a mount (a
//! PersistentVolume, an image) is not the pod's.

use super::mount_table;
use std::io::{Error, ErrorKind, Result};
use std::path::Path;

/// Mounts may be stacked; each round takes the topmost away.
const ROUNDS: usize = 16;

/// `pods/<uid>` and everything in it. Gone already is fine.
pub(crate) fn tear_down(pods: &Path, uid: &str) -> Result<()> {
    if !is_plain(uid) {
        return Err(Error::new(ErrorKind::InvalidInput, format!("{uid:?} is no uid")));
    }
    let pods = match pods.canonicalize() {
        Ok(pods) => pods,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let pod = pods.join(uid);
    match std::fs::symlink_metadata(&pod) {
        Ok(about) if about.is_dir() => {}
        // Whoever made a link here did not make it for us to follow.
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
        // From the outside in: what is inside another goes with it, and must not go before it, for until
        // the outer one is set apart it may be the host's as well.
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

/// The uids of all pods that have a directory.
pub(crate) fn uids(pods: &Path) -> Result<Vec<String>> {
    let entries = match std::fs::read_dir(pods) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut uids = Vec::new();
    for entry in entries {
        if let Ok(name) = entry?.file_name().into_string() {
            uids.push(name);
        }
    }
    Ok(uids)
}

fn is_plain(uid: &str) -> bool {
    !uid.is_empty() && !uid.contains('/') && uid != "." && uid != ".."
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn only_a_plain_uid_is_taken_away() {
        let place = tempfile::tempdir().unwrap();
        let pods = place.path().join("pods");
        fs::create_dir_all(pods.join("u-1/volumes")).unwrap();
        fs::write(place.path().join("keep"), "").unwrap();
        std::os::unix::fs::symlink(place.path(), pods.join("link")).unwrap();
        for uid in ["", ".", "..", "../keep", "u-1/volumes"] {
            assert!(tear_down(&pods, uid).is_err(), "{uid}");
        }
        assert_eq!(uids(&pods).unwrap().len(), 2);
        tear_down(&pods, "u-1").unwrap();
        tear_down(&pods, "link").unwrap();
        tear_down(&pods, "never-there").unwrap();
        assert!(place.path().join("keep").exists());
        assert!(uids(&pods).unwrap().is_empty());
    }
}
