//! Shows the merged layers of an image at a directory, read-only.

use crate::{Error, Result};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create,
    fsconfig_set_string, fsmount, fsopen, move_mount,
};
use std::path::{Path, PathBuf};

/// `layers` topmost first. `empty` is put below them: overlayfs wants two.
///
/// Layers are passed one by one (Linux 6.5) where the kernel can, so that their number is not
/// limited by what fits into one page of options.
pub(crate) fn mount(layers: &[PathBuf], empty: &Path, target: &Path) -> Result<()> {
    let lower: Vec<&Path> =
        layers.iter().map(PathBuf::as_path).chain(std::iter::once(empty)).collect();
    match stack(&lower, target) {
        Ok(()) => Ok(()),
        Err(_) => stack_at_once(&lower, target),
    }
    .map_err(Error::io("mount an image at", target))
}

fn stack(lower: &[&Path], target: &Path) -> std::io::Result<()> {
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

fn stack_at_once(lower: &[&Path], target: &Path) -> std::io::Result<()> {
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
