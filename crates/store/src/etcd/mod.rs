//! The engine on etcd: several servers may share it, so a watch updates the state.
//!
//!     write() ──▶ etcd transaction ──▶ (wait until the watch has delivered it) ──▶ result
//!     etcd watch ──▶ feed ──▶ state: publish
//!
//! Revisions are etcd's own, plus a constant after a restore (`base.rs`). `pair.rs` encodes objects, `feed.rs` follows the
//! watch, `connection.rs` sends requests. No other program should use the etcd, because we compact its history.

mod base;
mod connection;
mod feed;
mod pair;
mod restore;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use etcd_client::{
    Compare, CompareOp, DeleteOptions, KeyValue, PutOptions, Txn, TxnOp, TxnOpResponse, TxnResponse,
};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use self::connection::{Connection, REQUEST_TIMEOUT};
use self::feed::Feed;
pub(crate) use self::restore::restore;
use crate::object::Identity;
use crate::state::Shared;
use crate::{
    Change, Error, EtcdOptions, EventKind, Expect, Index, Object, Options, Write, WriteError,
};

/// How long a barrier waits for the watch before it writes a key itself. etcd's revision also counts foreign keys, which
/// the watch never sees.
const BARRIER_WAIT: Duration = Duration::from_millis(100);

pub(crate) struct Engine<I> {
    connection: Connection,
    state: Arc<Shared<I>>,
    options: Options,
    closed: AtomicBool,
    feed: JoinHandle<()>,
}

pub(crate) async fn open<I: Index>(
    etcd: EtcdOptions,
    options: Options,
) -> Result<(Arc<Shared<I>>, Engine<I>), Error> {
    let connection = Connection::open(etcd).await?;
    let state = Shared::new(feed::load::<I>(&connection, &options).await?);
    let damage = Arc::new(OnceLock::new());
    let feed = Feed {
        connection: connection.clone(),
        state: state.clone(),
        options: options.clone(),
        forgotten: 0,
        damage: damage.clone(),
    };
    let feed = tokio::spawn(feed.run());
    let closed = AtomicBool::new(false);
    let engine = Engine { connection, state: state.clone(), options, closed, feed };
    engine.barrier().await?;
    damage.get().cloned().map_or(Ok((state, engine)), Err)
}

impl<I: Index> Engine<I> {
    pub(crate) async fn write(&self, write: Write) -> Result<Arc<Object<I>>, WriteError<I>> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed.into());
        }
        let Write { collection, name, expect, change } = write;
        let draft = match change {
            Change::Put(draft) => Some(draft),
            Change::Delete if expect == Expect::Absent => {
                let current = self.state.read().get(&collection, &name);
                return Err(WriteError::Conflict { current });
            }
            Change::Delete => None,
        };
        let key = pair::key(&self.connection.prefix, &collection, &name);
        let operation = match &draft {
            Some(draft) => {
                let options = PutOptions::new().with_prev_key();
                TxnOp::put(key.clone(), pair::value(&name, draft)?, Some(options))
            }
            None => TxnOp::delete(key.clone(), Some(DeleteOptions::new().with_prev_key())),
        };
        let expected = match expect {
            Expect::Absent => 0,
            Expect::Revision(revision) => self.connection.base.etcds(revision),
        };
        let txn = Txn::new()
            .when([Compare::mod_revision(key.clone(), CompareOp::Equal, expected)])
            .and_then([operation])
            .or_else([TxnOp::get(key, None)]);
        let response = self.connection.transact(txn).await?;
        let (name, revision) = (Arc::from(name), self.connection.revision_of(response.header()));
        let before = first_pair(&response);
        if !response.succeeded() {
            return Err(self.conflict(&collection, name, before).await?);
        }
        let object = self.written(&collection, name, revision, draft, before)?;
        self.applied(revision).await?;
        Ok(Arc::new(object))
    }

    /// The object after the write; `before` is the pair before it.
    fn written(
        &self,
        collection: &str,
        name: Arc<str>,
        revision: u64,
        draft: Option<crate::Draft>,
        before: Option<KeyValue>,
    ) -> Result<Object<I>, Error> {
        let envelope = &self.options.envelope;
        let base = self.connection.base;
        let created = before.as_ref().map(|pair| base.ours(pair.create_revision()));
        match (draft, before) {
            (Some(draft), _) => {
                let kind = created.map_or(EventKind::Created, |_| EventKind::Updated);
                let (before, after) = draft.split(&name)?;
                let created = created.unwrap_or(revision);
                let name = name.clone();
                let identity = Identity { collection, name, kind, revision, created };
                Ok(Object::new(envelope, identity, before, after))
            }
            (None, Some(pair)) => {
                let last: Object<I> = pair::object(envelope, collection, name, &pair, base)?;
                Ok(last.deleted(envelope, collection, revision))
            }
            (None, None) => {
                let key = pair::key(&self.connection.prefix, collection, &name);
                Err(Error::EtcdValue {
                    key,
                    what: "it was deleted but etcd did not return its value",
                })
            }
        }
    }

    /// Returns the conflict once reads see the current object, so that a retry does not run into the same conflict.
    async fn conflict(
        &self,
        collection: &str,
        name: Arc<str>,
        pair: Option<KeyValue>,
    ) -> Result<WriteError<I>, Error> {
        let Some(pair) = pair else {
            self.barrier().await?;
            return Ok(WriteError::Conflict { current: None });
        };
        let (envelope, base) = (&self.options.envelope, self.connection.base);
        let current = pair::object(envelope, collection, name, &pair, base)?;
        self.applied(current.revision()).await?;
        Ok(WriteError::Conflict { current: Some(Arc::new(current)) })
    }

    pub(crate) async fn barrier(&self) -> Result<u64, Error> {
        let revision = self.connection.revision().await?;
        if timeout(BARRIER_WAIT, self.state.wait_for(revision)).await.is_err() {
            let revision = self.connection.tick().await?;
            self.applied(revision).await?;
        }
        Ok(self.state.read().revision())
    }

    async fn applied(&self, revision: u64) -> Result<(), Error> {
        let waiting = timeout(REQUEST_TIMEOUT, self.state.wait_for(revision)).await;
        waiting
            .map_err(|_| Error::Timeout { doing: "waiting for the watch to deliver our own write" })
    }

    pub(crate) async fn close(&self) -> Result<(), Error> {
        self.closed.store(true, Ordering::Release);
        self.feed.abort();
        self.state.set_trouble(Some("the store is closed".to_owned()));
        Ok(())
    }
}

impl<I> Drop for Engine<I> {
    fn drop(&mut self) {
        self.feed.abort();
    }
}

/// The pair that our single operation found: before the change, or instead of the expected one.
fn first_pair(answer: &TxnResponse) -> Option<KeyValue> {
    match answer.op_responses().pop()? {
        TxnOpResponse::Put(put) => put.prev_key().cloned(),
        TxnOpResponse::Delete(delete) => delete.prev_kvs().first().cloned(),
        TxnOpResponse::Get(get) => get.kvs().first().cloned(),
        TxnOpResponse::Txn(_) => None,
    }
}
