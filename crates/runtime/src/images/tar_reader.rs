//! Reads tar archives (ustar, pax and GNU) entry by entry with bounded memory.
//!
//! The `tar` crate parses the headers. Its own iterator would read names of any length into memory, so this module
//! iterates itself. Not here: which entries are allowed (`unpack`).

use super::limits::{EXTENSION_BYTES_MAX, NAME_BYTES_MAX, REGIONS_MAX};
use crate::{Error, Result};
use ::tar::{EntryType, GnuExtSparseHeader, Header};
use std::io::{ErrorKind, Read};

const BLOCK: usize = 512;
/// Position of the checksum in a header.
const CHECKSUM: std::ops::Range<usize> = 148..156;

pub(crate) struct TarReader<R> {
    inner: R,
    /// Bytes of data of the current entry, and of padding after them, not read yet.
    data: u64,
    padding: u64,
    position: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    HardLink,
    Symlink,
    Directory,
    Fifo,
    CharDevice,
    BlockDevice,
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    pub(crate) name: Vec<u8>,
    /// The target of a link.
    pub(crate) link: Vec<u8>,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Seconds and nanoseconds.
    pub(crate) mtime: (i64, u32),
    /// Bytes that follow in the archive.
    pub(crate) size: u64,
    pub(crate) device: (u32, u32),
    pub(crate) xattrs: Vec<(String, Vec<u8>)>,
    pub(crate) sparse: Option<Sparse>,
}

/// A sparse file: the regions that contain data, and its length.
#[derive(Debug)]
pub(crate) struct Sparse {
    pub(crate) regions: Vec<(u64, u64)>,
    pub(crate) length: u64,
}

/// Values from pax records and GNU long names for the following entry.
#[derive(Default)]
struct Extension {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<(i64, u32)>,
    xattrs: Vec<(String, Vec<u8>)>,
}

impl<R: Read> TarReader<R> {
    pub(crate) fn new(inner: R) -> TarReader<R> {
        TarReader { inner, data: 0, padding: 0, position: 0 }
    }

    pub(crate) fn into_inner(self) -> R {
        self.inner
    }

    /// The position of the next byte in the archive.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// The next entry. Reading from `self` then returns its data.
    pub(crate) fn next(&mut self) -> Result<Option<Entry>> {
        self.next_skipping(|inner, bytes| {
            let skipped = std::io::copy(&mut inner.take(bytes), &mut std::io::sink())?;
            if skipped == bytes { Ok(()) } else { Err(ErrorKind::UnexpectedEof.into()) }
        })
    }

    /// Like [`TarReader::next`], with a faster way to skip data, such as seeking.
    pub(crate) fn next_skipping(
        &mut self,
        skip: impl Fn(&mut R, u64) -> std::io::Result<()>,
    ) -> Result<Option<Entry>> {
        let mut extension = Extension::default();
        loop {
            let left = self.data + self.padding;
            skip(&mut self.inner, left).map_err(unreadable)?;
            self.position += left;
            (self.data, self.padding) = (0, 0);
            let Some(header) = self.header()? else { return Ok(None) };
            let size = number(&header.as_old().size, header.entry_size())?;
            match header.entry_type() {
                EntryType::GNULongName => extension.name = Some(self.long_name(size)?),
                EntryType::GNULongLink => extension.link = Some(self.long_name(size)?),
                EntryType::XHeader => self.pax(size, &mut extension)?,
                EntryType::XGlobalHeader => self.expect(size)?,
                _ => return self.entry(&header, extension).map(Some),
            }
        }
    }

    fn header(&mut self) -> Result<Option<Header>> {
        let mut block = [0; BLOCK];
        if !self.block(&mut block)? || block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let header = Header::from_byte_slice(&block).clone();
        let sum = |bytes: &[u8]| bytes.iter().map(|byte| u32::from(*byte)).sum::<u32>();
        // The checksum field itself counts as spaces.
        let spaces = CHECKSUM.len() as u32 * u32::from(b' ');
        let actual = sum(&block[..CHECKSUM.start]) + spaces + sum(&block[CHECKSUM.end..]);
        match header.cksum() {
            Ok(expected) if expected == actual => Ok(Some(header)),
            _ => Err(refused("the archive is damaged or not a tar archive: wrong header checksum")),
        }
    }

