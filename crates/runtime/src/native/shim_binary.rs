//! The landfall binary for shims, as a file that cannot be opened for writing.
//!
//! Processes in a container see a process that enters it, and can reach the file that it runs through
//! `/proc/<pid>/exe` (CVE-2019-5736). While the file is running, the kernel refuses to open it for writing
//! (ETXTBSY). But an attacker can keep it open until it is no longer running, for example during an upgrade, and
//! then change a program that the node runs as root. So shims do not run the file by its path:
//!
//! - They run it through an overlay mount without an upper layer. Such a file system is read-only and cannot be
//!   made writable, not even with CAP_SYS_ADMIN, in contrast to a read-only bind mount. Shims and the server still
//!   share the memory pages of the file.
//! - If the kernel cannot mount that, they run a sealed copy in memory, which costs the size of the binary once per
//!   agent.
//!
//! The mount has no path and disappears with the last process that uses it. For the same reason shims have the
//! version of their agent, even if the file has been replaced.

use crate::{Error, Result};
use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) struct ShimBinary {
    path: PathBuf,
    file: OwnedFd,
}

impl ShimBinary {
    /// `second_layer` is any other directory: overlayfs needs two layers. The program is in the first.
    pub(crate) fn protect(path: &Path, second_layer: &Path) -> Result<ShimBinary> {
        let file = match open_through_overlay(path, second_layer) {
            Ok(file) => file,
            Err(error) => {
                tracing::warn!(
                    %error, program = %path.display(),
                    "cannot mount overlayfs over the program: shims run a copy of it in memory, which uses more memory"
                );
                sealed_copy(path).map_err(Error::io("protect from containers", path))?
            }
        };
        Ok(ShimBinary { path: path.to_owned(), file })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A command with the program's path on disk as its name.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(fd_path(&self.file));
        command.arg0(&self.path);
        command
    }
}

fn fd_path(file: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

fn open_through_overlay(path: &Path, second_layer: &Path) -> io::Result<OwnedFd> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let overlay = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&overlay, "source", "landfall")?;
    let layers = [directory, second_layer].map(escaped).join(":");
    fsconfig_set_string(&overlay, "lowerdir", layers)?;
    fsconfig_create(&overlay)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV;
    let root = fsmount(&overlay, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(&root, name, flags, Mode::empty())?)
}

/// Escapes a path for the list of layers in overlayfs options.
fn escaped(path: &Path) -> String {
    let path = path.to_string_lossy();
    path.replace('\\', "\\\\").replace(':', "\\:").replace(',', "\\,")
}

/// A copy in memory that cannot be changed.
fn sealed_copy(path: &Path) -> io::Result<OwnedFd> {
    let memory =
        rustix::fs::memfd_create("landfall", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut memory = File::from(memory);
    io::copy(&mut File::open(path)?, &mut memory)?;
    rustix::fs::fchmod(&memory, Mode::from_raw_mode(0o555))?;
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    rustix::fs::fcntl_add_seals(&memory, seals)?;
    // The kernel does not run a file that is open for writing, so open it again.
    Ok(File::open(fd_path(&memory.into()))?.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_sealed_copy_runs_and_cannot_be_changed() {
        let file = sealed_copy(Path::new("/bin/true")).unwrap();
        let program = ShimBinary { path: "/bin/true".into(), file };
        assert!(program.command().status().unwrap().success());
        let outcome = File::options()
            .write(true)
            .open(fd_path(&program.file))
            .and_then(|mut file| file.write_all(b"other"));
        assert_eq!(outcome.unwrap_err().raw_os_error(), Some(libc::EPERM));
    }

    #[test]
    fn separators_in_paths_are_escaped() {
        assert_eq!(escaped(Path::new("/a:b/c,d\\e")), "/a\\:b/c\\,d\\\\e");
    }
}
