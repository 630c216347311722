//! The durable log: one redb file with a record per change, keyed by revision.
//!
//! The current state and the ring are rebuilt by reading the log in order. What is dropped from the ring is removed from
//! the log: superseded versions and old deletions, never the newest version of an existing object. So the state before
//! every event in the log is known.
//!
//! Everything here blocks; the writer calls it from blocking tasks. Not here: what to write.

use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::{Database, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition};
use tokio::time::Instant;

use super::overlay::Overlay;
use super::record::Record;
use crate::object::Identity;
use crate::state::{DroppedEvent, Published, State};
use crate::{Entry, Error, Event, EventKind, Index, Object, Options};

const RECORDS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("records");
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");

const FORMAT: &str = "format";
const FORMAT_KNOWN: u64 = 1;
/// The newest revision ever assigned.
const LAST: &str = "last";
/// History up to here is no longer in the log.
const COMPACTED: &str = "compacted";

/// The revision of a store that was never written to, so that the first write has a greater one.
const FIRST_REVISION: u64 = 1;

/// Reads come from our own memory, so redb's cache only has to hold the pages being written.
const CACHE_BYTES: usize = 16 << 20;

/// How many objects of a backup are written in one transaction.
const FILL_BATCH: usize = 4096;

/// The permissions of the file.
const PRIVATE: u32 = 0o600;

/// The location of the log.
#[derive(Debug, Clone)]
pub(super) enum Place {
    File(PathBuf),
    #[cfg(test)]
    Memory,
    /// A file on a full disk.
    #[cfg(test)]
    Full(PathBuf),
}

pub(super) struct Log {
    place: Place,
    database: Database,
}

/// Opens the file so that only we can read it, because it contains Secrets. Removes other permissions of an existing file.
fn private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(PRIVATE);
    let file = options.open(path)?;
    if file.metadata()?.permissions().mode() & 0o077 != 0 {
        file.set_permissions(Permissions::from_mode(PRIVATE))?;
    }
    Ok(file)
}

impl Log {
    /// Opens or creates the file and checks all of it.
    pub(super) fn open(place: Place) -> Result<Self, Error> {
        match place.clone() {
            Place::File(path) => {
                Self::open_with(place, |builder| builder.create_file(private(&path)?))
            }
            #[cfg(test)]
            Place::Memory => Self::open_with(place, |builder| {
                builder.create_with_backend(redb::backends::InMemoryBackend::new())
            }),
            #[cfg(test)]
            Place::Full(path) => Self::open_with(place, |builder| {
                builder.create_with_backend(super::overlay::FullDisk(File::open(path)?))
            }),
        }
    }

    pub(super) fn open_with(
        place: Place,
        create: impl FnOnce(&redb::Builder) -> Result<Database, redb::DatabaseError>,
    ) -> Result<Self, Error> {
        let database = place.guard(|| {
            let verified = Arc::new(AtomicBool::new(false));
            let mut builder = Database::builder();
            builder.set_cache_size(CACHE_BYTES);
            builder.set_repair_callback({
                let verified = verified.clone();
                move |_| verified.store(true, Ordering::Relaxed)
            });
            let mut database =
                create(&builder).map_err(|error| place.failed("opening", error.into()))?;
            // After a crash redb has verified every page. It trusts a cleanly closed file, so damage would show up only
            // in the middle of a write.
            if !verified.load(Ordering::Relaxed) {
                database
                    .check_integrity()
                    .map_err(|error| place.failed("checking", error.into()))?;
            }
            Ok(database)
        })?;
        let log = Log { place, database };
        log.initialise()?;
        Ok(log)
    }

    /// Opens the log on a full disk for reading: what opening writes stays in memory.
    pub(super) fn open_without_writing(place: Place) -> Result<Self, Error> {
        let Some(path) = place.file().map(Path::to_owned) else { return Self::open(place) };
        Self::open_with(place, |builder| {
            builder.create_with_backend(Overlay::of(File::open(path)?)?)
        })
    }

    /// Returns unused space of the file to the file system.
    pub(super) fn compact(&mut self) -> Result<(), Error> {
        let Log { place, database } = self;
        place.guard(|| {
            let compacted = database.compact();
            compacted.map(drop).map_err(|error| place.failed("compacting", error.into()))
        })
    }

    /// Initialises a new file; refuses another format.
    fn initialise(&self) -> Result<(), Error> {
        let made = self.transaction("preparing", |transaction| {
            let records = transaction.open_table(RECORDS)?;
            let mut meta = transaction.open_table(META)?;
            let found = meta.get(FORMAT)?.map(|value| value.value());
            if found.is_none() && records.is_empty()? {
                meta.insert(FORMAT, FORMAT_KNOWN)?;
                meta.insert(LAST, FIRST_REVISION)?;
                meta.insert(COMPACTED, FIRST_REVISION)?;
                return Ok(FORMAT_KNOWN);
            }
            Ok(found.unwrap_or(0))
        })?;
        if made == FORMAT_KNOWN {
            return Ok(());
        }
        Err(Error::Format { path: self.place.path(), found: made, known: FORMAT_KNOWN })
    }

