//! Bind mounts of parts of a volume, for subPath (N-150).

use crate::make_directory;
use crate::{beneath, mount_table};
use std::fs;
use std::io::{ErrorKind, Result};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Stacked mounts to remove from one target.
const LAYERS_MAX: usize = 16;

/// Whether the volume contains this path.
pub fn exists(volume: &Path, relative: &Path) -> bool {
    beneath::root(volume).and_then(|root| beneath::find(root.as_fd(), relative)).is_ok()
}

/// Creates a directory with the mode of the volume's root, if the path does not exist.
pub fn make_if_missing(volume: &Path, relative: &Path) -> Result<()> {
    let root = beneath::root(volume)?;
    match beneath::find(root.as_fd(), relative) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let mode = fs::metadata(volume)?.permissions().mode() & 0o7777;
            beneath::make_directory(root.as_fd(), &plain(relative), mode)
        }
        // `bind` reports every other problem.
        Err(_) => Ok(()),
    }
}

/// The path without `.` and empty parts.
fn plain(path: &Path) -> std::path::PathBuf {
    path.components().filter(|part| *part != std::path::Component::CurDir).collect()
}

/// Mounts what `relative` refers to now at `target`. Renaming or replacing it later has no effect
/// on the mount.
pub fn bind(volume: &Path, relative: &Path, target: &Path) -> Result<()> {
    let root = beneath::root(volume)?;
    let found = beneath::find(root.as_fd(), relative)?;
    let source = beneath::by_descriptor(&found);
    let is_directory = fs::metadata(&source)?.is_dir();
    clear(target)?;
    match is_directory {
        true => make_directory(target)?,
        false => {
            target.parent().map_or(Ok(()), make_directory)?;
            fs::File::create_new(target)?;
        }
    }
    mount_table::bind(&source, target)
}

/// Removes what an earlier instance of the container had mounted here.
fn clear(target: &Path) -> Result<()> {
    let about = match fs::symlink_metadata(target) {
        Ok(about) => about,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    // Each earlier start may have left a mount. If one remains, removing the target fails.
    for _ in 0..LAYERS_MAX {
        if !mount_table::is_mount_point(target)? {
            break;
        }
        mount_table::unmount(target)?;
    }
    match about.is_dir() {
        true => fs::remove_dir(target),
        false => fs::remove_file(target),
    }
}
