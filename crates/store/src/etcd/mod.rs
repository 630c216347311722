//! The engine on etcd: several servers may share it, so the state is fed by a watch.
//!
//!     write() ──▶ etcd transaction ──▶ (wait until the feed has brought it) ──▶ answer
//!     etcd watch ──▶ feed ──▶ state: publish
//!
//! Revisions are etcd's own. `pair.rs` says how objects are written, `feed.rs` how they come back,
//! `connection.rs` how etcd is asked. The etcd should be ours alone: we compact its history.

mod connection;
mod feed;
mod pair;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use etcd_client::{
    Compare, CompareOp, DeleteOptions, KeyValue, PutOptions, Txn, TxnOp, TxnOpResponse, TxnResponse,
};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use self::connection::{Connection, REQUEST_TIMEOUT, revision_of};
use self::feed::Feed;
use crate::object::Identity;
use crate::state::Shared;
use crate::{
    Change, Error, EtcdOptions, EventKind, Expect, Index, Object, Options, Write, WriteError,
};

/// How long a barrier waits for the feed before it makes the revision move itself. etcd's revision
/// also counts keys that are not ours, which the feed never sees.
const BARRIER_PATIENCE: Duration = Duration::from_millis(100);

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
    let connection = Connection::new(etcd).await?;
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
            Expect::Revision(revision) => revision as i64,
        };
        let txn = Txn::new()
            .when([Compare::mod_revision(key.clone(), CompareOp::Equal, expected)])
            .and_then([operation])
            .or_else([TxnOp::get(key, None)]);
        let answer = self.connection.transact(txn).await?;
        let (name, revision) = (Arc::from(name), revision_of(answer.header()));
        let before = first_pair(&answer);
        if !answer.succeeded() {
            return Err(self.conflict(&collection, name, before).await?);
        }
        let object = self.written(&collection, name, revision, draft, before)?;
        self.applied(revision).await?;
        Ok(Arc::new(object))
    }

    /// What the write has made of the pair that was there `before`.
    fn written(
        &self,
        collection: &str,
        name: Arc<str>,
        revision: u64,
        draft: Option<crate::Draft>,
        before: Option<KeyValue>,
    ) -> Result<Object<I>, Error> {
        let envelope = &self.options.envelope;
        let created = before.as_ref().map(|pair| pair.create_revision() as u64);
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
                let last: Object<I> = pair::object(envelope, collection, name, &pair)?;
                Ok(last.deleted(envelope, collection, revision))
            }
            (None, None) => {
                let key = pair::key(&self.connection.prefix, collection, &name);
                Err(Error::EtcdValue {
                    key,
                    what: "it was deleted but etcd did not tell its value",
                })
            }
        }
    }

    /// The conflict to report, once reads see what it was about: whoever tries again must not run
    /// into it a second time.
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
        let current = pair::object(&self.options.envelope, collection, name, &pair)?;
        self.applied(current.revision()).await?;
        Ok(WriteError::Conflict { current: Some(Arc::new(current)) })
    }

    pub(crate) async fn barrier(&self) -> Result<u64, Error> {
        let revision = self.connection.revision().await?;
        if timeout(BARRIER_PATIENCE, self.state.wait_for(revision)).await.is_err() {
            let revision = self.connection.tick().await?;
            self.applied(revision).await?;
        }
        Ok(self.state.read().revision())
    }

    async fn applied(&self, revision: u64) -> Result<(), Error> {
        let waiting = timeout(REQUEST_TIMEOUT, self.state.wait_for(revision)).await;
        waiting.map_err(|_| Error::Timeout { doing: "waiting for our own write to come back" })
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

/// The pair that our single operation found: before a change, or instead of what was expected.
fn first_pair(answer: &TxnResponse) -> Option<KeyValue> {
    match answer.op_responses().pop()? {
        TxnOpResponse::Put(put) => put.prev_key().cloned(),
        TxnOpResponse::Delete(delete) => delete.prev_kvs().first().cloned(),
        TxnOpResponse::Get(get) => get.kvs().first().cloned(),
        TxnOpResponse::Txn(_) => None,
    }
}
