//! The public interface: open, read, write, watch.
//!
//! Reads use the state in memory (`state`). Writes go to an engine, which alone changes that state: `embedded` (one file,
//! one writer), `etcd` (shared by servers), or `memory` (for simulated clusters).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::partition::SharedList;
use crate::state::Shared;
use crate::{Compacted, Envelope, Error, Index, Object, Watcher, Write, WriteError};
use crate::{embedded, etcd, memory};

/// Where objects are stored durably.
#[derive(Debug, Clone)]
pub enum Backend {
    /// One file on this machine, created if it does not exist.
    Embedded { path: PathBuf },
    /// An etcd cluster, possibly shared with other servers of the same prefix.
    Etcd(EtcdOptions),
}

#[derive(Debug, Clone)]
pub struct EtcdOptions {
    /// `http://127.0.0.1:2379`
    pub endpoints: Vec<String>,
    /// The prefix of all keys: `/landfall/`.
    pub prefix: String,
}

#[derive(Debug, Clone)]
pub struct Options {
    pub envelope: Envelope,
    /// How long events stay available to watchers.
    pub history: Duration,
    /// How many events are kept at most.
    pub history_events: usize,
    /// How much memory events may use at most.
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

/// A handle; clones share the store.
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

/// All objects at one revision.
pub struct Snapshot<I> {
    pub revision: u64,
    /// Each object with its collection.
    pub objects: Vec<(Arc<str>, Arc<Object<I>>)>,
}

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

    /// Opens a store on a [`memory::Memory`]. A store that had it open before can no longer write.
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

    /// The same for one partition.
    pub fn list_of(
        &self,
        collection: &str,
        partition: &str,
        prefix: &str,
        after: Option<&str>,
    ) -> (u64, Objects<I>) {
        let state = self.state.read();
        (state.revision(), state.list(collection, Some(partition), prefix, after))
    }

    /// The list as it was at `revision` (at most the current one). An error if the history does not reach back that far.
    pub fn list_at(
        &self,
        collection: &str,
        prefix: &str,
        after: Option<&str>,
        revision: u64,
    ) -> Result<Objects<I>, Compacted> {
        self.state.read().list_at(collection, prefix, after, revision)
    }

    /// Returns once the change is durable and visible to reads. For [`crate::Change::Delete`] returns the last state, with
    /// the revision of the deletion.
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

    /// The events of objects that are, or were before the event, in the partition.
    pub fn watch_of(
        &self,
        collection: &str,
        partition: &str,
        after: u64,
    ) -> Result<Watcher<I>, Compacted> {
        Shared::watch(&self.state, collection, Some(partition), after)
    }

    /// The current objects and a watcher that continues exactly from there. Callers share one list until the next change.
    pub fn list_and_watch(
        &self,
        collection: &str,
        prefix: &str,
    ) -> (u64, SharedList<I>, Watcher<I>) {
        Shared::list_and_watch(&self.state, collection, None, prefix)
    }

    /// The same for one partition.
    pub fn list_and_watch_of(
        &self,
        collection: &str,
        partition: &str,
        prefix: &str,
    ) -> (u64, SharedList<I>, Watcher<I>) {
        Shared::list_and_watch(&self.state, collection, Some(partition), prefix)
    }

    /// After this, reads see every write that any server has acknowledged before.
    pub async fn barrier(&self) -> Result<u64, Error> {
        match &*self.engine {
            Engine::Embedded(_) | Engine::Memory(_) => Ok(self.revision()),
            Engine::Etcd(engine) => engine.barrier().await,
        }
    }

    /// All objects at one revision, including every write that was acknowledged before the call. Copies nothing, but keeps
    /// these versions in memory until it is dropped.
    pub async fn snapshot(&self) -> Result<Snapshot<I>, Error> {
        self.barrier().await?;
        let state = self.state.read();
        Ok(Snapshot { revision: state.revision(), objects: state.everything() })
    }

    /// Waits until reads see `revision`.
    pub async fn wait_for(&self, revision: u64) {
        self.state.wait_for(revision).await;
    }

    /// Every collection and the number of its objects.
    pub fn counts(&self) -> Vec<(Arc<str>, usize)> {
        self.state.read().counts()
    }

    /// Finishes queued writes, syncs, and closes the file. Later writes fail; reads still work.
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

    /// Stops all writes, as if the process had been killed. Only for `memory`.
    pub fn cut(&self) {
        if let Engine::Memory(engine) = &*self.engine {
            engine.close();
        }
    }

    /// The error says why writes fail, or why reads may be stale.
    pub fn health(&self) -> Result<(), String> {
        self.state.health()
    }
}