    /// Rebuilds the state, with as much history as the log has.
    pub(super) fn load<I: Index>(
        &self,
        options: &Options,
        now: Instant,
    ) -> Result<State<I>, Error> {
        self.place.guard(|| {
            let (compacted, last) = self.marks()?;
            let mut loading =
                Loading { state: State::new(compacted, options), compacted, options, now };
            let reading = |error: redb::Error| self.place.failed("reading", error);
            let transaction = self.database.begin_read().map_err(|e| reading(e.into()))?;
            let records = transaction.open_table(RECORDS).map_err(|e| reading(e.into()))?;
            let expected = records.len().map_err(|e| reading(e.into()))?;
            let mut count = 0;
            for entry in records.iter().map_err(|e| reading(e.into()))? {
                let (key, value) = entry.map_err(|e| reading(e.into()))?;
                let revision = key.value();
                loading
                    .take(revision, value.value())
                    .map_err(|what| self.place.damaged(format!("in record {revision}, {what}")))?;
                count += 1;
            }
            let mut state = loading.state;
            if count != expected || state.revision() > last {
                let what = format!(
                    "{count} of {expected} records found, up to revision {} of {last}",
                    state.revision()
                );
                return Err(self.place.damaged(what));
            }
            state.set_revision(last);
            Ok(state)
        })
    }

    /// Appends a batch and removes what was dropped from the ring, in one durable transaction.
    pub(super) fn commit<I>(
        &self,
        events: &[Published<I>],
        forgotten: &[DroppedEvent],
    ) -> Result<(), Error> {
        self.transaction("writing to", |transaction| {
            let mut records = transaction.open_table(RECORDS)?;
            for (collection, event) in events {
                let record = Record::of(collection, &event.object);
                let mut slot = records.insert_reserve(event.revision, record.len())?;
                record.encode(event.revision, slot.as_mut());
            }
            for event in forgotten {
                if let Some(superseded) = event.previous {
                    records.remove(superseded)?;
                }
                if event.kind == EventKind::Deleted {
                    records.remove(event.revision)?;
                }
            }
            let mut meta = transaction.open_table(META)?;
            if let Some((_, event)) = events.last() {
                meta.insert(LAST, event.revision)?;
            }
            if let Some(event) = forgotten.last() {
                meta.insert(COMPACTED, event.revision)?;
            }
            Ok(())
        })
    }

    /// Puts these objects into an empty log, at revisions after `after`, with no history before them.
    pub(super) fn fill(&self, after: u64, entries: &[Entry]) -> Result<(), Error> {
        let mut last = after;
        for batch in entries.chunks(FILL_BATCH) {
            last = self.transaction("writing to", |transaction| {
                let mut records = transaction.open_table(RECORDS)?;
                let mut revision = last;
                for Entry { collection, name, draft } in batch {
                    revision += 1;
                    let (before, after) = draft.bytes.split_at(draft.revision_at);
                    let (kind, created) = (EventKind::Created, revision);
                    let record = Record { kind, created, collection, name, before, after };
                    let mut slot = records.insert_reserve(revision, record.len())?;
                    record.encode(revision, slot.as_mut());
                }
                Ok(revision)
            })?;
        }
        self.transaction("writing to", |transaction| {
            let mut meta = transaction.open_table(META)?;
            meta.insert(LAST, last)?;
            meta.insert(COMPACTED, last)?;
            Ok(())
        })
    }

    /// Opens the file again after a commit to it has failed; `revision` is the last that succeeded.
    pub(super) fn reopen(place: Place, revision: u64) -> Result<Self, Error> {
        let log = Self::open(place)?;
        log.rewind(revision)?;
        Ok(log)
    }

    /// Removes a failed commit, which may have reached the disk: its writers got an error, and its revisions will be
    /// assigned again.
    pub(super) fn rewind(&self, revision: u64) -> Result<(), Error> {
        let (_, last) = self.marks()?;
        if last < revision {
            let what = format!("it ends at revision {last}, but {revision} was written");
            return Err(self.place.damaged(what));
        }
        self.transaction("writing to", |transaction| {
            let mut records = transaction.open_table(RECORDS)?;
            records.retain_in(revision + 1.., |_, _| false)?;
            transaction.open_table(META)?.insert(LAST, revision)?;
            Ok(())
        })
    }

