//! The root directory of a layer that is being unpacked. Creates entries, but never outside of it.
//!
//! Directories are opened by `openat2` with `RESOLVE_IN_ROOT`, so the kernel keeps symlinks inside. The last part of
//! a name is never followed.

use super::tar_reader::Kind;
use crate::{Error, Result};
use rustix::fs::{
    self, AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Attribute of overlayfs for a directory that hides the content of lower layers.
const OPAQUE_XATTR: &str = "trusted.overlay.opaque";

pub(crate) struct LayerRoot {
    fd: OwnedFd,
    /// As given, and as the kernel resolves it.
    path: PathBuf,
    resolved: PathBuf,
}

/// An open directory of the layer. `path` has no symlinks.
pub(crate) struct Directory<'a> {
    root: &'a LayerRoot,
    fd: OwnedFd,
    path: PathBuf,
}

pub(crate) struct Metadata<'a> {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mode: u32,
    pub(crate) mtime: (i64, u32),
    pub(crate) xattrs: &'a [(String, Vec<u8>)],
}

impl LayerRoot {
    pub(crate) fn open(path: &Path) -> Result<LayerRoot> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = fs::open(path, flags, Mode::empty()).map_err(|e| Error::Io {
            doing: "open",
            path: path.to_owned(),
            source: e.into(),
        })?;
        let resolved = resolved(&fd)?;
        Ok(LayerRoot { fd, path: path.to_owned(), resolved })
    }

    /// Opens the directory at `path`. Creates it and its parents if needed, and adds these to `implied`.
    pub(crate) fn directory(
        &self,
        path: &Path,
        implied: &mut BTreeSet<PathBuf>,
    ) -> Result<Directory<'_>> {
        match self.resolve(path) {
            Ok(fd) => return self.directory_of(fd),
            Err(Errno::NOENT) => {}
            Err(error) => return Err(self.failed("open", path, error)),
        }
        let Some(name) = path.file_name() else {
            return Err(self.failed("open", path, Errno::NOENT));
        };
        let parent = self.directory(path.parent().unwrap_or(Path::new("")), implied)?;
        if parent.kind_of(name)? == Some(FileType::Symlink) {
            return Err(Error::Refused("its path contains a dangling symlink".to_owned()));
        }
        let real = parent.create_missing_directory(name)?;
        implied.insert(real.clone());
        let fd = self.resolve(&real).map_err(|error| self.failed("open", &real, error))?;
        self.directory_of(fd)
    }

    pub(crate) fn describe(&self, metadata: &Metadata<'_>) -> Result<()> {
        describe_directory(&self.path, metadata)
    }

    pub(crate) fn set_time(&self, path: &Path, mtime: (i64, u32)) -> Result<()> {
        let set = || {
            let fd = self.resolve(path)?;
            fs::utimensat(fs::CWD, proc_path(&fd), &times(mtime), AtFlags::empty())
        };
        match set() {
            // A later entry has replaced it.
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
            Err(error) => Err(self.failed("set the time of", path, error)),
        }
    }

    fn resolve(&self, path: &Path) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        loop {
            match fs::openat2(&self.fd, path, flags, Mode::empty(), inside) {
                // The kernel asks to retry if an entry was renamed meanwhile.
                Err(Errno::AGAIN) => {}
                other => return other,
            }
        }
    }

    fn directory_of(&self, fd: OwnedFd) -> Result<Directory<'_>> {
        match resolved(&fd)?.strip_prefix(&self.resolved) {
            Ok(path) => Ok(Directory { root: self, fd, path: path.to_owned() }),
            Err(_) => Err(Error::Refused("its name leads out of the layer".to_owned())),
        }
    }

    fn failed(&self, doing: &'static str, path: &Path, error: Errno) -> Error {
        let message = match error {
            Errno::NOTDIR => "a part of its path is not a directory",
            Errno::LOOP => "its path contains a symlink loop",
            Errno::NAMETOOLONG => "its name is too long",
            other => {
                let path = self.path.join(path);
                return Error::Io { doing, path, source: other.into() };
            }
        };
        Error::Refused(message.to_owned())
    }
}

