//! Unpacks one layer into a directory that overlayfs can use as a lower one.
//!
//! An archive is written by strangers. Every name is resolved by the kernel inside the layer's root
//! (`openat2` with `RESOLVE_IN_ROOT`), so no symlink, however placed, leads out of it; names that
//! try are refused. Setuid bits, owners and capabilities belong to images and are kept.
//!
//! `.wh.name` becomes what overlayfs calls a whiteout, `.wh..wh..opq` an opaque directory. Both speak
//! of the layers below: what this layer itself brings stays, in whatever order it is told.

use super::limits::{ENTRIES_MAX, NAME_BYTES_MAX};
use super::root::{Metadata, Root};
use super::tape::{Entry, Kind, Tape};
use crate::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Names that AUFS kept for itself.
const AUFS: &[u8] = b".wh..wh.";

/// What a directory entry costs at least, so that millions of empty files count for something.
const ENTRY_BYTES: u64 = 512;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Unpacked {
    /// On disk, roughly.
    pub(crate) bytes: u64,
    /// Directories the archive did not list but needed: their owner and mode are for the layers
    /// below to say.
    pub(crate) implied: Vec<PathBuf>,
}

/// Reads all of `archive`. `root` is an empty directory; on error it is left half-filled.
pub(crate) fn unpack<R: Read>(tape: &mut Tape<R>, root: &Path) -> Result<Unpacked> {
    let mut layer = Layer {
        root: Root::open(root)?,
        times: BTreeMap::new(),
        implied: BTreeSet::new(),
        bytes: 0,
    };
    let mut entries = 0;
    while let Some(entry) = tape.next()? {
        entries += 1;
        if entries > ENTRIES_MAX {
            return Err(Error::Refused(format!("the layer has more than {ENTRIES_MAX} entries")));
        }
        layer.bytes += ENTRY_BYTES + entry.size;
        layer.add(&entry, tape).map_err(|error| within(&entry, error))?;
    }
    layer.finish()
}

struct Layer {
    root: Root,
    /// Directories get their times last: filling them changes them.
    times: BTreeMap<PathBuf, (i64, u32)>,
    implied: BTreeSet<PathBuf>,
    bytes: u64,
}

impl Layer {
    fn add<R: Read>(&mut self, entry: &Entry, tape: &mut Tape<R>) -> Result<()> {
        let path = clean(&entry.name)?;
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
                b"" | b"." | b".." => Err(Error::Refused("it hides nothing".to_owned())),
                _ => parent.hide(OsStr::from_bytes(hidden)),
            };
        }
        let metadata = metadata(entry);
        match entry.kind {
            Kind::Directory => {
                let real = parent.make_directory(name, &metadata)?;
                self.implied.remove(&real);
                self.times.insert(real, entry.mtime);
                Ok(())
            }
            Kind::File => parent.make_file(name, &metadata, |file| fill(file, entry, tape)),
            Kind::Symlink => parent.make_symlink(name, OsStr::from_bytes(&entry.link), &metadata),
            Kind::HardLink => {
                let target = clean(&entry.link)?;
                parent.make_hard_link(name, &target)
            }
            Kind::Fifo | Kind::CharDevice | Kind::BlockDevice => {
                if !may_have(entry) {
                    // Under /dev every container has a filesystem of its own: nobody misses it.
                    return if path.starts_with("dev") { Ok(()) } else { Err(no_device(entry)) };
                }
                parent.make_node(name, entry.kind, entry.device, &metadata)
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

/// `./usr//bin/` is `usr/bin`. What points outside is not cleaned but refused.
fn clean(name: &[u8]) -> Result<PathBuf> {
    if name.contains(&0) || name.len() > NAME_BYTES_MAX {
        return Err(Error::Refused("its name is not a file name".to_owned()));
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

fn fill<R: Read>(file: &std::fs::File, entry: &Entry, tape: &mut Tape<R>) -> std::io::Result<()> {
    use std::io::{Seek, SeekFrom, Write};
    let mut file = file;
    let Some(sparse) = &entry.sparse else {
        // Through a reference, so that large copies do not go through a buffer on the heap twice.
        std::io::copy(&mut tape.take(entry.size), &mut file)?;
        return file.flush();
    };
    file.set_len(sparse.length)?;
    for (offset, bytes) in &sparse.regions {
        file.seek(SeekFrom::Start(*offset))?;
        std::io::copy(&mut tape.take(*bytes), &mut file)?;
    }
    Ok(())
}

/// Pipes, and the devices every container has anyway. Anything else is a key to the node: a disk,
/// its memory. 0:0 would be a whiteout in disguise.
fn may_have(entry: &Entry) -> bool {
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
    Error::Refused(format!("images may not bring {kind} device {major}:{minor}"))
}

fn within(entry: &Entry, error: Error) -> Error {
    let name = String::from_utf8_lossy(&entry.name);
    let name: String = name.chars().take(200).collect();
    match error {
        Error::Refused(why) => Error::Refused(format!("cannot unpack {name:?}: {why}")),
        other => other,
    }
}
