//! Part of a volume, bind-mounted for one container (N-150).

use super::{beneath, mount_table};
use crate::config::make_directory;
use std::fs;
use std::io::{ErrorKind, Result};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Mounts on top of each other that are taken away at once.
const LAYERS_MAX: usize = 16;

/// Something is there, in the volume.
pub(crate) fn exists(volume: &Path, relative: &Path) -> bool {
    beneath::root(volume).and_then(|root| beneath::find(root.as_fd(), relative)).is_ok()
}

/// A directory with the mode of the volume's root, if nothing is there yet.
pub(crate) fn make_if_missing(volume: &Path, relative: &Path) -> Result<()> {
    let root = beneath::root(volume)?;
    match beneath::find(root.as_fd(), relative) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let mode = fs::metadata(volume)?.permissions().mode() & 0o7777;
            beneath::make_directory(root.as_fd(), &plain(relative), mode)
        }
        // Whatever it is, it is not for us to say here that it does not exist.
        Err(_) => Ok(()),
    }
}

/// Without `.` and empty parts.
fn plain(path: &Path) -> std::path::PathBuf {
    path.components().filter(|part| *part != std::path::Component::CurDir).collect()
}

/// `target` shows what `relative` means now, also after it was renamed or replaced.
pub(crate) fn bind(volume: &Path, relative: &Path, target: &Path) -> Result<()> {
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

/// An earlier instance of the container had something mounted here.
fn clear(target: &Path) -> Result<()> {
    let about = match fs::symlink_metadata(target) {
        Ok(about) => about,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    // Each earlier start may have left one; what cannot be unmounted fails below.
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