impl Directory<'_> {
    /// A path to the entry for system calls without a directory descriptor.
    fn proc_path(&self, name: &OsStr) -> PathBuf {
        proc_path(&self.fd).join(name)
    }

    fn failed(&self, doing: &'static str, name: &OsStr) -> impl FnOnce(Errno) -> Error {
        let path = self.path.join(name);
        move |error| self.root.failed(doing, &path, error)
    }

    fn kind_of(&self, name: &OsStr) -> Result<Option<FileType>> {
        match fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(self.failed("inspect", name)(error)),
        }
    }

    fn is_whiteout(&self, name: &OsStr) -> bool {
        fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| {
            FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0
        })
    }

    /// Removes an earlier entry of this layer with the same name: the later one counts.
    fn clear(&self, name: &OsStr) -> Result<()> {
        let removed = match self.kind_of(name)? {
            None => return Ok(()),
            // This does not follow symlinks either.
            Some(FileType::Directory) => std::fs::remove_dir_all(self.proc_path(name)),
            Some(_) => fs::unlinkat(&self.fd, name, AtFlags::empty()).map_err(Into::into),
        };
        removed.map_err(Error::io("replace", self.root.path.join(&self.path).join(name)))
    }

    fn create_missing_directory(&self, name: &OsStr) -> Result<PathBuf> {
        let opaque = self.is_whiteout(name);
        if opaque {
            self.clear(name)?;
        }
        fs::mkdirat(&self.fd, name, Mode::from_raw_mode(0o755))
            .map_err(self.failed("create", name))?;
        // Independent of our umask.
        fs::chmodat(&self.fd, name, Mode::from_raw_mode(0o755), AtFlags::empty())
            .map_err(self.failed("create", name))?;
        if opaque {
            set_xattr(&self.proc_path(name), OPAQUE_XATTR, b"y")?;
        }
        Ok(self.path.join(name))
    }

    /// Returns the real path of the directory.
    pub(crate) fn create_directory(
        &self,
        name: &OsStr,
        metadata: &Metadata<'_>,
    ) -> Result<PathBuf> {
        if self.kind_of(name)? != Some(FileType::Directory) {
            if !self.is_whiteout(name) {
                self.clear(name)?;
            }
            self.create_missing_directory(name)?;
        }
        describe_directory(&self.proc_path(name), metadata)?;
        Ok(self.path.join(name))
    }

    pub(crate) fn create_file(
        &self,
        name: &OsStr,
        metadata: &Metadata<'_>,
        fill: impl FnOnce(&File) -> std::io::Result<()>,
    ) -> Result<()> {
        self.clear(name)?;
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = fs::openat(&self.fd, name, flags, Mode::from_raw_mode(0o600))
            .map_err(self.failed("create", name))?;
        let file = File::from(fd);
        fill(&file).map_err(|error| match error.raw_os_error() {
            Some(_) => Error::io("write", self.root.path.join(&self.path).join(name))(error),
            None => Error::Refused(format!("cannot read the archive: {error}")),
        })?;
        let describe = || {
            fs::fchown(
                &file,
                Some(Uid::from_raw(metadata.uid)),
                Some(Gid::from_raw(metadata.gid)),
            )?;
            fs::fchmod(&file, Mode::from_raw_mode(metadata.mode))
        };
        describe().map_err(self.failed("set the owner of", name))?;
        for (key, value) in allowed(metadata.xattrs) {
            fs::fsetxattr(&file, key, value, XattrFlags::empty())
                .or_else(tolerate_unsupported)
                .map_err(self.failed("set an attribute of", name))?;
        }
        fs::futimens(&file, &times(metadata.mtime)).map_err(self.failed("set the time of", name))
    }

    pub(crate) fn create_symlink(
        &self,
        name: &OsStr,
        target: &OsStr,
        metadata: &Metadata<'_>,
    ) -> Result<()> {
        if target.is_empty() {
            return Err(Error::Refused("a symlink without a target".to_owned()));
        }
        self.clear(name)?;
        fs::symlinkat(target, &self.fd, name).map_err(self.failed("create", name))?;
        self.describe_entry(name, metadata)
    }

    /// Only to a file of the same layer.
    pub(crate) fn create_hard_link(&self, name: &OsStr, target: &Path) -> Result<()> {
        let missing = || Error::Refused(format!("a hard link to {target:?}, which does not exist"));
        let target_name = target.file_name().ok_or_else(missing)?;
        let parent = target.parent().unwrap_or(Path::new(""));
        let fd = self.root.resolve(parent).map_err(|_| missing())?;
        let parent = self.root.directory_of(fd)?;
        match parent.kind_of(target_name)? {
            None => return Err(missing()),
            Some(FileType::Directory) => {
                return Err(Error::Refused("a hard link to a directory".to_owned()));
            }
            Some(_) if parent.is_whiteout(target_name) => return Err(missing()),
            Some(_) => {}
        }
        if parent.path.join(target_name) == self.path.join(name) {
            return Err(Error::Refused("a hard link to itself".to_owned()));
        }
        self.clear(name)?;
        fs::linkat(&parent.fd, target_name, &self.fd, name, AtFlags::empty())
            .map_err(self.failed("link", name))
    }

    pub(crate) fn create_node(
        &self,
        name: &OsStr,
        kind: Kind,
        (major, minor): (u32, u32),
        metadata: &Metadata<'_>,
    ) -> Result<()> {
        self.clear(name)?;
        let kind = match kind {
            Kind::CharDevice => FileType::CharacterDevice,
            Kind::BlockDevice => FileType::BlockDevice,
            _ => FileType::Fifo,
        };
        let device = fs::makedev(major, minor);
        fs::mknodat(&self.fd, name, kind, Mode::from_raw_mode(0o600), device)
            .map_err(self.failed("create", name))?;
        self.describe_entry(name, metadata)
    }

    /// Hides `name` of lower layers, but not of this one.
    pub(crate) fn hide(&self, name: &OsStr) -> Result<()> {
        match self.kind_of(name)? {
            Some(FileType::Directory) => {
                let path = self.proc_path(name);
                set_xattr(&path, OPAQUE_XATTR, b"y")
            }
            Some(_) => Ok(()),
            None => fs::mknodat(&self.fd, name, FileType::CharacterDevice, Mode::empty(), 0)
                .map_err(self.failed("hide", name)),
        }
    }

    pub(crate) fn make_opaque(&self) -> Result<()> {
        set_xattr(&proc_path(&self.fd), OPAQUE_XATTR, b"y")
    }

    fn describe_entry(&self, name: &OsStr, metadata: &Metadata<'_>) -> Result<()> {
        let owner = (Some(Uid::from_raw(metadata.uid)), Some(Gid::from_raw(metadata.gid)));
        fs::chownat(&self.fd, name, owner.0, owner.1, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(self.failed("set the owner of", name))?;
        if self.kind_of(name)? != Some(FileType::Symlink) {
            fs::chmodat(&self.fd, name, Mode::from_raw_mode(metadata.mode), AtFlags::empty())
                .map_err(self.failed("set the mode of", name))?;
        }
        fs::utimensat(&self.fd, name, &times(metadata.mtime), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(self.failed("set the time of", name))
    }
}

fn proc_path(fd: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

fn resolved(fd: &OwnedFd) -> Result<PathBuf> {
    let link = proc_path(fd);
    std::fs::read_link(&link).map_err(Error::io("read", &link))
}

/// `path` must lead to the directory itself, not to a symlink.
fn describe_directory(path: &Path, metadata: &Metadata<'_>) -> Result<()> {
    let describe = || {
        let owner = (Some(Uid::from_raw(metadata.uid)), Some(Gid::from_raw(metadata.gid)));
        fs::chownat(fs::CWD, path, owner.0, owner.1, AtFlags::SYMLINK_NOFOLLOW)?;
        fs::chmodat(fs::CWD, path, Mode::from_raw_mode(metadata.mode), AtFlags::empty())
    };
    describe().map_err(|e| Error::io("set the owner of", path)(e.into()))?;
    allowed(metadata.xattrs).try_for_each(|(key, value)| set_xattr(path, key, value))
}

/// The extended attributes that an image may set. Others belong to overlayfs, integrity checks or the security
/// modules of the node.
fn allowed(xattrs: &[(String, Vec<u8>)]) -> impl Iterator<Item = (&str, &[u8])> {
    xattrs.iter().map(|(key, value)| (key.as_str(), value.as_slice())).filter(|(key, _)| {
        *key == "security.capability"
            || key.starts_with("system.posix_acl_")
            || (key.starts_with("user.") && !key.starts_with("user.overlay."))
    })
}

fn set_xattr(path: &Path, key: &str, value: &[u8]) -> Result<()> {
    fs::setxattr(path, key, value, XattrFlags::empty())
        .or_else(|error| if key == OPAQUE_XATTR { Err(error) } else { tolerate_unsupported(error) })
        .map_err(|e| Error::io("set an attribute of", path)(e.into()))
}

/// On file systems without extended attributes, only these are lost.
fn tolerate_unsupported(error: Errno) -> rustix::io::Result<()> {
    if error == Errno::OPNOTSUPP { Ok(()) } else { Err(error) }
}

fn times((seconds, nanoseconds): (i64, u32)) -> Timestamps {
    let time = Timespec { tv_sec: seconds, tv_nsec: i64::from(nanoseconds) };
    Timestamps { last_access: time, last_modification: time }
}
