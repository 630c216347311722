//! The single writer: takes all queued writes, checks them in order, commits them in one transaction, publishes them, and
//! returns the results.
//!
//! While a commit syncs, the next batch collects in the queue (group commit). A failed commit changes nothing in memory;
//! the log is opened again before the next one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::MissedTickBehavior;

use super::Opened;
use super::log::{Log, Place};
use super::reserve::Reserve;
use crate::batch::{self, Batch, WriteResult};
use crate::error::describe;
use crate::state::{DroppedEvent, Published, Shared};
use crate::{Error, Index, Options, Write, WriteError};

/// How many writes share a transaction at most.
const BATCH_WRITES: usize = 512;
/// How many old events are removed from the log in one transaction.
const FORGET_BATCH: usize = 1024;
/// How often old history is dropped when nothing is written.
const HOUSEKEEPING: Duration = Duration::from_secs(10);

pub(super) enum Request<I> {
    Write(Write, oneshot::Sender<WriteResult<I>>),
    Close(oneshot::Sender<()>),
}

/// The result of a commit, with its input.
type Tried<I> = (Result<(), Error>, Vec<Published<I>>, Vec<DroppedEvent>);

type WriteResults<I> = Vec<(oneshot::Sender<WriteResult<I>>, WriteResult<I>)>;

pub(super) struct Writer<I> {
    state: Arc<Shared<I>>,
    /// None after a failed commit, until it is opened again.
    log: Option<Log>,
    place: Place,
    options: Options,
    requests: mpsc::Receiver<Request<I>>,
    /// Events that were dropped from the ring and not yet from the log.
    forgotten: VecDeque<DroppedEvent>,
    reserve: Reserve,
    /// Set if only deletions are accepted, with the reason.
    full: Option<Error>,
    /// Whether something was deleted since the log was last compacted on a full disk.
    compactable: bool,
}

impl<I: Index> Writer<I> {
    pub(super) fn new(
        state: Arc<Shared<I>>,
        Opened { log, writable, full }: Opened,
        place: Place,
        options: Options,
        requests: mpsc::Receiver<Request<I>>,
    ) -> Self {
        let reserve = Reserve::beside(&place);
        let (log, forgotten) = (writable.then_some(log), VecDeque::new());
        let mut writer = Writer {
            state,
            log,
            place,
            options,
            requests,
            forgotten,
            reserve,
            full: None,
            compactable: true,
        };
        if let Some(full) = full {
            writer.restrict(full);
        }
        writer
    }

    /// Accepts only deletions from now on.
    fn restrict(&mut self, full: Error) {
        let why = describe(&full);
        tracing::error!(error = why, "the disk is full: only reads and deletions are possible");
        self.state.set_trouble(Some(why));
        self.full = Some(full);
    }

    /// Accepts all writes again if there is disk space.
    async fn lift_restriction(&mut self) {
        let reserve = self.reserve.clone();
        let Ok(Ok(())) = spawn_blocking(move || reserve.restore()).await else { return };
        self.full = None;
        if self.log.is_some() {
            self.state.set_trouble(None);
        }
        tracing::info!("there is disk space again: all writes are possible");
    }

    pub(super) async fn run(mut self) {
        let mut housekeeping = tokio::time::interval(HOUSEKEEPING);
        housekeeping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut waiting = Vec::with_capacity(BATCH_WRITES);
        loop {
            let received = tokio::select! {
                biased;
                received = self.requests.recv_many(&mut waiting, BATCH_WRITES) => received,
                _ = housekeeping.tick() => {
                    self.keep_house().await;
                    continue;
                }
            };
            self.gather(&mut waiting).await;
            let mut batch = Vec::with_capacity(waiting.len());
            let mut close = None;
            for request in waiting.drain(..) {
                match request {
                    // Dropping the sender of a later write reports that the store is closed.
                    Request::Write(..) if close.is_some() => {}
                    Request::Write(write, answer) => batch.push((write, answer)),
                    Request::Close(answer) => close = close.or(Some(answer)),
                }
            }
            self.write(batch).await;
            if close.is_some() || received == 0 {
                return self.close(close).await;
            }
        }
    }

    /// Lets writers that just got their result queue the next write. Otherwise they would split into two halves that wait
    /// for each other's commits.
    async fn gather(&mut self, waiting: &mut Vec<Request<I>>) {
        tokio::task::yield_now().await;
        while waiting.len() < BATCH_WRITES
            && let Ok(request) = self.requests.try_recv()
        {
            waiting.push(request);
        }
    }