    fn entry(&mut self, header: &Header, extension: Extension) -> Result<Entry> {
        let old = header.as_old();
        let size = number(&old.size, header.entry_size())?;
        let mut entry = Entry {
            kind: kind(header.entry_type())?,
            name: extension.name.unwrap_or_else(|| header.path_bytes().into_owned()),
            link: extension
                .link
                .or_else(|| header.link_name_bytes().map(|name| name.into_owned()))
                .unwrap_or_default(),
            mode: number(&old.mode, header.mode())?,
            uid: owner(extension.uid.unwrap_or(number(&old.uid, header.uid())?))?,
            gid: owner(extension.gid.unwrap_or(number(&old.gid, header.gid())?))?,
            mtime: extension.mtime.unwrap_or((number(&old.mtime, header.mtime())? as i64, 0)),
            size: 0,
            device: (0, 0),
            xattrs: extension.xattrs,
            sparse: None,
        };
        if entry.name.len() > NAME_BYTES_MAX || entry.link.len() > NAME_BYTES_MAX {
            return Err(refused("a name in the archive is longer than 4096 bytes"));
        }
        if matches!(entry.kind, Kind::CharDevice | Kind::BlockDevice) {
            let part = |number: std::io::Result<Option<u32>>| number.ok().flatten().unwrap_or(0);
            entry.device = (part(header.device_major()), part(header.device_minor()));
        }
        if entry.kind == Kind::File {
            entry.size = extension.size.unwrap_or(size);
            if header.entry_type() == EntryType::GNUSparse {
                entry.sparse = Some(self.sparse(header, entry.size)?);
            }
            self.expect(entry.size)?;
            if entry.name.ends_with(b"/") {
                entry.kind = Kind::Directory; // The notation of archives before POSIX.
            }
        }
        Ok(entry)
    }

    fn sparse(&mut self, header: &Header, size: u64) -> Result<Sparse> {
        let gnu = header.as_gnu().ok_or_else(|| refused("a sparse file has no GNU header"))?;
        let mut regions = Vec::new();
        let mut more = gnu.is_extended();
        collect_regions(&gnu.sparse, &mut regions)?;
        while more {
            let mut block = GnuExtSparseHeader::new();
            if !self.block(block.as_mut_bytes())? {
                return Err(refused("the archive is truncated in a sparse file"));
            }
            collect_regions(&block.sparse, &mut regions)?;
            more = block.is_extended();
        }
        let length = gnu.real_size().map_err(unreadable)?;
        let mut end = 0;
        let mut filled = 0_u64;
        for (offset, bytes) in &regions {
            let to = offset.checked_add(*bytes).filter(|to| *to <= length);
            match to {
                Some(to) if *offset >= end => end = to,
                _ => return Err(refused("the regions of a sparse file overlap or are too long")),
            }
            filled += bytes;
        }
        if filled != size {
            return Err(refused("the regions of a sparse file do not match its size"));
        }
        Ok(Sparse { regions, length })
    }

    fn long_name(&mut self, size: u64) -> Result<Vec<u8>> {
        let mut name = self.short_data(size)?;
        while name.last() == Some(&0) {
            name.pop();
        }
        Ok(name)
    }

    fn pax(&mut self, size: u64, extension: &mut Extension) -> Result<()> {
        let data = self.short_data(size)?;
        let mut rest = &data[..];
        while !rest.is_empty() {
            let (key, value, after) =
                pax_record(rest).ok_or_else(|| refused("a pax header is damaged"))?;
            extension.set(key, value)?;
            rest = after;
        }
        Ok(())
    }

    fn short_data(&mut self, size: u64) -> Result<Vec<u8>> {
        if size > EXTENSION_BYTES_MAX {
            return Err(refused("names and attributes of an entry have more than 1 MiB"));
        }
        self.expect(size)?;
        let mut data = Vec::with_capacity(size as usize);
        self.read_to_end(&mut data).map_err(unreadable)?;
        if data.len() as u64 == size { Ok(data) } else { Err(refused("the archive is truncated")) }
    }

    /// The data of an entry and the padding of its last block follow.
    fn expect(&mut self, size: u64) -> Result<()> {
        let block = BLOCK as u64;
        if size > i64::MAX as u64 {
            return Err(refused("an entry of the archive has an invalid size"));
        }
        self.data = size;
        self.padding = (block - size % block) % block;
        Ok(())
    }

