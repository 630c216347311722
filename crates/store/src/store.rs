//! The store's face: opening, reading, writing, watching.
//!
//! Reads are answered from memory (`state`). Writes go to the engine underneath, which is the only
//! one that changes the memory: `embedded` (one file, one writer), `etcd` (shared by servers), or
//! `memory` (nothing underneath, for simulated clusters).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::state::Shared;
use crate::{Compacted, Envelope, Error, Index, Object, Watcher, Write, WriteError};
use crate::{embedded, etcd, memory};

/// What lies underneath.
#[derive(Debug, Clone)]
pub enum Backend {
    /// One file on this machine, made if it does not exist.
    Embedded { path: PathBuf },
    /// An etcd cluster, possibly shared with other servers of the same prefix.
    Etcd(EtcdOptions),
}

#[derive(Debug, Clone)]
pub struct EtcdOptions {
    /// `http://127.0.0.1:2379`
    pub endpoints: Vec<String>,
    /// What all keys start with: `/landfall/`.
    pub prefix: String,
}

#[derive(Debug, Clone)]
pub struct Options {
    pub envelope: Envelope,
    /// How long events stay available to watchers.
    pub history: Duration,
    /// How many events are kept at most, however young.
    pub history_events: usize,
    /// How much memory events may keep at most, however young.
    pub history_bytes: usize,
}

impl Options {
    pub fn new(envelope: Envelope) -> Self {
        Options {
            envelope,
            history: Duration::from_secs(5 * 60),
            history_events: 100_000,
            history_bytes: 256 << 20,
        }
    }
}

/// A handle on the store; clones share it.
pub struct Store<I> {
    state: Arc<Shared<I>>,
    engine: Arc<Engine<I>>,
}

enum Engine<I> {
    Embedded(embedded::Engine<I>),
    Etcd(Box<etcd::Engine<I>>),
    Memory(memory::Engine<I>),
}

impl<I> Clone for Store<I> {
    fn clone(&self) -> Self {
        Store { state: self.state.clone(), engine: self.engine.clone() }
    }
}

type Objects<I> = Vec<Arc<Object<I>>>;

impl<I: Index> Store<I> {
    /// Opens the store and reads all of it into memory.
    pub async fn open(backend: Backend, options: Options) -> Result<Self, Error> {
        let (state, engine) = match backend {
            Backend::Embedded { path } => {
                let (state, engine) = embedded::open(path, options).await?;
                (state, Engine::Embedded(engine))
            }
            Backend::Etcd(etcd) => {
                let (state, engine) = etcd::open(etcd, options).await?;
                (state, Engine::Etcd(Box::new(engine)))
            }
        };
        Ok(Store { state, engine: Arc::new(engine) })
    }

    /// A store on memory that outlives it. Whoever had that open can write no more.
    pub fn open_memory(memory: &memory::Memory<I>, options: Options) -> Self {
        let (state, engine) = memory::open(memory, options);
        Store { state, engine: Arc::new(Engine::Memory(engine)) }
    }

    /// The newest revision that reads can see.
    pub fn revision(&self) -> u64 {
        self.state.read().revision()
    }

    pub fn get(&self, collection: &str, name: &str) -> Option<Arc<Object<I>>> {
        self.state.read().get(collection, name)
    }

    /// The objects whose name starts with `prefix` and is greater than `after`, in bytewise order
    /// of name, and the revision this is a snapshot of.
    pub fn list(&self, collection: &str, prefix: &str, after: Option<&str>) -> (u64, Objects<I>) {
        let state = self.state.read();
        (state.revision(), state.list(collection, None, prefix, after))
    }

    /// Those of them that have the topic.
    pub fn list_of(
        &self,
        collection: &str,
        topic: &str,
        prefix: &str,
        after: Option<&str>,
    ) -> (u64, Objects<I>) {
        let state = self.state.read();
        (state.revision(), state.list(collection, Some(topic), prefix, after))
    }

    /// The same as it was at `revision` (at most the current one). Err if the history kept does
    /// not reach so far.
    pub fn list_at(
        &self,
        collection: &str,
        prefix: &str,
        after: Option<&str>,
        revision: u64,
    ) -> Result<Objects<I>, Compacted> {
        self.state.read().list_at(collection, prefix, after, revision)
    }

    /// Returns once the change is durable and visible to reads. For [`crate::Change::Delete`] the
    /// answer is the last state, carrying the revision of the deletion.
    pub async fn write(&self, write: Write) -> Result<Arc<Object<I>>, WriteError<I>> {
        match &*self.engine {
            Engine::Embedded(engine) => engine.write(write).await,
            Engine::Etcd(engine) => engine.write(write).await,
            Engine::Memory(engine) => engine.write(write).await,
        }
    }

    /// The collection's events with revisions greater than `after`, which may be in the future.
    pub fn watch(&self, collection: &str, after: u64) -> Result<Watcher<I>, Compacted> {
        Shared::watch(&self.state, collection, None, after)
    }

    /// Those of them whose object has the topic, or had it before.
    pub fn watch_of(
        &self,
        collection: &str,
        topic: &str,
        after: u64,
    ) -> Result<Watcher<I>, Compacted> {
        Shared::watch(&self.state, collection, Some(topic), after)
    }

    /// The current state and a watcher that continues exactly from it.
    pub fn list_and_watch(&self, collection: &str, prefix: &str) -> (u64, Objects<I>, Watcher<I>) {
        Shared::list_and_watch(&self.state, collection, None, prefix)
    }

    /// The same of what has the topic.
    pub fn list_and_watch_of(
        &self,
        collection: &str,
        topic: &str,
        prefix: &str,
    ) -> (u64, Objects<I>, Watcher<I>) {
        Shared::list_and_watch(&self.state, collection, Some(topic), prefix)
    }

    /// Reads after this see every write that was acknowledged, by whichever server, before it.
    pub async fn barrier(&self) -> Result<u64, Error> {
        match &*self.engine {
            Engine::Embedded(_) | Engine::Memory(_) => Ok(self.revision()),
            Engine::Etcd(engine) => engine.barrier().await,
        }
    }

    /// Until reads can see `revision`.
    pub async fn wait_for(&self, revision: u64) {
        self.state.wait_for(revision).await;
    }

    /// Every collection and the number of its objects.
    pub fn counts(&self) -> Vec<(Arc<str>, usize)> {
        self.state.read().counts()
    }

    /// Finishes the writes already queued, syncs, and lets go of the file. Later writes are
    /// refused; reads still answer.
    pub async fn close(&self) -> Result<(), Error> {
        match &*self.engine {
            Engine::Embedded(engine) => engine.close().await,
            Engine::Etcd(engine) => engine.close().await,
            Engine::Memory(engine) => {
                engine.close();
                Ok(())
            }
        }
    }

    /// Nothing is written from here on, as if the process had been killed. Memory only.
    pub fn cut(&self) {
        if let Engine::Memory(engine) = &*self.engine {
            engine.close();
        }
    }

    /// Err says why writes are refused, or why reads may be stale.
    pub fn health(&self) -> Result<(), String> {
        self.state.health()
    }
}
