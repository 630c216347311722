//! The engine without a disk: written objects stay in a [`Memory`], which outlives the store.
//!
//! For simulated clusters. After a simulated crash, the next server opens the same `Memory`, with every acknowledged
//! write. There are no threads and no waiting: a write takes effect between two polls.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::batch::{Batch, WriteResult};
use crate::state::{Shared, State};
use crate::{Error, Index, Options, Write, WriteError};

/// The objects that outlive a store. Clones share them.
pub struct Memory<I>(Arc<Mutex<Kept<I>>>);

struct Kept<I> {
    /// The state of the store that was opened last. Only that store may write.
    state: Option<Arc<Shared<I>>>,
    opened: u64,
    power: Option<Power>,
}

/// A simulated crash after a number of writes.
struct Power {
    left: u64,
    gone: Option<oneshot::Sender<()>>,
}

impl<I> Clone for Memory<I> {
    fn clone(&self) -> Self {
        Memory(self.0.clone())
    }
}

impl<I> Default for Memory<I> {
    fn default() -> Self {
        Memory(Arc::new(Mutex::new(Kept { state: None, opened: 0, power: None })))
    }
}

impl<I: Index> Memory<I> {
    /// A copy with the same objects, without history. The bytes are shared.
    pub fn copy(&self) -> Memory<I> {
        let state = self
            .kept()
            .state
            .as_ref()
            .map(|state| Shared::new(state.read().copy_without_history()));
        Memory(Arc::new(Mutex::new(Kept { state, opened: 0, power: None })))
    }
}

impl<I> Memory<I> {
    /// Accepts `writes` more writes, and none after that until the memory is opened again: a crash at an exact point.
    /// Resolves when it has happened.
    pub fn cut_after(&self, writes: u64) -> oneshot::Receiver<()> {
        let (sender, gone) = oneshot::channel();
        let mut power = Power { left: writes, gone: Some(sender) };
        power.notify_if_off();
        self.kept().power = Some(power);
        gone
    }

    fn kept(&self) -> MutexGuard<'_, Kept<I>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Power {
    fn notify_if_off(&mut self) {
        if self.left == 0
            && let Some(gone) = self.gone.take()
        {
            let _ = gone.send(());
        }
    }
}

pub(crate) struct Engine<I> {
    memory: Memory<I>,
    state: Arc<Shared<I>>,
    options: Options,
    /// The number of this opening.
    opened: u64,
}

/// A store that had the memory open before can no longer write.
pub(crate) fn open<I: Index>(memory: &Memory<I>, options: Options) -> (Arc<Shared<I>>, Engine<I>) {
    let mut kept = memory.kept();
    let state = match &kept.state {
        // A copy: watchers of the old store get no more events.
        Some(state) => state.read().copy(),
        None => State::new(0, &options),
    };
    let state = Shared::new(state);
    kept.state = Some(state.clone());
    kept.opened += 1;
    kept.power = None;
    let engine =
        Engine { memory: memory.clone(), state: state.clone(), options, opened: kept.opened };
    (state, engine)
}

impl<I: Index> Engine<I> {
    pub(crate) async fn write(&self, write: Write) -> WriteResult<I> {
        // Lets other tasks run first, as a disk would.
        tokio::task::yield_now().await;
        let mut kept = self.memory.kept();
        let crashed = kept.power.as_ref().is_some_and(|power| power.left == 0);
        if crashed || kept.opened != self.opened {
            return Err(WriteError::Backend(Error::Closed));
        }
        let mut batch = Batch::new(&self.state, &self.options, 1);
        let answer = batch.decide(write);
        let events = batch.into_events();
        if !events.is_empty() {
            self.state.publish(events);
            self.state.trim();
            if let Some(power) = &mut kept.power {
                power.left -= 1;
                power.notify_if_off();
            }
        }
        answer
    }

    pub(crate) fn close(&self) {
        let mut kept = self.memory.kept();
        if kept.opened == self.opened {
            kept.opened += 1;
        }
        self.state.set_trouble(Some("the store is closed".to_owned()));
    }
}
