//! Unpacks one layer into a directory that overlayfs can use as a lower directory.
//!
//! Archives are not trusted. The kernel resolves every name inside the layer's root (`openat2` with
//! `RESOLVE_IN_ROOT`), so symlinks cannot lead outside; names that do are rejected. Setuid bits, owners and
//! capabilities of files are kept.
//!
//! `.wh.name` becomes a whiteout of overlayfs, `.wh..wh..opq` an opaque directory. Both hide entries of lower layers
//! only, not of the same layer, independent of the order of entries.

use super::layer_root::{LayerRoot, Metadata};
use super::limits::{ENTRIES_MAX, NAME_BYTES_MAX};
use super::tar_reader::{Entry, Kind, TarReader};
use crate::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Prefix of names that AUFS uses internally.
const AUFS: &[u8] = b".wh..wh.";

/// Minimum size that is counted per entry, because empty files need space too.
const ENTRY_BYTES: u64 = 512;
/// Characters of a name in error messages.
const NAME_SHOWN_MAX: usize = 200;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Unpacked {
    /// Approximate size on disk.
    pub(crate) bytes: u64,
    /// Directories without an entry in the archive. Their owner and mode have to come from lower layers.
    pub(crate) implied: Vec<PathBuf>,
}

/// Unpacks the archive into `root`, which must be empty. After an error, part of the entries are there.
pub(crate) fn unpack<R: Read>(tar: &mut TarReader<R>, root: &Path) -> Result<Unpacked> {
    let mut layer = Layer {
        root: LayerRoot::open(root)?,
        times: BTreeMap::new(),
        implied: BTreeSet::new(),
        bytes: 0,
    };
    let mut entries = 0;
    while let Some(entry) = tar.next()? {
        entries += 1;
        if entries > ENTRIES_MAX {
            return Err(Error::Refused(format!("the layer has more than {ENTRIES_MAX} entries")));
        }
        layer.bytes += ENTRY_BYTES + entry.size;
        layer.add(&entry, tar).map_err(|error| with_name(&entry, error))?;
    }
    layer.finish()
}

struct Layer {
    root: LayerRoot,
    /// Times of directories, which are set at the end because creating entries changes them.
    times: BTreeMap<PathBuf, (i64, u32)>,
    implied: BTreeSet<PathBuf>,
    bytes: u64,
}

impl Layer {
    fn add<R: Read>(&mut self, entry: &Entry, tar: &mut TarReader<R>) -> Result<()> {
        let path = normalize(&entry.name)?;
        let Some(name) = path.file_name() else {
            return self.describe_root(entry);
        };
        let parent = path.parent().unwrap_or(Path::new(""));
        let parent = self.root.directory(parent, &mut self.implied)?;
        let bytes = name.as_bytes();
        if bytes == OPAQUE {
            return parent.make_opaque();
        }
        if bytes.starts_with(AUFS) {
            return Ok(());
        }
        if let Some(hidden) = bytes.strip_prefix(WHITEOUT) {
            return match hidden {
                b"" | b"." | b".." => {
                    Err(Error::Refused("it is a whiteout without a valid name".to_owned()))
                }
                _ => parent.hide(OsStr::from_bytes(hidden)),
            };
        }
        let metadata = metadata(entry);
        match entry.kind {
            Kind::Directory => {
                let real = parent.create_directory(name, &metadata)?;
                self.implied.remove(&real);
                self.times.insert(real, entry.mtime);
                Ok(())
            }
            Kind::File => parent.create_file(name, &metadata, |file| fill(file, entry, tar)),
            Kind::Symlink => parent.create_symlink(name, OsStr::from_bytes(&entry.link), &metadata),
            Kind::HardLink => {
                let target = normalize(&entry.link)?;
                parent.create_hard_link(name, &target)
            }
            Kind::Fifo | Kind::CharDevice | Kind::BlockDevice => {
                if !is_allowed_device(entry) {
                    // Ignore it below /dev, where every container has its own file system.
                    return if path.starts_with("dev") { Ok(()) } else { Err(no_device(entry)) };
                }
                parent.create_node(name, entry.kind, entry.device, &metadata)
            }
        }
    }

    fn describe_root(&mut self, entry: &Entry) -> Result<()> {
        if entry.kind != Kind::Directory {
            return Err(Error::Refused("it would replace the root of the layer".to_owned()));
        }
        self.times.insert(PathBuf::new(), entry.mtime);
        self.root.describe(&metadata(entry))
    }

    fn finish(self) -> Result<Unpacked> {
        for (path, mtime) in &self.times {
            self.root.set_time(path, *mtime)?;
        }
        Ok(Unpacked { bytes: self.bytes, implied: self.implied.into_iter().collect() })
    }
}

/// Normalizes `./usr//bin/` to `usr/bin`. Rejects names that lead outside.
fn normalize(name: &[u8]) -> Result<PathBuf> {
    if name.contains(&0) || name.len() > NAME_BYTES_MAX {
        return Err(Error::Refused("its name is not a valid file name".to_owned()));
    }
    if name.starts_with(b"/") && name.iter().any(|byte| *byte != b'/') {
        return Err(Error::Refused("its name is absolute".to_owned()));
    }
    let mut path = PathBuf::new();
    for part in name.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return Err(Error::Refused("its name leads out of the layer".to_owned())),
            part => path.push(OsStr::from_bytes(part)),
        }
    }
    Ok(path)
}

fn metadata(entry: &Entry) -> Metadata<'_> {
    Metadata {
        uid: entry.uid,
        gid: entry.gid,
        mode: entry.mode & 0o7777,
        mtime: entry.mtime,
        xattrs: &entry.xattrs,
    }
}

fn fill<R: Read>(
    file: &std::fs::File,
    entry: &Entry,
    tar: &mut TarReader<R>,
) -> std::io::Result<()> {
    use std::io::{Seek, SeekFrom, Write};
    let mut file = file;
    let Some(sparse) = &entry.sparse else {
        // Through `&File`, so that `copy` needs no second buffer.
        std::io::copy(&mut tar.take(entry.size), &mut file)?;
        return file.flush();
    };
    file.set_len(sparse.length)?;
    for (offset, bytes) in &sparse.regions {
        file.seek(SeekFrom::Start(*offset))?;
        std::io::copy(&mut tar.take(*bytes), &mut file)?;
    }
    Ok(())
}

/// Named pipes, and devices that every container has anyway. Other devices, such as disks, would give access to the
/// node. The device 0:0 would be a whiteout.
fn is_allowed_device(entry: &Entry) -> bool {
    let harmless = [(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 1), (5, 2)];
    match entry.kind {
        Kind::Fifo => true,
        Kind::CharDevice => harmless.contains(&entry.device),
        _ => false,
    }
}

fn no_device(entry: &Entry) -> Error {
    let kind = if entry.kind == Kind::BlockDevice { "block" } else { "character" };
    let (major, minor) = entry.device;
    Error::Refused(format!("images must not contain {kind} device {major}:{minor}"))
}

fn with_name(entry: &Entry, error: Error) -> Error {
    let name = String::from_utf8_lossy(&entry.name);
    let name: String = name.chars().take(NAME_SHOWN_MAX).collect();
    match error {
        Error::Refused(message) => Error::Refused(format!("cannot unpack {name:?}: {message}")),
        other => other,
    }
}