    /// The compacted and the last revision.
    fn marks(&self) -> Result<(u64, u64), Error> {
        let read = || -> Result<(Option<u64>, Option<u64>), redb::Error> {
            let meta = self.database.begin_read()?.open_table(META)?;
            let value = |key| Ok::<_, redb::Error>(meta.get(key)?.map(|value| value.value()));
            Ok((value(COMPACTED)?, value(LAST)?))
        };
        match read().map_err(|error| self.place.failed("reading", error))? {
            (Some(compacted), Some(last)) if compacted <= last => Ok((compacted, last)),
            marks => Err(self.place.damaged(format!("its revisions are {marks:?}"))),
        }
    }

    fn transaction<T>(
        &self,
        doing: &'static str,
        change: impl FnOnce(&redb::WriteTransaction) -> Result<T, redb::Error>,
    ) -> Result<T, Error> {
        let run = || -> Result<T, redb::Error> {
            let mut transaction = self.database.begin_write()?;
            // With two-phase commits redb can tell a commit that a crash interrupted, which it rolls back, from one that
            // was damaged later, which it reports. With one phase it would roll back both, including acknowledged
            // writes.
            transaction.set_two_phase_commit(true);
            let done = change(&transaction)?;
            transaction.commit()?;
            Ok(done)
        };
        self.place.guard(|| run().map_err(|error| self.place.failed(doing, error)))
    }
}

/// The state while the log is loaded.
struct Loading<'a, I> {
    state: State<I>,
    compacted: u64,
    options: &'a Options,
    now: Instant,
}

impl<I: Index> Loading<'_, I> {
    fn take(&mut self, revision: u64, bytes: &[u8]) -> Result<(), &'static str> {
        let Record { kind, created, collection, name, before, after } =
            Record::decode(revision, bytes)?;
        let previous = self.state.get(collection, name);
        match (kind, &previous) {
            (EventKind::Created, Some(_)) => return Err("an object is created a second time"),
            (EventKind::Deleted, None) => return Err("an object is deleted that does not exist"),
            (EventKind::Updated, None) if revision > self.compacted => {
                return Err("an object is updated that does not exist");
            }
            (EventKind::Created | EventKind::Updated, _) | (EventKind::Deleted, Some(_)) => {}
        }
        let object = match (kind, &previous) {
            (EventKind::Deleted, Some(last)) => {
                last.deleted(&self.options.envelope, collection, revision)
            }
            _ => {
                let name =
                    previous.as_ref().map_or_else(|| name.into(), |p| p.shared_name().clone());
                let identity = Identity { collection, name, kind, revision, created };
                Object::new(&self.options.envelope, identity, before, after)
            }
        };
        let object = Arc::new(object);
        if revision <= self.compacted {
            if previous.is_some() || kind == EventKind::Deleted {
                return Err("there is more history than there should be");
            }
            self.state.load(collection, object);
        } else {
            let event = Event { revision, kind, object, previous };
            let _no_watchers_yet = self.state.apply(collection, Arc::new(event), self.now);
        }
        Ok(())
    }
}

/// Whether the disk or the user's quota is full.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl Place {
    /// None if it is not a file.
    pub(super) fn file(&self) -> Option<&Path> {
        match self {
            Place::File(path) => Some(path),
            #[cfg(test)]
            Place::Memory => None,
            #[cfg(test)]
            Place::Full(path) => Some(path),
        }
    }

    /// Whether the file does not exist or is empty.
    pub(super) fn is_empty(&self) -> bool {
        self.file().is_some_and(|path| path.metadata().map_or(true, |found| found.len() == 0))
    }

    pub(super) fn path(&self) -> PathBuf {
        match self {
            Place::File(path) => path.clone(),
            #[cfg(test)]
            Place::Memory => PathBuf::from("(memory)"),
            #[cfg(test)]
            Place::Full(path) => path.clone(),
        }
    }

    fn damaged(&self, what: String) -> Error {
        Error::Damaged { path: self.path(), what }
    }

    /// redb reports most damage as an error, but panics on some; both become an error here.
    pub(super) fn guard<T>(&self, run: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
            let message = (panic.downcast_ref::<String>().map(String::as_str))
                .or_else(|| panic.downcast_ref::<&str>().copied());
            Err(self.damaged(message.unwrap_or("it cannot be read").to_owned()))
        })
    }

    fn failed(&self, doing: &'static str, error: redb::Error) -> Error {
        match error {
            redb::Error::DatabaseAlreadyOpen => Error::InUse { path: self.path() },
            redb::Error::Corrupted(what) => self.damaged(what),
            redb::Error::Io(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                self.damaged("it is cut short".to_owned())
            }
            redb::Error::Io(error) if is_full(&error) => {
                Error::Full { path: self.path(), source: Arc::new(error) }
            }
            error => Error::Disk { doing, path: self.path(), source: Arc::new(error) },
        }
    }
}
