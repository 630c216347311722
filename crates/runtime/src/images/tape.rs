//! Reads tar, entry by entry, in bounded memory: ustar, pax and GNU.
//!
//! Headers are understood by the `tar` crate; its own iterator would read a long name of any length
//! into memory, so walking the archive is done here. Not here: what an entry may do (`unpack`).

use super::limits::{EXTENSION_BYTES_MAX, NAME_BYTES_MAX, REGIONS_MAX};
use crate::{Error, Result};
use std::io::{ErrorKind, Read};
use tar::{EntryType, GnuExtSparseHeader, Header};

const BLOCK: usize = 512;

pub(crate) struct Tape<R> {
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
    /// Where a link leads.
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

/// A file with holes: which regions the data of the entry fills, and how long it really is.
#[derive(Debug)]
pub(crate) struct Sparse {
    pub(crate) regions: Vec<(u64, u64)>,
    pub(crate) length: u64,
}

/// What pax records and GNU long names say about the entry after them.
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

impl<R: Read> Tape<R> {
    pub(crate) fn new(inner: R) -> Tape<R> {
        Tape { inner, data: 0, padding: 0, position: 0 }
    }

    pub(crate) fn into_inner(self) -> R {
        self.inner
    }

    /// Where in the archive the next byte comes from.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// The next entry; reading from the tape then gives its data.
    pub(crate) fn next(&mut self) -> Result<Option<Entry>> {
        self.next_skipping(|inner, bytes| {
            let skipped = std::io::copy(&mut inner.take(bytes), &mut std::io::sink())?;
            if skipped == bytes { Ok(()) } else { Err(ErrorKind::UnexpectedEof.into()) }
        })
    }

    /// As `next`, for a reader that knows a shorter way over what is not wanted.
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
        let found = sum(&block[..148]) + 8 * u32::from(b' ') + sum(&block[156..]);
        match header.cksum() {
            Ok(told) if told == found => Ok(Some(header)),
            _ => Err(refused("the archive is damaged, or is no tar: a header's checksum is wrong")),
        }
    }

    fn entry(&mut self, header: &Header, said: Extension) -> Result<Entry> {
        let old = header.as_old();
        let size = number(&old.size, header.entry_size())?;
        let mut entry = Entry {
            kind: kind(header.entry_type())?,
            name: said.name.unwrap_or_else(|| header.path_bytes().into_owned()),
            link: said
                .link
                .or_else(|| header.link_name_bytes().map(|name| name.into_owned()))
                .unwrap_or_default(),
            mode: number(&old.mode, header.mode())?,
            uid: owner(said.uid.unwrap_or(number(&old.uid, header.uid())?))?,
            gid: owner(said.gid.unwrap_or(number(&old.gid, header.gid())?))?,
            mtime: said.mtime.unwrap_or((number(&old.mtime, header.mtime())? as i64, 0)),
            size: 0,
            device: (0, 0),
            xattrs: said.xattrs,
            sparse: None,
        };
        if entry.name.len() > NAME_BYTES_MAX || entry.link.len() > NAME_BYTES_MAX {
            return Err(refused("a name in the archive is longer than 4096 bytes"));
        }
        if matches!(entry.kind, Kind::CharDevice | Kind::BlockDevice) {
            let part = |told: std::io::Result<Option<u32>>| told.ok().flatten().unwrap_or(0);
            entry.device = (part(header.device_major()), part(header.device_minor()));
        }
        if entry.kind == Kind::File {
            entry.size = said.size.unwrap_or(size);
            if header.entry_type() == EntryType::GNUSparse {
                entry.sparse = Some(self.sparse(header, entry.size)?);
            }
            self.expect(entry.size)?;
            if entry.name.ends_with(b"/") {
                entry.kind = Kind::Directory; // How archives before POSIX said it.
            }
        }
        Ok(entry)
    }

