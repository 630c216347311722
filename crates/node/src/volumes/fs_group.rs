//! A group for everything in a volume (N-144). Bits are added, never taken.
//!
//! Whoever wrote into the volume may exchange things while we walk: each is opened without following
//! links, and changed by its descriptor.

use super::beneath::by_descriptor;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::Gid;
use std::ffi::OsStr;
use std::fs;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Each level holds two descriptors while it is walked.
const DEPTH_MAX: usize = 200;

const READ_WRITE: u32 = 0o660;
const READ_ONLY: u32 = 0o440;
const DIRECTORY: u32 = 0o2110;

/// `root` and all that is in it.
pub(crate) fn apply(root: &Path, group: u32, read_only: bool) -> Result<()> {
    let mut options = fs::OpenOptions::new();
    options.read(true).custom_flags(libc::O_PATH | libc::O_CLOEXEC);
    let root: OwnedFd = options.open(root)?.into();
    walk(&root, group, if read_only { READ_ONLY } else { READ_WRITE }, 0)
}

/// What `apply` would make of the root is there already (policy OnRootMismatch).
pub(crate) fn root_matches(root: &Path, group: u32) -> Result<bool> {
    let about = fs::metadata(root)?;
    let wanted = READ_WRITE | DIRECTORY;
    Ok(about.gid() == group && about.mode() & wanted == wanted)
}

fn walk(it: &OwnedFd, group: u32, mask: u32, depth: usize) -> Result<()> {
    if depth > DEPTH_MAX {
        return Err(Error::new(ErrorKind::InvalidInput, "the volume's directories are too deep"));
    }
    let about = nix::sys::stat::fstat(it.as_raw_fd())?;
    let sort = about.st_mode & libc::S_IFMT;
    nix::unistd::fchownat(
        Some(it.as_raw_fd()),
        "",
        None,
        Some(Gid::from_raw(group)),
        AtFlags::AT_EMPTY_PATH,
    )?;
    if sort == libc::S_IFLNK {
        return Ok(());
    }
    let is_directory = sort == libc::S_IFDIR;
    let mask = if is_directory { mask | DIRECTORY } else { mask };
    let mode = (about.st_mode & 0o7777) | mask;
    fs::set_permissions(by_descriptor(it), fs::Permissions::from_mode(mode))?;
    if !is_directory {
        return Ok(());
    }
    let mask = mask & !DIRECTORY;
    for entry in fs::read_dir(by_descriptor(it))? {
        match open(it, &entry?.file_name()) {
            Ok(child) => walk(&child, group, mask, depth + 1)?,
            // Removed while we looked.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[allow(unsafe_code, reason = "nix hands out the descriptor it just opened as a number")]
fn open(parent: &OwnedFd, name: &OsStr) -> Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let fd = openat(Some(parent.as_raw_fd()), name, flags, Mode::empty())?;
    // SAFETY: openat returned it, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// N-144, N-209
    #[test]
    fn bits_are_added_and_links_are_not_followed() {
        let place = tempfile::tempdir().unwrap();
        let volume = place.path().join("volume");
        fs::create_dir_all(volume.join("dir")).unwrap();
        fs::write(place.path().join("outside"), "").unwrap();
        symlink("../outside", volume.join("link")).unwrap();
        for (name, mode) in [("dir/private", 0o400), ("dir/open", 0o644), ("script", 0o4755)] {
            fs::write(volume.join(name), "").unwrap();
            fs::set_permissions(volume.join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        fs::set_permissions(volume.join("dir"), fs::Permissions::from_mode(0o755)).unwrap();
        let seen = |path: &str| {
            let about = fs::symlink_metadata(volume.join(path)).unwrap();
            (about.mode() & 0o7777, about.gid())
        };

        apply(&volume, 4321, true).unwrap();
        assert_eq!(seen("dir/private"), (0o440, 4321));
        assert_eq!(seen("dir/open"), (0o644, 4321));
        assert_eq!(seen("dir"), (0o2755, 4321));
        assert_eq!(seen("link").1, 4321);
        assert!(!root_matches(&volume, 4321).unwrap());

        apply(&volume, 4321, false).unwrap();
        assert_eq!(seen("dir/private"), (0o660, 4321));
        assert_eq!(seen("dir/open"), (0o664, 4321));
        assert_eq!(seen("script"), (0o4775, 4321));
        assert_eq!(seen("dir"), (0o2775, 4321));
        assert!(root_matches(&volume, 4321).unwrap());
        let outside = fs::metadata(place.path().join("outside")).unwrap();
        assert_ne!(outside.gid(), 4321, "what a link means is not in the volume");
    }
}
