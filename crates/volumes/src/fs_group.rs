//! Sets the group of everything in a volume (N-144). Adds permission bits, never removes them.
//!
//! A container may replace files while this walks through the volume. So it opens each file without
//! following links and changes it through its descriptor.

use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::Gid;
use podconfig::beneath::by_descriptor;
use std::ffi::OsStr;
use std::fs;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Each level keeps two descriptors open.
const DEPTH_MAX: usize = 200;

const READ_WRITE: u32 = 0o660;
const READ_ONLY: u32 = 0o440;
const DIRECTORY: u32 = 0o2110;

/// Sets the group of `root` and all files and directories in it.
pub(crate) fn apply(root: &Path, group: u32, read_only: bool) -> Result<()> {
    let mut options = fs::OpenOptions::new();
    options.read(true).custom_flags(libc::O_PATH | libc::O_CLOEXEC);
    let root: OwnedFd = options.open(root)?.into();
    walk(&root, group, if read_only { READ_ONLY } else { READ_WRITE }, 0)
}

/// Whether `apply` would not change the root (policy OnRootMismatch).
pub(crate) fn root_matches(root: &Path, group: u32) -> Result<bool> {
    let about = fs::metadata(root)?;
    let bits = READ_WRITE | DIRECTORY;
    Ok(about.gid() == group && about.mode() & bits == bits)
}

fn walk(file: &OwnedFd, group: u32, mask: u32, depth: usize) -> Result<()> {
    if depth > DEPTH_MAX {
        return Err(Error::new(ErrorKind::InvalidInput, "the volume's directories are too deep"));
    }
    let about = nix::sys::stat::fstat(file.as_raw_fd())?;
    let file_type = about.st_mode & libc::S_IFMT;
    nix::unistd::fchownat(
        Some(file.as_raw_fd()),
        "",
        None,
        Some(Gid::from_raw(group)),
        AtFlags::AT_EMPTY_PATH,
    )?;
    if file_type == libc::S_IFLNK {
        return Ok(());
    }
    let is_directory = file_type == libc::S_IFDIR;
    let mask = if is_directory { mask | DIRECTORY } else { mask };
    let mode = (about.st_mode & 0o7777) | mask;
    fs::set_permissions(by_descriptor(file), fs::Permissions::from_mode(mode))?;
    if !is_directory {
        return Ok(());
    }
    let mask = mask & !DIRECTORY;
    for entry in fs::read_dir(by_descriptor(file))? {
        match open(file, &entry?.file_name()) {
            Ok(child) => walk(&child, group, mask, depth + 1)?,
            // Removed meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[allow(unsafe_code, reason = "nix returns the new descriptor as a number")]
fn open(parent: &OwnedFd, name: &OsStr) -> Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let fd = openat(Some(parent.as_raw_fd()), name, flags, Mode::empty())?;
    // SAFETY: openat has just returned this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn n_144_n_209_bits_are_added_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        fs::create_dir_all(volume.join("dir")).unwrap();
        fs::write(dir.path().join("outside"), "").unwrap();
        symlink("../outside", volume.join("link")).unwrap();
        for (name, mode) in [("dir/private", 0o400), ("dir/open", 0o644), ("script", 0o4755)] {
            fs::write(volume.join(name), "").unwrap();
            fs::set_permissions(volume.join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        fs::set_permissions(volume.join("dir"), fs::Permissions::from_mode(0o755)).unwrap();
        let mode_and_group = |path: &str| {
            let about = fs::symlink_metadata(volume.join(path)).unwrap();
            (about.mode() & 0o7777, about.gid())
        };

        apply(&volume, 4321, true).unwrap();
        assert_eq!(mode_and_group("dir/private"), (0o440, 4321));
        assert_eq!(mode_and_group("dir/open"), (0o644, 4321));
        assert_eq!(mode_and_group("dir"), (0o2755, 4321));
        assert_eq!(mode_and_group("link").1, 4321);
        assert!(!root_matches(&volume, 4321).unwrap());

        apply(&volume, 4321, false).unwrap();
        assert_eq!(mode_and_group("dir/private"), (0o660, 4321));
        assert_eq!(mode_and_group("dir/open"), (0o664, 4321));
        assert_eq!(mode_and_group("script"), (0o4775, 4321));
        assert_eq!(mode_and_group("dir"), (0o2775, 4321));
        assert!(root_matches(&volume, 4321).unwrap());
        let outside = fs::metadata(dir.path().join("outside")).unwrap();
        assert_ne!(outside.gid(), 4321, "the target of a link is not in the volume");
    }
}