    fn sparse(&mut self, header: &Header, size: u64) -> Result<Sparse> {
        let gnu = header.as_gnu().ok_or_else(|| refused("a sparse file without a GNU header"))?;
        let mut regions = Vec::new();
        let mut more = gnu.is_extended();
        collect_regions(&gnu.sparse, &mut regions)?;
        while more {
            let mut block = GnuExtSparseHeader::new();
            if !self.block(block.as_mut_bytes())? {
                return Err(refused("the archive ends within a sparse file"));
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
            return Err(refused("the regions of a sparse file are not what its size says"));
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
            extension.learn(key, value)?;
            rest = after;
        }
        Ok(())
    }

    fn short_data(&mut self, size: u64) -> Result<Vec<u8>> {
        if size > EXTENSION_BYTES_MAX {
            return Err(refused("names and attributes of an entry take more than 1 MiB"));
        }
        self.expect(size)?;
        let mut data = Vec::with_capacity(size as usize);
        self.read_to_end(&mut data).map_err(unreadable)?;
        if data.len() as u64 == size {
            Ok(data)
        } else {
            Err(refused("the archive ends too early"))
        }
    }

    /// From here on come the data of an entry, and what fills its last block.
    fn expect(&mut self, size: u64) -> Result<()> {
        let block = BLOCK as u64;
        if size > i64::MAX as u64 {
            return Err(refused("an entry of the archive claims an impossible size"));
        }
        self.data = size;
        self.padding = (block - size % block) % block;
        Ok(())
    }

    /// False at the end of the archive.
    fn block(&mut self, block: &mut [u8]) -> Result<bool> {
        let mut filled = 0;
        while filled < block.len() {
            match self.inner.read(&mut block[filled..]) {
                Ok(0) if filled == 0 => return Ok(false),
                Ok(0) => return Err(refused("the archive ends within a header")),
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
impl<R: Read> Read for Tape<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let wanted = buffer.len().min(usize::try_from(self.data).unwrap_or(usize::MAX));
        let read = self.inner.read(&mut buffer[..wanted])?;
        if read == 0 && wanted > 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        self.data -= read as u64;
        self.position += read as u64;
        Ok(read)
    }
}

impl Extension {
    fn learn(&mut self, key: &str, value: &[u8]) -> Result<()> {
        let text = std::str::from_utf8(value).unwrap_or_default();
        let number = || text.parse().map_err(|_| refused("a number in a pax header is not one"));
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

fn kind(told: EntryType) -> Result<Kind> {
    Ok(match told {
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

fn owner(told: u64) -> Result<u32> {
    u32::try_from(told).map_err(|_| refused("an owner in the archive is no user id"))
}

fn collect_regions(told: &[tar::GnuSparseHeader], regions: &mut Vec<(u64, u64)>) -> Result<()> {
    for region in told.iter().filter(|region| !region.is_empty()) {
        if regions.len() >= REGIONS_MAX {
            return Err(refused("a sparse file has too many regions"));
        }
        let offset = region.offset().map_err(unreadable)?;
        regions.push((offset, region.length().map_err(unreadable)?));
    }
    Ok(())
}

/// `<length> <key>=<value>\n`, where the length is that of all of it: values may hold any byte.
fn pax_record(data: &[u8]) -> Option<(&str, &[u8], &[u8])> {
    let space = data.iter().position(|byte| *byte == b' ')?;
    let length: usize = std::str::from_utf8(&data[..space]).ok()?.parse().ok()?;
    let (record, rest) = data.split_at_checked(length)?;
    let record = record.get(space + 1..)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|byte| *byte == b'=')?;
    Some((std::str::from_utf8(&record[..equals]).ok()?, &record[equals + 1..], rest))
}

/// A field left blank means nought.
fn number<N: From<u8>>(field: &[u8], told: std::io::Result<N>) -> Result<N> {
    if field.iter().all(|byte| matches!(byte, 0 | b' ')) {
        return Ok(N::from(0));
    }
    told.map_err(unreadable)
}

/// `1700000000.25`, also before 1970.
fn pax_time(text: &str) -> Result<(i64, u32)> {
    let wrong = || refused("a time in a pax header is not one");
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let whole: i64 = seconds.parse().map_err(|_| wrong())?;
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nanoseconds: u32 = digits.parse().map_err(|_| wrong())?;
    if seconds.starts_with('-') && nanoseconds > 0 {
        return Ok((whole.saturating_sub(1), 1_000_000_000 - nanoseconds));
    }
    Ok((whole, nanoseconds))
}

fn refused(why: &str) -> Error {
    Error::Refused(why.to_owned())
}

fn unreadable(error: std::io::Error) -> Error {
    Error::Refused(format!("the archive cannot be read: {error}"))
}