    /// Returns false at the end of the archive.
    fn block(&mut self, block: &mut [u8]) -> Result<bool> {
        let mut filled = 0;
        while filled < block.len() {
            match self.inner.read(&mut block[filled..]) {
                Ok(0) if filled == 0 => return Ok(false),
                Ok(0) => return Err(refused("the archive is truncated in a header")),
                Ok(read) => filled += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(unreadable(error)),
            }
        }
        self.position += filled as u64;
        Ok(true)
    }
}

/// The data of the current entry.
impl<R: Read> Read for TarReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let length = buffer.len().min(usize::try_from(self.data).unwrap_or(usize::MAX));
        let read = self.inner.read(&mut buffer[..length])?;
        if read == 0 && length > 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        self.data -= read as u64;
        self.position += read as u64;
        Ok(read)
    }
}

impl Extension {
    fn set(&mut self, key: &str, value: &[u8]) -> Result<()> {
        let text = std::str::from_utf8(value).unwrap_or_default();
        let number =
            || text.parse().map_err(|_| refused("a pax header contains an invalid number"));
        match key {
            "path" => self.name = Some(value.to_vec()),
            "linkpath" => self.link = Some(value.to_vec()),
            "size" => self.size = Some(number()?),
            "uid" => self.uid = Some(number()?),
            "gid" => self.gid = Some(number()?),
            "mtime" => self.mtime = Some(pax_time(text)?),
            _ if key.starts_with("GNU.sparse.") => {
                return Err(refused("sparse files in pax format are not supported"));
            }
            _ => {
                if let Some(name) = key.strip_prefix("SCHILY.xattr.") {
                    self.xattrs.push((name.to_owned(), value.to_vec()));
                }
            }
        }
        Ok(())
    }
}

fn kind(entry_type: EntryType) -> Result<Kind> {
    Ok(match entry_type {
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => Kind::File,
        EntryType::Link => Kind::HardLink,
        EntryType::Symlink => Kind::Symlink,
        EntryType::Char => Kind::CharDevice,
        EntryType::Block => Kind::BlockDevice,
        EntryType::Directory => Kind::Directory,
        EntryType::Fifo => Kind::Fifo,
        other => {
            let kind = char::from(other.as_byte()).escape_default().to_string();
            return Err(Error::Refused(format!(
                "the archive has an entry of unknown kind '{kind}'"
            )));
        }
    })
}

fn owner(id: u64) -> Result<u32> {
    u32::try_from(id).map_err(|_| refused("the archive contains an invalid user or group id"))
}

fn collect_regions(
    headers: &[::tar::GnuSparseHeader],
    regions: &mut Vec<(u64, u64)>,
) -> Result<()> {
    for region in headers.iter().filter(|region| !region.is_empty()) {
        if regions.len() >= REGIONS_MAX {
            return Err(refused("a sparse file has too many regions"));
        }
        let offset = region.offset().map_err(unreadable)?;
        regions.push((offset, region.length().map_err(unreadable)?));
    }
    Ok(())
}

/// Parses `<length> <key>=<value>\n`. The length includes all of it, so values may contain any byte.
fn pax_record(data: &[u8]) -> Option<(&str, &[u8], &[u8])> {
    let space = data.iter().position(|byte| *byte == b' ')?;
    let length: usize = std::str::from_utf8(&data[..space]).ok()?.parse().ok()?;
    let (record, rest) = data.split_at_checked(length)?;
    let record = record.get(space + 1..)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|byte| *byte == b'=')?;
    Some((std::str::from_utf8(&record[..equals]).ok()?, &record[equals + 1..], rest))
}

/// An empty field means zero.
fn number<N: From<u8>>(field: &[u8], parsed: std::io::Result<N>) -> Result<N> {
    if field.iter().all(|byte| matches!(byte, 0 | b' ')) {
        return Ok(N::from(0));
    }
    parsed.map_err(unreadable)
}

/// Parses `1700000000.25`. May be negative.
fn pax_time(text: &str) -> Result<(i64, u32)> {
    let invalid = || refused("a pax header contains an invalid time");
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let whole: i64 = seconds.parse().map_err(|_| invalid())?;
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nanoseconds: u32 = digits.parse().map_err(|_| invalid())?;
    if seconds.starts_with('-') && nanoseconds > 0 {
        return Ok((whole.saturating_sub(1), 1_000_000_000 - nanoseconds));
    }
    Ok((whole, nanoseconds))
}

fn refused(message: &str) -> Error {
    Error::Refused(message.to_owned())
}

fn unreadable(error: std::io::Error) -> Error {
    Error::Refused(format!("cannot read the archive: {error}"))
}
