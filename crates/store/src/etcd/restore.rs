//! Restores into an etcd without keys of ours.
//!
//!     nothing under the prefix? put `restoring` ──▶ objects ──▶ put `base`, delete `restoring`
//!
//! While `restoring` exists, no server opens the etcd ([`Connection::open`]). The check and putting `restoring` are one
//! transaction, and so are putting `base` and deleting `restoring`.

use std::collections::BTreeMap;
use std::sync::Arc;

use etcd_client::{Compare, CompareOp, Txn, TxnOp};
use tokio::task::JoinSet;

use super::connection::{Connection, range_end};
use super::pair;
use crate::{Entry, Error, EtcdOptions};

/// How many collections are written at the same time. The objects of one are written in order.
const COLLECTIONS_AT_ONCE: usize = 16;

pub(crate) async fn restore(
    etcd: EtcdOptions,
    after: u64,
    entries: Vec<Entry>,
) -> Result<(), Error> {
    let connection = Connection::connect(etcd).await?;
    let prefix = &*connection.prefix;
    let empty = Compare::create_revision(prefix, CompareOp::Equal, 0).with_range(range_end(prefix));
    let mark = TxnOp::put(pair::restoring_key(prefix), "", None);
    let marked = connection.transact(Txn::new().when([empty]).and_then([mark])).await?;
    if !marked.succeeded() {
        return Err(refusal(&connection).await);
    }
    let filled = async {
        put_all(&connection, entries).await?;
        finish(&connection, after).await
    };
    match filled.await {
        Ok(()) => Ok(()),
        Err(error) => {
            // If this fails, `restoring` stays, and the next start or restore says what to do.
            if let Err(left) = connection.delete_all().await {
                tracing::warn!(%left, "removing a partial restore failed");
            }
            Err(error)
        }
    }
}

async fn refusal(connection: &Connection) -> Error {
    let prefix = connection.prefix.to_string();
    match connection.get(pair::restoring_key(&prefix)).await {
        Ok(Some(_)) => Error::EtcdUnfinished { prefix },
        Ok(None) => Error::EtcdNotEmpty { prefix },
        Err(error) => error,
    }
}

async fn put_all(connection: &Connection, entries: Vec<Entry>) -> Result<(), Error> {
    let mut collections: BTreeMap<Arc<str>, Vec<Entry>> = BTreeMap::new();
    for entry in entries {
        collections.entry(entry.collection.clone()).or_default().push(entry);
    }
    let mut writing = JoinSet::new();
    for (_, entries) in collections {
        if writing.len() >= COLLECTIONS_AT_ONCE {
            joined(writing.join_next().await)?;
        }
        let connection = connection.clone();
        writing.spawn(async move {
            for entry in entries {
                put(&connection, &entry).await?;
            }
            Ok(())
        });
    }
    while let Some(done) = writing.join_next().await {
        joined(Some(done))?;
    }
    Ok(())
}

fn joined(done: Option<Result<Result<(), Error>, tokio::task::JoinError>>) -> Result<(), Error> {
    done.unwrap_or(Ok(Ok(()))).unwrap_or(Err(Error::Closed))
}

/// One object per transaction, so that no two share a revision.
async fn put(connection: &Connection, entry: &Entry) -> Result<(), Error> {
    let Entry { collection, name, draft } = entry;
    let key = pair::key(&connection.prefix, collection, name);
    let absent = Compare::create_revision(key.clone(), CompareOp::Equal, 0);
    let put = TxnOp::put(key, pair::value(name, draft)?, None);
    let answer = connection.transact(Txn::new().when([absent]).and_then([put])).await?;
    match answer.succeeded() {
        true => Ok(()),
        false => Err(Error::EtcdNotEmpty { prefix: connection.prefix.to_string() }),
    }
}

async fn finish(connection: &Connection, base: u64) -> Result<(), Error> {
    let prefix = &*connection.prefix;
    let restoring = pair::restoring_key(prefix);
    let ours = Compare::create_revision(restoring.clone(), CompareOp::Greater, 0);
    let base = TxnOp::put(pair::base_key(prefix), base.to_string(), None);
    let done = Txn::new().when([ours]).and_then([base, TxnOp::delete(restoring, None)]);
    match connection.transact(done).await?.succeeded() {
        true => Ok(()),
        false => Err(Error::EtcdNotEmpty { prefix: prefix.to_owned() }),
    }
}
