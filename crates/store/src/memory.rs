//! The engine without a disk: what is written stays as long as the memory does, which may be longer
//! than the store that wrote it.
//!
//! For simulated clusters. A server that crashes there leaves its [`Memory`] behind, with every write
//! it was ever told of, and the next one opens it. No threads, no waiting: a write takes effect
//! between two polls.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::batch::{Answer, Batch};
use crate::state::{Shared, State};
use crate::{Error, Index, Options, Write, WriteError};

/// What is kept when the store on it is not. Clones share it.
pub struct Memory<I>(Arc<Mutex<Kept<I>>>);

struct Kept<I> {
    /// Of the store that was opened last. Only that one may write.
    state: Option<Arc<Shared<I>>>,
    opened: u64,
    power: Option<Power>,
}

/// After so many writes it goes.
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
    /// Another memory with the same objects. Their bytes are shared; there is no history.
    pub fn copy(&self) -> Memory<I> {
        let state = self.kept().state.as_ref().map(|state| Shared::new(state.read().settled()));
        Memory(Arc::new(Mutex::new(Kept { state, opened: 0, power: None })))
    }
}

impl<I> Memory<I> {
    /// After `writes` more, none is taken before the memory is opened again: a crash at an exact
    /// place. The answer comes when it has happened.
    pub fn cut_after(&self, writes: u64) -> oneshot::Receiver<()> {
        let (sender, gone) = oneshot::channel();
        let mut power = Power { left: writes, gone: Some(sender) };
        power.tell();
        self.kept().power = Some(power);
        gone
    }

    fn kept(&self) -> MutexGuard<'_, Kept<I>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Power {
    fn tell(&mut self) {
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
    /// Which opening of the memory this is.
    opened: u64,
}

/// Whoever had it open before has lost it.
pub(crate) fn open<I: Index>(memory: &Memory<I>, options: Options) -> (Arc<Shared<I>>, Engine<I>) {
    let mut kept = memory.kept();
    let state = match &kept.state {
        // A copy: those who still watch the old one hear nothing more.
        Some(state) => state.read().again(),
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
    pub(crate) async fn write(&self, write: Write) -> Answer<I> {
        // Others may come first, as they may on a disk.
        tokio::task::yield_now().await;
        let mut kept = self.memory.kept();
        let dead = kept.power.as_ref().is_some_and(|power| power.left == 0);
        if dead || kept.opened != self.opened {
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
                power.tell();
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
