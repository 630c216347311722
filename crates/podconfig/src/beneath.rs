//! Paths inside a volume, resolved so that nothing in the volume can lead out of it (N-150).
//!
//! Pods control the content of a volume, including its links. `openat2` resolves a path below an
//! open root and fails if it would leave it. Callers use the returned descriptor, so that the pod
//! cannot replace the target in between.

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::Mode;
use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

/// Attempts to resolve a path that is renamed at the same time.
const TRIES: usize = 16;

/// Opens the root of a volume. Follows links on the way, which are the node's.
pub fn root(path: &Path) -> Result<OwnedFd> {
    let mut options = std::fs::OpenOptions::new();
    options.read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC);
    Ok(options.open(path)?.into())
}

/// A descriptor of the file or directory, without opening its content.
pub fn find(root: BorrowedFd<'_>, relative: &Path) -> Result<OwnedFd> {
    open(root, relative, OFlag::O_PATH)
}

/// The content of a regular file of at most `max` bytes.
pub fn read(volume: &Path, relative: &str, max: u64) -> Result<Vec<u8>> {
    let root = root(volume)?;
    // Nonblocking, because opening a pipe waits for a writer.
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = File::from(open(root.as_fd(), Path::new(relative), flags)?);
    let about = file.metadata()?;
    if !about.is_file() || about.len() > max {
        return Err(Error::new(ErrorKind::InvalidData, "not a regular file, or too large"));
    }
    let mut content = Vec::new();
    file.take(max).read_to_end(&mut content)?;
    Ok(content)
}

/// Creates the directory at `relative` and its missing parents with `mode`.
pub fn make_directory(root: BorrowedFd<'_>, relative: &Path, mode: u32) -> Result<()> {
    let mut parent = root.try_clone_to_owned()?;
    let mut walked = PathBuf::new();
    for part in relative.components() {
        let Component::Normal(name) = part else {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "the path contains `..` or is absolute",
            ));
        };
        walked.push(name);
        parent = match find(root, &walked) {
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                nix::sys::stat::mkdirat(
                    Some(parent.as_raw_fd()),
                    name,
                    Mode::from_bits_truncate(mode & 0o777),
                )?;
                let created = open_plain(parent.as_fd(), Path::new(name))?;
                std::fs::set_permissions(by_descriptor(&created), PermissionsExt::from_mode(mode))?;
                created
            }
            Err(error) => return Err(error),
        };
    }
    Ok(())
}

/// A path to the open file itself, for calls that take only paths.
pub fn by_descriptor(fd: &impl AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// Opens a directory that we have just created; fails if it is now a link.
fn open_plain(parent: BorrowedFd<'_>, name: &Path) -> Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
    resolve(parent, name, flags, ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS)
}

fn open(root: BorrowedFd<'_>, relative: &Path, flags: OFlag) -> Result<OwnedFd> {
    let relative = if relative.as_os_str().is_empty() { Path::new(".") } else { relative };
    resolve(
        root,
        relative,
        flags,
        ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS,
    )
}

fn resolve(
    root: BorrowedFd<'_>,
    relative: &Path,
    flags: OFlag,
    resolve: ResolveFlag,
) -> Result<OwnedFd> {
    let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(resolve);
    for _ in 0..TRIES {
        match openat2(root.as_raw_fd(), relative, how) {
            Ok(fd) => return Ok(owned(fd)),
            // Something was renamed while the kernel resolved the path.
            Err(nix::errno::Errno::EAGAIN) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Err(nix::errno::Errno::EAGAIN.into())
}

#[allow(unsafe_code, reason = "nix returns the new descriptor as a number")]
fn owned(fd: i32) -> OwnedFd {
    // SAFETY: openat2 has just returned this descriptor, and nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn n_150_a_link_that_leads_out_of_the_volume_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        std::fs::create_dir_all(volume.join("in/deep")).unwrap();
        std::fs::write(dir.path().join("secret"), "s").unwrap();
        std::fs::write(volume.join("in/file"), "inside").unwrap();
        symlink("in/file", volume.join("good")).unwrap();
        symlink("../volume/in/file", volume.join("out-and-in")).unwrap();
        symlink("../secret", volume.join("up")).unwrap();
        symlink("/etc/passwd", volume.join("absolute")).unwrap();
        symlink("/proc/self/root", volume.join("magic")).unwrap();
        symlink("../..", volume.join("in/parents")).unwrap();
        assert_eq!(read(&volume, "good", 100).unwrap(), b"inside");
        assert_eq!(read(&volume, "in/deep/../file", 100).unwrap(), b"inside");
        for path in
            ["up", "out-and-in", "absolute", "magic/etc/passwd", "in/parents/secret", "../secret"]
        {
            assert!(read(&volume, path, 100_000).is_err(), "{path}");
        }
        assert!(read(&volume, "in", 100).is_err(), "a directory");
        assert!(read(&volume, "good", 3).is_err(), "too large");

        let root = root(&volume).unwrap();
        for path in ["up/new", "magic/tmp/new", "in/parents/new", "../new", "/new"] {
            assert!(make_directory(root.as_fd(), Path::new(path), 0o755).is_err(), "{path}");
        }
        assert!(!dir.path().join("new").exists());
    }

    #[test]
    fn n_150_missing_directories_are_created_with_the_given_mode() {
        let volume = tempfile::tempdir().unwrap();
        let root = root(volume.path()).unwrap();
        make_directory(root.as_fd(), Path::new("a/b"), 0o2777).unwrap();
        make_directory(root.as_fd(), Path::new("a/b"), 0o700).unwrap();
        for path in ["a", "a/b"] {
            let mode = std::fs::metadata(volume.path().join(path)).unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, 0o2777, "{path}");
        }
    }
}
