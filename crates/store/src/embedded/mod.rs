//! The engine on one local file: a single writer that commits in groups.
//!
//!     write() ──▶ queue ──▶ writer: check, lay out ──▶ log: one synced transaction
//!                             └──▶ state: publish ──▶ answers
//!
//! Start at `writer.rs`; `log.rs` is the file, `record.rs` one line of it.
//! When the disk is full, `reserve.rs` has space for deletions, and `overlay.rs` reads a log that cannot be opened. The
//! tests in `power_loss.rs` cut the power at every moment.

mod log;
mod overlay;
#[cfg(test)]
mod power_loss;
mod record;
mod reserve;
mod writer;

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use self::log::{Log, Place};
use self::reserve::Reserve;
use self::writer::{Request, Writer};
use crate::state::Shared;
use crate::{Entry, Error, Index, Object, Options, Write, WriteError};

/// The capacity of the write queue; further writers wait.
const QUEUE_LEN: usize = 1024;

pub(crate) struct Engine<I> {
    queue: mpsc::Sender<Request<I>>,
}

/// Opens the file, and creates it if it does not exist.
pub(crate) async fn open<I: Index>(
    path: PathBuf,
    options: Options,
) -> Result<(Arc<Shared<I>>, Engine<I>), Error> {
    let place = Place::File(path);
    let (at, loading, now) = (place.clone(), options.clone(), Instant::now());
    let opened = tokio::task::spawn_blocking(move || {
        let opened = Opened::at(&at)?;
        let state = opened.log.load::<I>(&loading, now)?;
        Ok((opened, state))
    });
    // Only a runtime that is being shut down cancels a blocking task.
    let (opened, state) = opened.await.unwrap_or(Err(Error::Closed))?;
    let state = Shared::new(state);
    let (queue, requests) = mpsc::channel(QUEUE_LEN);
    tokio::spawn(Writer::new(state.clone(), opened, place, options, requests).run());
    Ok((state, Engine { queue }))
}

/// Creates a file with these objects, at revisions greater than `after`.
pub(crate) async fn restore(path: PathBuf, after: u64, entries: Vec<Entry>) -> Result<(), Error> {
    let filling = tokio::task::spawn_blocking(move || {
        if path.symlink_metadata().is_ok() {
            return Err(Error::Exists { path });
        }
        Log::open(Place::File(path))?.fill(after, &entries)
    });
    filling.await.unwrap_or(Err(Error::Closed))
}

/// An opened log, which may be read-only.
struct Opened {
    log: Log,
    /// False if there is no disk space to open it for writing.
    writable: bool,
    /// Set if only deletions are possible, with the reason.
    full: Option<Error>,
}

impl Opened {
    fn at(place: &Place) -> Result<Opened, Error> {
        let reserve = Reserve::beside(place);
        let opened = match Log::open(place.clone()) {
            Err(Error::Full { .. }) if reserve.release() => Log::open(place.clone()),
            opened => opened,
        };
        match opened {
            Ok(log) => Ok(Opened { log, writable: true, full: reserve.restore().err() }),
            Err(full @ Error::Full { .. }) if !place.is_empty() => {
                let log = Log::open_without_writing(place.clone())?;
                Ok(Opened { log, writable: false, full: Some(full) })
            }
            Err(error) => Err(error),
        }
    }
}

impl<I: Index> Engine<I> {
    pub(crate) async fn write(&self, write: Write) -> Result<Arc<Object<I>>, WriteError<I>> {
        let (sender, result) = oneshot::channel();
        self.queue.send(Request::Write(write, sender)).await.map_err(|_| Error::Closed)?;
        result.await.map_err(|_| Error::Closed)?
    }

    pub(crate) async fn close(&self) -> Result<(), Error> {
        let (sender, closed) = oneshot::channel();
        self.queue.send(Request::Close(sender)).await.map_err(|_| Error::Closed)?;
        closed.await.map_err(|_| Error::Closed)
    }
}
