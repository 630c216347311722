//! The root of a layer being unpacked: names in, files out, and never a step outside.
//!
//! Directories are found by `openat2` with `RESOLVE_IN_ROOT`, so the kernel itself keeps symlinks
//! inside; the last part of a name is never followed.

use super::tape::Kind;
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

/// As overlayfs wants it said that nothing of the layers below is to be seen here.
const OPAQUE_XATTR: &str = "trusted.overlay.opaque";

pub(crate) struct Root {
    fd: OwnedFd,
    /// As given, and as the kernel shows it.
    path: PathBuf,
    shown: PathBuf,
}

/// A directory inside, opened; `path` is where it really is, without symlinks.
pub(crate) struct Directory<'a> {
    root: &'a Root,
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

impl Root {
    pub(crate) fn open(path: &Path) -> Result<Root> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = fs::open(path, flags, Mode::empty()).map_err(|e| Error::Io {
            doing: "open",
            path: path.to_owned(),
            source: e.into(),
        })?;
        let shown = shown(&fd)?;
        Ok(Root { fd, path: path.to_owned(), shown })
    }

    /// The directory at `path`, made with all above it if it is not there; what was made is added
    /// to `implied`.
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
        let above = self.directory(path.parent().unwrap_or(Path::new("")), implied)?;
        if above.kind_of(name)? == Some(FileType::Symlink) {
            return Err(Error::Refused("it goes through a symlink that leads nowhere".to_owned()));
        }
        let real = above.make_missing_directory(name)?;
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
            // A later entry put something else in its place.
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
                // The kernel asks to try again when something moved while it was looking.
                Err(Errno::AGAIN) => {}
                other => return other,
            }
        }
    }

    fn directory_of(&self, fd: OwnedFd) -> Result<Directory<'_>> {
        match shown(&fd)?.strip_prefix(&self.shown) {
            Ok(path) => Ok(Directory { root: self, fd, path: path.to_owned() }),
            Err(_) => Err(Error::Refused("its name leads out of the layer".to_owned())),
        }
    }

    fn failed(&self, doing: &'static str, path: &Path, error: Errno) -> Error {
        let why = match error {
            Errno::NOTDIR => "something above it is not a directory",
            Errno::LOOP => "the symlinks above it go in circles",
            Errno::NAMETOOLONG => "its name is too long",
            other => {
                let path = self.path.join(path);
                return Error::Io { doing, path, source: other.into() };
            }
        };
        Error::Refused(why.to_owned())
    }
}

