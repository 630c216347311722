//! A read-only file whose changes stay in memory.
//!
//! Opening the log writes, at least after a crash. On a full disk the log is opened through this overlay to read all
//! objects, and then dropped. The file does not change.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The block size, which is the size of the log's pages.
const BLOCK: u64 = 4096;

#[derive(Debug)]
pub(super) struct Overlay {
    file: File,
    changed: Mutex<Changed>,
}

#[derive(Debug)]
struct Changed {
    len: u64,
    /// The file ends here, or was truncated here: data after this reads as zeros.
    from_file: u64,
    blocks: BTreeMap<u64, Vec<u8>>,
}

impl Overlay {
    pub(super) fn of(file: File) -> io::Result<Overlay> {
        let len = file.metadata()?.len();
        let changed = Changed { len, from_file: len, blocks: BTreeMap::new() };
        Ok(Overlay { file, changed: Mutex::new(changed) })
    }

    fn changed(&self) -> MutexGuard<'_, Changed> {
        self.changed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The current content of a block.
    fn block(&self, changed: &Changed, number: u64) -> io::Result<Vec<u8>> {
        if let Some(block) = changed.blocks.get(&number) {
            return Ok(block.clone());
        }
        let mut block = vec![0; BLOCK as usize];
        let start = number * BLOCK;
        let there = changed.from_file.saturating_sub(start).min(BLOCK) as usize;
        self.file.read_exact_at(&mut block[..there], start)?;
        Ok(block)
    }

    /// Calls `each` with every block of a range, the offset in the block, and the part of the range.
    fn blocks(
        offset: u64,
        len: usize,
        mut each: impl FnMut(u64, usize, std::ops::Range<usize>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let within = (at % BLOCK) as usize;
            let count = (BLOCK as usize - within).min(len - done);
            each(at / BLOCK, within, done..done + count)?;
            done += count;
        }
        Ok(())
    }
}

impl redb::StorageBackend for Overlay {
    fn len(&self) -> io::Result<u64> {
        Ok(self.changed().len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let changed = self.changed();
        if offset + out.len() as u64 > changed.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Self::blocks(offset, out.len(), |number, within, range| {
            let block = self.block(&changed, number)?;
            let count = range.len();
            out[range].copy_from_slice(&block[within..within + count]);
            Ok(())
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut changed = self.changed();
        if len < changed.len {
            changed.from_file = changed.from_file.min(len);
            let last = len / BLOCK;
            changed.blocks.split_off(&(last + 1));
            if let Some(block) = changed.blocks.get_mut(&last) {
                block[(len % BLOCK) as usize..].fill(0);
            }
        }
        changed.len = len;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut changed = self.changed();
        Self::blocks(offset, data.len(), |number, within, range| {
            let mut block = self.block(&changed, number)?;
            block[within..within + range.len()].copy_from_slice(&data[range]);
            changed.blocks.insert(number, block);
            Ok(())
        })
    }
}

/// A file on a full disk: every write fails.
#[cfg(test)]
#[derive(Debug)]
pub(super) struct FullDisk(pub(super) File);

#[cfg(test)]
impl redb::StorageBackend for FullDisk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(out, offset)
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::StorageFull.into())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::StorageFull.into())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Opened;
    use super::super::log::{Log, Place};
    use super::*;
    use crate::{Envelope, Error, Options};
    use proptest::prelude::*;
    use redb::StorageBackend as _;
    use std::io::Write as _;

    proptest! {
        /// After any operations it reads as a file would, and the file is unchanged.
        #[test]
        fn it_reads_like_a_file_and_never_changes_the_file(
            content in proptest::collection::vec(any::<u8>(), 0..20_000),
            steps in proptest::collection::vec((0..30_000u64, 0..9_000usize, any::<u8>()), 0..20),
        ) {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&content).unwrap();
            let overlay = Overlay::of(file.try_clone().unwrap()).unwrap();
            let mut model = content.clone();
            for (at, count, byte) in steps {
                if byte % 4 == 0 {
                    overlay.set_len(at).unwrap();
                    model.resize(at as usize, 0);
                } else {
                    let end = at as usize + count;
                    if end > model.len() {
                        overlay.set_len(end as u64).unwrap();
                        model.resize(end, 0);
                    }
                    overlay.write(at, &vec![byte; count]).unwrap();
                    model[at as usize..end].fill(byte);
                }
                let mut all = vec![0; model.len()];
                prop_assert_eq!(overlay.len().unwrap(), model.len() as u64);
                overlay.read(0, &mut all).unwrap();
                prop_assert!(all == model);
            }
            let mut left = vec![0; content.len()];
            file.read_exact_at(&mut left, 0).unwrap();
            prop_assert!(left == content && file.metadata().unwrap().len() == content.len() as u64);
        }
    }

    /// After a clean stop and after a crash.
    #[test]
    fn a_log_on_a_full_disk_is_read_and_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let (path, crashed) = (dir.path().join("closed"), dir.path().join("crashed"));
        let log = Log::open(Place::File(path.clone())).unwrap();
        std::fs::copy(&path, &crashed).unwrap();
        drop(log);
        let options = Options::new(Envelope { created: b"", updated: b"", deleted: b"", end: b"" });
        for path in [path, crashed] {
            let before = std::fs::read(&path).unwrap();
            let place = Place::Full(path.clone());
            assert!(matches!(Log::open(place.clone()), Err(Error::Full { .. })));
            let opened = Opened::at(&place).unwrap();
            assert!(!opened.writable && matches!(opened.full, Some(Error::Full { .. })));
            let state = opened.log.load::<()>(&options, tokio::time::Instant::now()).unwrap();
            assert_eq!(state.revision(), 1);
            drop(opened);
            assert!(std::fs::read(&path).unwrap() == before);
        }
    }
}
