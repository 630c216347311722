//! Files of images on their way in: an OCI layout (directory or tar) or what `docker save` writes.
//!
//! Only finds bytes by name, inside and nowhere else. What they mean: `import`.

use super::limits::{BLOBS_MAX, DOCUMENT_BYTES_MAX, LAYER_BYTES_MAX};
use super::shelf::{Bounded, decompress};
use super::tape::{Kind, Tape};
use crate::{Error, Result};
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Links from one name to another in a `docker save` archive are not longer than this.
const HOPS_MAX: usize = 8;

pub(crate) enum Archive {
    Directory(PathBuf, File),
    Tar(Arc<File>, HashMap<String, Place>),
}

pub(crate) enum Place {
    At { offset: u64, size: u64 },
    Link(String),
}

/// Some bytes of a file.
pub(crate) struct Part {
    file: Arc<File>,
    offset: u64,
    end: u64,
}

impl Part {
    pub(crate) fn size(&self) -> u64 {
        self.end - self.offset
    }
}

impl Read for Part {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let wanted = buffer.len().min(usize::try_from(self.size()).unwrap_or(usize::MAX));
        let read = self.file.read_at(&mut buffer[..wanted], self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}

impl Archive {
    /// `scratch` is where a compressed archive is unpacked to be looked at.
    pub(crate) fn open(path: &Path, scratch: &Path) -> Result<Archive> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        if file.metadata().map_err(Error::io("open", path))?.is_dir() {
            return Ok(Archive::Directory(path.to_owned(), file));
        }
        let file = plain(file, path, scratch)?;
        let places = places(&file)?;
        Ok(Archive::Tar(Arc::new(file), places))
    }

    /// None if there is no such file.
    pub(crate) fn find(&self, name: &str) -> Result<Option<Part>> {
        match self {
            Archive::Directory(path, directory) => find_beneath(path, directory, name),
            Archive::Tar(file, places) => Ok(find_in_tar(file, places, name)),
        }
    }

    pub(crate) fn get(&self, name: &str) -> Result<Part> {
        let missing = || Error::Refused(format!("the archive lacks {name:?}"));
        self.find(name)?.ok_or_else(missing)
    }

    /// All of a small file.
    pub(crate) fn document(&self, name: &str) -> Result<Vec<u8>> {
        let mut part = self.get(name)?;
        if part.size() > DOCUMENT_BYTES_MAX {
            return Err(Error::Refused(format!("{name:?} in the archive is too large")));
        }
        let mut bytes = Vec::new();
        part.read_to_end(&mut bytes)
            .map_err(|e| Error::Refused(format!("{name:?} in the archive cannot be read: {e}")))?;
        Ok(bytes)
    }
}

fn find_beneath(path: &Path, directory: &File, name: &str) -> Result<Option<Part>> {
    // Not blocking: a pipe in the place of a file would keep us waiting for ever.
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
    Ok(Some(Part { file: Arc::new(file), offset: 0, end: metadata.len() }))
}

fn find_in_tar(file: &Arc<File>, places: &HashMap<String, Place>, name: &str) -> Option<Part> {
    let mut name = normal(name)?;
    for _ in 0..HOPS_MAX {
        match places.get(&name)? {
            Place::At { offset, size } => {
                let (file, offset) = (Arc::clone(file), *offset);
                return Some(Part { file, offset, end: offset + size });
            }
            Place::Link(target) => {
                let above = name.rsplit_once('/').map_or("", |(above, _)| above);
                name = normal(&format!("{above}/{target}"))?;
            }
        }
    }
    None
}

/// Where in the tar each of its files is.
fn places(file: &File) -> Result<HashMap<String, Place>> {
    let mut places = HashMap::new();
    let mut tape = Tape::new(file);
    let skip = |file: &mut &File, bytes: u64| {
        let bytes = i64::try_from(bytes).map_err(std::io::Error::other)?;
        file.seek(SeekFrom::Current(bytes)).map(drop)
    };
    while let Some(entry) = tape.next_skipping(skip)? {
        let Some(name) = std::str::from_utf8(&entry.name).ok().and_then(normal) else { continue };
        let place = match entry.kind {
            Kind::File if entry.sparse.is_none() => {
                Place::At { offset: tape.position(), size: entry.size }
            }
            Kind::Symlink => Place::Link(String::from_utf8_lossy(&entry.link).into_owned()),
            // A hard link counts from the top.
            Kind::HardLink => {
                let up = "../".repeat(name.matches('/').count());
                Place::Link(format!("{up}{}", String::from_utf8_lossy(&entry.link)))
            }
            _ => continue,
        };
        places.insert(name, place);
        if places.len() > BLOBS_MAX {
            return Err(Error::Refused(format!("the archive has more than {BLOBS_MAX} files")));
        }
    }
    Ok(places)
}

/// `./a/../b` is `b`; None for what leads out.
fn normal(name: &str) -> Option<String> {
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

/// A file that can be read at any place: itself, or unpacked to a nameless one.
fn plain(mut file: File, path: &Path, scratch: &Path) -> Result<File> {
    let size = file.metadata().map_err(Error::io("open", path))?.len();
    let mut start = [0; 4];
    let read = file.read(&mut start).map_err(Error::io("read", path))?;
    file.rewind().map_err(Error::io("read", path))?;
    let packed = start[..read].starts_with(&[0x1f, 0x8b]) || start == [0x28, 0xb5, 0x2f, 0xfd];
    if !packed {
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
