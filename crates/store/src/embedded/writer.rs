//! The one writer. Takes everything that waits, checks it in order, commits it in one transaction,
//! publishes it, answers.
//!
//! While a commit syncs, the next batch gathers in the queue: that is all there is to group commit.
//! A commit that fails changes nothing in memory; the log is then opened anew before the next one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::MissedTickBehavior;

use super::log::{Log, Place};
use crate::batch::{Answer, Batch};
use crate::error::describe;
use crate::state::{Forgotten, Published, Shared};
use crate::{Error, Index, Options, Write, WriteError};

/// How many writes share a transaction at most.
const BATCH_WRITES: usize = 512;
/// How much forgotten history is taken out of the log in one transaction.
const FORGET_BATCH: usize = 1024;
/// How often old history is looked for when nothing is written.
const HOUSEKEEPING: Duration = Duration::from_secs(10);

pub(super) enum Request<I> {
    Write(Write, oneshot::Sender<Answer<I>>),
    Close(oneshot::Sender<()>),
}

type Answers<I> = Vec<(oneshot::Sender<Answer<I>>, Answer<I>)>;

pub(super) struct Writer<I> {
    state: Arc<Shared<I>>,
    /// None after a failed commit, until it could be opened anew.
    log: Option<Log>,
    place: Place,
    options: Options,
    requests: mpsc::Receiver<Request<I>>,
    /// Left the ring, not yet the log.
    forgotten: VecDeque<Forgotten>,
}

impl<I: Index> Writer<I> {
    pub(super) fn new(
        state: Arc<Shared<I>>,
        log: Log,
        place: Place,
        options: Options,
        requests: mpsc::Receiver<Request<I>>,
    ) -> Self {
        Writer { state, log: Some(log), place, options, requests, forgotten: VecDeque::new() }
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
                    // What was queued behind a close finds its answer dropped: closed.
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

    /// Lets the writers that were just answered come back before the batch is closed. Without it
    /// they split into two halves that wait for each other's commits.
    async fn gather(&mut self, waiting: &mut Vec<Request<I>>) {
        tokio::task::yield_now().await;
        while waiting.len() < BATCH_WRITES
            && let Ok(request) = self.requests.try_recv()
        {
            waiting.push(request);
        }
    }

    async fn write(&mut self, batch: Vec<(Write, oneshot::Sender<Answer<I>>)>) {
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

    /// Decides every write of the batch in order, as if each had been alone.
    fn check(
        &self,
        batch: Vec<(Write, oneshot::Sender<Answer<I>>)>,
    ) -> (Vec<Published<I>>, Answers<I>) {
        let mut deciding = Batch::new(&self.state, &self.options, batch.len());
        let answers =
            batch.into_iter().map(|(write, writer)| (writer, deciding.decide(write))).collect();
        (deciding.into_events(), answers)
    }

    /// Makes the events durable, and takes history out of the log if at least `forget_from` of it
    /// waits. Gives the events back, or the reason why nothing was written.
    async fn commit(
        &mut self,
        events: Vec<Published<I>>,
        forget_from: usize,
    ) -> Result<Vec<Published<I>>, Error> {
        let forget = match self.forgotten.len() {
            waiting if waiting >= forget_from => waiting.min(FORGET_BATCH),
            _ => 0,
        };
        let forgotten: Vec<Forgotten> = self.forgotten.drain(..forget).collect();
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
        match result {
            Ok(log) => {
                self.log = Some(log);
                self.state.set_trouble(None);
                Ok(events)
            }
            Err(error) => {
                for event in forgotten.into_iter().rev() {
                    self.forgotten.push_front(event);
                }
                self.state.set_trouble(Some(describe(&error)));
                tracing::error!(error = describe(&error), "writes are refused");
                Err(error)
            }
        }
    }

    /// Lets history go that has grown old while nothing was written, and tries a failed log again.
    async fn keep_house(&mut self) {
        self.forgotten.extend(self.state.trim());
        while !self.forgotten.is_empty() || self.log.is_none() {
            if self.commit(Vec::new(), 1).await.is_err() {
                return;
            }
        }
    }

    async fn close(mut self, close: Option<oneshot::Sender<()>>) {
        self.requests.close();
        let log = self.log.take();
        // Dropping it marks the file as closed in good order, which takes a sync.
        let _ = spawn_blocking(move || drop(log)).await;
        self.state.set_trouble(Some("the store is closed".to_owned()));
        drop(self);
        if let Some(closed) = close {
            let _ = closed.send(());
        }
    }
}

fn answer<I>(answers: Answers<I>) {
    for (writer, answer) in answers {
        // A writer that no longer waits needs no answer.
        let _ = writer.send(answer);
    }
}
