//! Reads files from an archive of images: an OCI layout (directory or tar) or the output of `docker save`.
//!
//! Names cannot lead outside the archive. Not here: what the files mean (`import`).

use super::layer_store::{Bounded, GZIP_MAGIC, ZSTD_MAGIC, decompress};
use super::limits::{BLOBS_MAX, DOCUMENT_BYTES_MAX, LAYER_BYTES_MAX};
use super::tar_reader::{Kind, TarReader};
use crate::{Error, Result};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Maximum number of links to follow in a `docker save` archive.
const LINKS_MAX: usize = 8;

pub(crate) enum Archive {
    Directory(PathBuf, File),
    Tar(Arc<File>, HashMap<String, TarFile>),
}

/// A file of a tar archive.
pub(crate) enum TarFile {
    At { offset: u64, size: u64 },
    Link(String),
}

/// A range of bytes of a file.
pub(crate) struct FileRange {
    file: Arc<File>,
    offset: u64,
    end: u64,
}

impl FileRange {
    pub(crate) fn size(&self) -> u64 {
        self.end - self.offset
    }
}

impl Read for FileRange {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let length = buffer.len().min(usize::try_from(self.size()).unwrap_or(usize::MAX));
        let read = self.file.read_at(&mut buffer[..length], self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

impl Archive {
    /// `scratch` is a directory for the uncompressed copy of a compressed archive.
    pub(crate) fn open(path: &Path, scratch: &Path) -> Result<Archive> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        if file.metadata().map_err(Error::io("open", path))?.is_dir() {
            return Ok(Archive::Directory(path.to_owned(), file));
        }
        let file = uncompressed(file, path, scratch)?;
        let files = tar_files(&file)?;
        Ok(Archive::Tar(Arc::new(file), files))
    }

    /// `None` if there is no such file.
    pub(crate) fn find(&self, name: &str) -> Result<Option<FileRange>> {
        match self {
            Archive::Directory(path, directory) => find_beneath(path, directory, name),
            Archive::Tar(file, files) => Ok(find_in_tar(file, files, name)),
        }
    }

    pub(crate) fn get(&self, name: &str) -> Result<FileRange> {
        let missing = || Error::Refused(format!("the archive does not contain {name:?}"));
        self.find(name)?.ok_or_else(missing)
    }

    /// The content of a small file.
    pub(crate) fn document(&self, name: &str) -> Result<Vec<u8>> {
        let mut part = self.get(name)?;
        if part.size() > DOCUMENT_BYTES_MAX {
            return Err(Error::Refused(format!("{name:?} in the archive is too large")));
        }
        let mut bytes = Vec::new();
        part.read_to_end(&mut bytes)
            .map_err(|e| Error::Refused(format!("cannot read {name:?} in the archive: {e}")))?;
        Ok(bytes)
    }
}

fn find_beneath(path: &Path, directory: &File, name: &str) -> Result<Option<FileRange>> {
    // Non-blocking, because opening a named pipe would block forever.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let inside = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let file = match openat2(directory, name, flags, Mode::empty(), inside) {
        Ok(fd) => File::from(fd),
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Ok(None),
        Err(rustix::io::Errno::XDEV) => {
            return Err(Error::Refused(format!("{name:?} leads out of the archive")));
        }
        Err(error) => return Err(Error::io("open", path.join(name))(error.into())),
    };
    let metadata = file.metadata().map_err(Error::io("open", path.join(name)))?;
    if !metadata.is_file() {
        return Err(Error::Refused(format!("{name:?} in the archive is not a file")));
    }
    Ok(Some(FileRange { file: Arc::new(file), offset: 0, end: metadata.len() }))
}

fn find_in_tar(
    file: &Arc<File>,
    files: &HashMap<String, TarFile>,
    name: &str,
) -> Option<FileRange> {
    let mut name = normalize(name)?;
    for _ in 0..LINKS_MAX {
        match files.get(&name)? {
            TarFile::At { offset, size } => {
                let (file, offset) = (Arc::clone(file), *offset);
                return Some(FileRange { file, offset, end: offset + size });
            }
            TarFile::Link(target) => {
                let parent = name.rsplit_once('/').map_or("", |(parent, _)| parent);
                name = normalize(&format!("{parent}/{target}"))?;
            }
        }
    }
    None
}

/// The files of a tar archive, with their positions.
fn tar_files(file: &File) -> Result<HashMap<String, TarFile>> {
    let mut files = HashMap::new();
    let mut tar = TarReader::new(file);
    let skip = |file: &mut &File, bytes: u64| {
        let bytes = i64::try_from(bytes).map_err(std::io::Error::other)?;
        file.seek(SeekFrom::Current(bytes)).map(drop)
    };
    while let Some(entry) = tar.next_skipping(skip)? {
        let Some(name) = std::str::from_utf8(&entry.name).ok().and_then(normalize) else {
            continue;
        };
        let found = match entry.kind {
            Kind::File if entry.sparse.is_none() => {
                TarFile::At { offset: tar.position(), size: entry.size }
            }
            Kind::Symlink => TarFile::Link(String::from_utf8_lossy(&entry.link).into_owned()),
            // The target of a hard link is relative to the root of the archive.
            Kind::HardLink => {
                let up = "../".repeat(name.matches('/').count());
                TarFile::Link(format!("{up}{}", String::from_utf8_lossy(&entry.link)))
            }
            _ => continue,
        };
        files.insert(name, found);
        if files.len() > BLOBS_MAX {
            return Err(Error::Refused(format!("the archive has more than {BLOBS_MAX} files")));
        }
    }
    Ok(files)
}

/// Normalizes `./a/../b` to `b`. `None` if the name leads outside.
fn normalize(name: &str) -> Option<String> {
    let mut parts = Vec::new();
    for part in name.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// The file itself, or an uncompressed temporary copy of it.
fn uncompressed(mut file: File, path: &Path, scratch: &Path) -> Result<File> {
    let size = file.metadata().map_err(Error::io("open", path))?.len();
    let mut start = [0; 4];
    let read = file.read(&mut start).map_err(Error::io("read", path))?;
    file.rewind().map_err(Error::io("read", path))?;
    let compressed = start[..read].starts_with(GZIP_MAGIC) || start == ZSTD_MAGIC;
    if !compressed {
        return Ok(file);
    }
    let (inner, allowed) = decompress(file, size)?;
    let mut unpacked = tempfile::tempfile_in(scratch).map_err(Error::io("write", scratch))?;
    let mut inner = Bounded { inner, left: allowed.min(LAYER_BYTES_MAX) };
    std::io::copy(&mut inner, &mut unpacked)
        .map_err(|e| Error::Refused(format!("cannot unpack {}: {e}", path.display())))?;
    unpacked.rewind().map_err(Error::io("read", path))?;
    Ok(unpacked)
}
