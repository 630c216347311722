//! Mounts the layers of an image read-only at a directory.

use crate::{Error, Result};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create,
    fsconfig_set_string, fsmount, fsopen, move_mount,
};
use std::path::{Path, PathBuf};

/// `layers` are topmost first. `empty` is an additional lowest layer, because overlayfs needs two.
///
/// From Linux 6.5 on, layers are passed one by one, so that one page of options does not limit their number.
pub(crate) fn mount(layers: &[PathBuf], empty: &Path, target: &Path) -> Result<()> {
    let lower: Vec<&Path> =
        layers.iter().map(PathBuf::as_path).chain(std::iter::once(empty)).collect();
    match mount_one_by_one(&lower, target) {
        Ok(()) => Ok(()),
        Err(_) => mount_with_options(&lower, target),
    }
    .map_err(Error::io("mount an image at", target))
}

fn mount_one_by_one(lower: &[&Path], target: &Path) -> std::io::Result<()> {
    let overlay = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&overlay, "source", "landfall")?;
    for path in lower {
        fsconfig_set_string(&overlay, "lowerdir+", *path)?;
    }
    fsconfig_create(&overlay)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY;
    let mounted = fsmount(&overlay, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    move_mount(&mounted, "", rustix::fs::CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    Ok(())
}

fn mount_with_options(lower: &[&Path], target: &Path) -> std::io::Result<()> {
    use nix::mount::MsFlags;
    use std::os::unix::ffi::OsStrExt;
    let mut options = b"lowerdir=".to_vec();
    for (n, path) in lower.iter().enumerate() {
        if n > 0 {
            options.push(b':');
        }
        for byte in path.as_os_str().as_bytes() {
            if matches!(byte, b':' | b',' | b'\\') {
                options.push(b'\\');
            }
            options.push(*byte);
        }
    }
    let options = std::ffi::OsStr::from_bytes(&options);
    nix::mount::mount(Some("landfall"), target, Some("overlay"), MsFlags::MS_RDONLY, Some(options))
        .map_err(Into::into)
}