    async fn write(&mut self, batch: Vec<(Write, oneshot::Sender<WriteResult<I>>)>) {
        if self.full.is_some() && !batch.is_empty() {
            self.lift_restriction().await;
        }
        let (events, answers) = self.check(batch);
        if events.is_empty() {
            return answer(answers);
        }
        match self.commit(events, FORGET_BATCH).await {
            Ok(events) => {
                self.state.publish(events);
                self.forgotten.extend(self.state.trim());
                answer(answers);
            }
            Err(error) => {
                for (writer, _) in answers {
                    let _ = writer.send(Err(WriteError::Backend(error.clone())));
                }
            }
        }
    }

    /// Decides every write of the batch in order, as if it were alone.
    fn check(
        &self,
        batch: Vec<(Write, oneshot::Sender<WriteResult<I>>)>,
    ) -> (Vec<Published<I>>, WriteResults<I>) {
        let mut deciding = Batch::new(&self.state, &self.options, batch.len());
        deciding.restrict(self.full.clone());
        let answers =
            batch.into_iter().map(|(write, writer)| (writer, deciding.decide(write))).collect();
        (deciding.into_events(), answers)
    }

    /// Makes the events durable, and removes old history from the log if there are at least `forget_from` events of it.
    /// Returns the events, or why nothing was written.
    async fn commit(
        &mut self,
        events: Vec<Published<I>>,
        forget_from: usize,
    ) -> Result<Vec<Published<I>>, Error> {
        let forget = match self.forgotten.len() {
            waiting if waiting >= forget_from => waiting.min(FORGET_BATCH),
            _ => 0,
        };
        let mut forgotten: Vec<DroppedEvent> = self.forgotten.drain(..forget).collect();
        let mut events = events;
        loop {
            let result;
            (result, events, forgotten) = self.try_commit(events, forgotten).await?;
            let error = match result {
                Ok(()) => {
                    self.state.set_trouble(self.full.as_ref().map(|full| describe(full)));
                    self.compactable |= !forgotten.is_empty();
                    return Ok(events);
                }
                Err(error) => error,
            };
            if matches!(error, Error::Full { .. }) && self.reserve.release() {
                self.restrict(error.clone());
                if events.iter().all(|(_, event)| batch::removes(event)) {
                    continue;
                }
            }
            for event in forgotten.into_iter().rev() {
                self.forgotten.push_front(event);
            }
            self.state.set_trouble(Some(describe(&error)));
            tracing::error!(error = describe(&error), "committing failed; writes are refused");
            return Err(error);
        }
    }

    /// Returns its input with the result.
    async fn try_commit(
        &mut self,
        events: Vec<Published<I>>,
        forgotten: Vec<DroppedEvent>,
    ) -> Result<Tried<I>, Error> {
        let log = self.log.take();
        let (place, revision) = (self.place.clone(), self.state.read().revision());
        let committing = spawn_blocking(move || {
            let result = place.guard(|| {
                let log = match log {
                    Some(log) => log,
                    None => Log::reopen(place.clone(), revision)?,
                };
                log.commit(&events, &forgotten)?;
                Ok(log)
            });
            (result, events, forgotten)
        });
        let Ok((result, events, forgotten)) = committing.await else { return Err(Error::Closed) };
        let result = result.map(|log| self.log = Some(log));
        Ok((result, events, forgotten))
    }

    /// Drops old history when nothing is written, and opens a failed log again.
    async fn keep_house(&mut self) {
        self.forgotten.extend(self.state.trim());
        while !self.forgotten.is_empty() || self.log.is_none() {
            if self.commit(Vec::new(), 1).await.is_err() {
                break;
            }
        }
        if self.full.is_some() {
            self.compact().await;
            self.lift_restriction().await;
        }
    }

    /// Compacts the log, so that deleted data becomes free disk space, also for the reserve.
    async fn compact(&mut self) {
        if !std::mem::take(&mut self.compactable) {
            return;
        }
        let Some(mut log) = self.log.take() else { return };
        let compacted = spawn_blocking(move || log.compact().map(|()| log)).await;
        match compacted {
            Ok(Ok(log)) => self.log = Some(log),
            Ok(Err(error)) => tracing::warn!(error = describe(&error), "compacting the log failed"),
            Err(_) => {}
        }
    }

    async fn close(mut self, close: Option<oneshot::Sender<()>>) {
        self.requests.close();
        let log = self.log.take();
        // Dropping it marks the file as cleanly closed, which takes a sync.
        let _ = spawn_blocking(move || drop(log)).await;
        self.state.set_trouble(Some("the store is closed".to_owned()));
        drop(self);
        if let Some(closed) = close {
            let _ = closed.send(());
        }
    }
}

fn answer<I>(answers: WriteResults<I>) {
    for (writer, answer) in answers {
        // A writer that no longer waits needs no result.
        let _ = writer.send(answer);
    }
}