impl Directory<'_> {
    /// A path that names the entry and nothing else, for calls that take no directory.
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
            Err(error) => Err(self.failed("look at", name)(error)),
        }
    }

    fn is_whiteout(&self, name: &OsStr) -> bool {
        fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| {
            FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0
        })
    }

    /// Takes away what this layer had here under that name before: the later entry counts.
    fn clear(&self, name: &OsStr) -> Result<()> {
        let removed = match self.kind_of(name)? {
            None => return Ok(()),
            // std's removal does not follow symlinks either.
            Some(FileType::Directory) => std::fs::remove_dir_all(self.proc_path(name)),
            Some(_) => fs::unlinkat(&self.fd, name, AtFlags::empty()).map_err(Into::into),
        };
        removed.map_err(Error::io("replace", self.root.path.join(&self.path).join(name)))
    }

    fn make_missing_directory(&self, name: &OsStr) -> Result<PathBuf> {
        let opaque = self.is_whiteout(name);
        if opaque {
            self.clear(name)?;
        }
        fs::mkdirat(&self.fd, name, Mode::from_raw_mode(0o755))
            .map_err(self.failed("make", name))?;
        // The umask of whoever unpacks is not the image's.
        fs::chmodat(&self.fd, name, Mode::from_raw_mode(0o755), AtFlags::empty())
            .map_err(self.failed("make", name))?;
        if opaque {
            set_xattr(&self.proc_path(name), OPAQUE_XATTR, b"y")?;
        }
        Ok(self.path.join(name))
    }

    /// Gives back where the directory really is.
    pub(crate) fn make_directory(&self, name: &OsStr, metadata: &Metadata<'_>) -> Result<PathBuf> {
        if self.kind_of(name)? != Some(FileType::Directory) {
            if !self.is_whiteout(name) {
                self.clear(name)?;
            }
            self.make_missing_directory(name)?;
        }
        describe_directory(&self.proc_path(name), metadata)?;
        Ok(self.path.join(name))
    }

    pub(crate) fn make_file(
        &self,
        name: &OsStr,
        metadata: &Metadata<'_>,
        fill: impl FnOnce(&File) -> std::io::Result<()>,
    ) -> Result<()> {
        self.clear(name)?;
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = fs::openat(&self.fd, name, flags, Mode::from_raw_mode(0o600))
            .map_err(self.failed("make", name))?;
        let file = File::from(fd);
        fill(&file).map_err(|error| match error.raw_os_error() {
            Some(_) => Error::io("write", self.root.path.join(&self.path).join(name))(error),
            None => Error::Refused(format!("the archive cannot be read: {error}")),
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
        for (key, value) in kept(metadata.xattrs) {
            fs::fsetxattr(&file, key, value, XattrFlags::empty())
                .or_else(tolerate_unsupported)
                .map_err(self.failed("set an attribute of", name))?;
        }
        fs::futimens(&file, &times(metadata.mtime)).map_err(self.failed("set the time of", name))
    }

    pub(crate) fn make_symlink(
        &self,
        name: &OsStr,
        target: &OsStr,
        metadata: &Metadata<'_>,
    ) -> Result<()> {
        if target.is_empty() {
            return Err(Error::Refused("a symlink that leads to nothing".to_owned()));
        }
        self.clear(name)?;
        fs::symlinkat(target, &self.fd, name).map_err(self.failed("make", name))?;
        self.describe_entry(name, metadata)
    }

    /// To a file of this very layer: an archive that means another file does not get it.
    pub(crate) fn make_hard_link(&self, name: &OsStr, target: &Path) -> Result<()> {
        let lost = || Error::Refused(format!("a hard link to {target:?}, which is not there"));
        let target_name = target.file_name().ok_or_else(lost)?;
        let above = target.parent().unwrap_or(Path::new(""));
        let fd = self.root.resolve(above).map_err(|_| lost())?;
        let above = self.root.directory_of(fd)?;
        match above.kind_of(target_name)? {
            None => return Err(lost()),
            Some(FileType::Directory) => {
                return Err(Error::Refused("a hard link to a directory".to_owned()));
            }
            Some(_) if above.is_whiteout(target_name) => return Err(lost()),
            Some(_) => {}
        }
        if above.path.join(target_name) == self.path.join(name) {
            return Err(Error::Refused("a hard link to itself".to_owned()));
        }
        self.clear(name)?;
        fs::linkat(&above.fd, target_name, &self.fd, name, AtFlags::empty())
            .map_err(self.failed("link", name))
    }

    pub(crate) fn make_node(
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
            .map_err(self.failed("make", name))?;
        self.describe_entry(name, metadata)
    }

    /// Hides `name` of the layers below, and nothing of this one.
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

fn shown(fd: &OwnedFd) -> Result<PathBuf> {
    let link = proc_path(fd);
    std::fs::read_link(&link).map_err(Error::io("read", &link))
}

/// `path` is one of ours that ends at the directory itself.
fn describe_directory(path: &Path, metadata: &Metadata<'_>) -> Result<()> {
    let describe = || {
        let owner = (Some(Uid::from_raw(metadata.uid)), Some(Gid::from_raw(metadata.gid)));
        fs::chownat(fs::CWD, path, owner.0, owner.1, AtFlags::SYMLINK_NOFOLLOW)?;
        fs::chmodat(fs::CWD, path, Mode::from_raw_mode(metadata.mode), AtFlags::empty())
    };
    describe().map_err(|e| Error::io("set the owner of", path)(e.into()))?;
    kept(metadata.xattrs).try_for_each(|(key, value)| set_xattr(path, key, value))
}

/// Attributes that mean something inside a container. Those by which overlayfs, integrity checks or
/// the node's own security speak are not an image's to set.
fn kept(told: &[(String, Vec<u8>)]) -> impl Iterator<Item = (&str, &[u8])> {
    told.iter().map(|(key, value)| (key.as_str(), value.as_slice())).filter(|(key, _)| {
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

/// Filesystems without such attributes still hold the files.
fn tolerate_unsupported(error: Errno) -> rustix::io::Result<()> {
    if error == Errno::OPNOTSUPP { Ok(()) } else { Err(error) }
}

fn times((seconds, nanoseconds): (i64, u32)) -> Timestamps {
    let time = Timespec { tv_sec: seconds, tv_nsec: i64::from(nanoseconds) };
    Timestamps { last_access: time, last_modification: time }
}
