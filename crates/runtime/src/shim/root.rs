//! Creates the working directory in a mounted root filesystem and copies the initial content of the image's
//! volumes. Paths are resolved inside the root, so that symbolic links cannot lead outside.

use super::cannot;
use super::message::Plan;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{Mode, mkdirat};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, lchown, symlink};
use std::path::{Component, Path, PathBuf};

/// Depth of directories in a volume of an image. More than this is an attack.
const DEPTH_MAX: usize = 64;

/// New directories belong to `owner`, or to root if there is none.
pub(crate) fn fill(root: &Path, plan: &Plan, owner: Option<u32>) -> Result<(), String> {
    let root = fs::File::open(root).map_err(cannot("open the root filesystem"))?.into();
    create_directory(&root, &plan.working_dir, owner)
        .map_err(|error| format!("cannot create the working directory: {error}"))?;
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

/// Creates a directory inside `root`. Symbolic links cannot lead outside.
pub(crate) fn create_inside(root: &Path, path: &Path) -> io::Result<()> {
    create_directory(&fs::File::open(root)?.into(), path, None)
}

fn create_directory(root: &OwnedFd, path: &Path, owner: Option<u32>) -> io::Result<()> {
    if open_in(root, path, OFlag::O_PATH).is_ok() {
        return Ok(());
    }
    let mut at = PathBuf::from("/");
    for part in path.components() {
        let Component::Normal(name) = part else { continue };
        let parent = open_in(root, &at, OFlag::O_PATH | OFlag::O_DIRECTORY)?;
        match mkdirat(Some(parent.as_raw_fd()), name, Mode::from_bits_truncate(0o755)) {
            Ok(()) => {
                let parent = PathBuf::from(format!("/proc/self/fd/{}", parent.as_raw_fd()));
                lchown(parent.join(name), owner, owner)?;
                at.push(name);
            }
            Err(nix::errno::Errno::EEXIST) => at.push(name),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Copies files, directories and links with their owners and modes. Ignores devices, sockets and pipes.
fn copy(from: &Path, to: &Path, depth: usize) -> io::Result<()> {
    if depth > DEPTH_MAX {
        return Err(io::Error::other("directories are nested too deeply"));
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
