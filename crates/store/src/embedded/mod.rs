//! The engine on one local file: a single writer that commits in groups.
//!
//!     write() ──▶ queue ──▶ writer: check, lay out ──▶ log: one synced transaction
//!                             └──▶ state: publish ──▶ answers
//!
//! Start at `writer.rs`; `log.rs` is the file, `record.rs` one line of it.
//! `power.rs` cuts the power under it at every moment.

mod log;
#[cfg(test)]
mod power;
mod record;
mod writer;

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use self::log::{Log, Place};
use self::writer::{Request, Writer};
use crate::state::Shared;
use crate::{Error, Index, Object, Options, Write, WriteError};

/// How many writes may wait; more wait outside, in their callers.
const QUEUE_LEN: usize = 1024;

pub(crate) struct Engine<I> {
    queue: mpsc::Sender<Request<I>>,
}

/// Opens the file, made if it does not exist.
pub(crate) async fn open<I: Index>(
    path: PathBuf,
    options: Options,
) -> Result<(Arc<Shared<I>>, Engine<I>), Error> {
    let place = Place::File(path);
    let (at, loading, now) = (place.clone(), options.clone(), Instant::now());
    let opened = tokio::task::spawn_blocking(move || {
        let log = Log::open(at)?;
        let state = log.load::<I>(&loading, now)?;
        Ok((log, state))
    });
    // Only a runtime that is being shut down cancels a blocking task.
    let (log, state) = opened.await.unwrap_or(Err(Error::Closed))?;
    let state = Shared::new(state);
    let (queue, requests) = mpsc::channel(QUEUE_LEN);
    tokio::spawn(Writer::new(state.clone(), log, place, options, requests).run());
    Ok((state, Engine { queue }))
}

impl<I: Index> Engine<I> {
    pub(crate) async fn write(&self, write: Write) -> Result<Arc<Object<I>>, WriteError<I>> {
        let (answer, answered) = oneshot::channel();
        self.queue.send(Request::Write(write, answer)).await.map_err(|_| Error::Closed)?;
        answered.await.map_err(|_| Error::Closed)?
    }

    pub(crate) async fn close(&self) -> Result<(), Error> {
        let (answer, answered) = oneshot::channel();
        self.queue.send(Request::Close(answer)).await.map_err(|_| Error::Closed)?;
        answered.await.map_err(|_| Error::Closed)
    }
}
