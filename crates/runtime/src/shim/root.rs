//! What a mounted root filesystem lacks before its container can run: the working directory and
//! the content of anonymous volumes. Names are looked up inside the root, wherever links point.

use super::message::Plan;
use super::said;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{Mode, mkdirat};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, lchown, symlink};
use std::path::{Component, Path, PathBuf};

/// Of directories in one volume of an image; deeper is a loop or an attack.
const DEPTH_MAX: usize = 64;

pub(crate) fn fill(root: &Path, plan: &Plan) -> Result<(), String> {
    let root = fs::File::open(root).map_err(said("open the root filesystem"))?.into();
    make_directory(&root, &plan.working_dir)
        .map_err(|error| format!("cannot make the working directory: {error}"))?;
    for (target, directory) in &plan.volumes {
        if let Ok(source) = open_in(&root, target, OFlag::O_RDONLY | OFlag::O_DIRECTORY) {
            let source = PathBuf::from(format!("/proc/self/fd/{}", source.as_raw_fd()));
            copy(&source, directory, 0)
                .map_err(|error| format!("cannot fill the volume {}: {error}", target.display()))?;
        }
    }
    Ok(())
}

/// Opens a path as if `root` were `/`.
pub(crate) fn open_in(root: &OwnedFd, path: &Path, flags: OFlag) -> io::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(flags | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let path = path.strip_prefix("/").unwrap_or(path);
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    Ok(super::sys::own(openat2(root.as_raw_fd(), path, how)?))
}

/// Makes a directory below another, never above it, whatever links say.
pub(crate) fn make_inside(root: &Path, path: &Path) -> io::Result<()> {
    make_directory(&fs::File::open(root)?.into(), path)
}

fn make_directory(root: &OwnedFd, path: &Path) -> io::Result<()> {
    if open_in(root, path, OFlag::O_PATH).is_ok() {
        return Ok(());
    }
    let mut at = PathBuf::from("/");
    for part in path.components() {
        let Component::Normal(name) = part else { continue };
        let parent = open_in(root, &at, OFlag::O_PATH | OFlag::O_DIRECTORY)?;
        match mkdirat(Some(parent.as_raw_fd()), name, Mode::from_bits_truncate(0o755)) {
            Ok(()) | Err(nix::errno::Errno::EEXIST) => at.push(name),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Files, directories and links with their owners and modes; nothing else belongs in a volume.
fn copy(from: &Path, to: &Path, depth: usize) -> io::Result<()> {
    if depth > DEPTH_MAX {
        return Err(io::Error::other("directories too deep"));
    }
    let directory = fs::metadata(from)?;
    lchown(to, Some(directory.uid()), Some(directory.gid()))?;
    fs::set_permissions(to, directory.permissions())?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let found = entry.metadata()?;
        let owner = |path: &Path| lchown(path, Some(found.uid()), Some(found.gid()));
        if found.is_dir() {
            fs::create_dir(&target)?;
            copy(&source, &target, depth + 1)?;
        } else if found.is_symlink() {
            symlink(fs::read_link(&source)?, &target)?;
            owner(&target)?;
        } else if found.is_file() {
            fs::copy(&source, &target)?;
            owner(&target)?;
            fs::set_permissions(&target, found.permissions())?;
        }
    }
    Ok(())
}
