//! Requests to etcd, each with a timeout and an error that names the operation.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    ConnectOptions, DeleteOptions, GetOptions, GetResponse, ResponseHeader, Txn, TxnResponse,
    WatchOptions, WatchStream,
};

use super::base::Base;
use super::pair;
use crate::{Error, EtcdOptions};

/// The timeout of a request.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval of keep-alive pings on a silent connection, and their timeout.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(5));
/// The size of one message: a page of a list, or the backlog of a watch.
const MESSAGE_BYTES_MAX: usize = 1 << 30;
/// How many pairs are read at once.
const PAGE: i64 = 500;

#[derive(Clone)]
pub(super) struct Connection {
    kv: etcd_client::KvClient,
    watch: etcd_client::WatchClient,
    pub(super) prefix: Arc<str>,
    /// Added to etcd's revisions: all revisions in this interface are ours.
    pub(super) base: Base,
}

/// Why a read at a revision failed.
pub(super) enum Failure {
    Compacted,
    Other(Error),
}

impl Connection {
    /// Connects to an etcd that is ready for use.
    pub(super) async fn open(etcd: EtcdOptions) -> Result<Self, Error> {
        let mut connection = Self::connect(etcd).await?;
        let prefix = connection.prefix.clone();
        if connection.get(pair::restoring_key(&prefix)).await?.is_some() {
            return Err(Error::EtcdUnfinished { prefix: prefix.to_string() });
        }
        let key = pair::base_key(&prefix);
        if let Some(value) = connection.get(key.clone()).await? {
            let number = std::str::from_utf8(&value).ok().and_then(|text| text.parse().ok());
            let what = "it is not a number";
            connection.base = Base(number.ok_or(Error::EtcdValue { key, what })?);
        }
        Ok(connection)
    }

    pub(super) async fn connect(etcd: EtcdOptions) -> Result<Self, Error> {
        let options = ConnectOptions::new()
            .with_connect_timeout(REQUEST_TIMEOUT)
            .with_keep_alive(KEEP_ALIVE.0, KEEP_ALIVE.1)
            .with_keep_alive_while_idle(true)
            .with_require_leader(true);
        let connecting = etcd_client::Client::connect(&etcd.endpoints, Some(options));
        let client = within("connecting to", connecting).await?;
        Ok(Connection {
            kv: client.kv_client().max_decoding_message_size(MESSAGE_BYTES_MAX),
            watch: client.watch_client().max_decoding_message_size(MESSAGE_BYTES_MAX),
            prefix: etcd.prefix.into(),
            base: Base::default(),
        })
    }

    /// The revision of the whole etcd: linearizable, so every write acknowledged before is in it.
    pub(super) async fn revision(&self) -> Result<u64, Error> {
        let (mut kv, options) = (self.kv.clone(), GetOptions::new().with_count_only());
        let reading = kv.get(&*self.prefix, Some(options));
        Ok(self.revision_of(within("reading the revision of", reading).await?.header()))
    }

    /// Writes a key that is not an object, so that our watch sees a new revision.
    pub(super) async fn tick(&self) -> Result<u64, Error> {
        let key = pair::tick_key(&self.prefix);
        let answer = within("writing to", self.kv.clone().put(key, "", None)).await?;
        Ok(self.revision_of(answer.header()))
    }

    pub(super) async fn get(&self, key: String) -> Result<Option<Vec<u8>>, Error> {
        let answer = within("reading", self.kv.clone().get(key, None)).await?;
        Ok(answer.kvs().first().map(|pair| pair.value().to_vec()))
    }

    /// Removes everything under the prefix.
    pub(super) async fn delete_all(&self) -> Result<(), Error> {
        let options = DeleteOptions::new().with_range(range_end(&self.prefix));
        let mut kv = self.kv.clone();
        within("deleting from", kv.delete(&*self.prefix, Some(options))).await.map(drop)
    }

    pub(super) fn revision_of(&self, header: Option<&ResponseHeader>) -> u64 {
        header.map_or(0, |header| self.base.ours(header.revision()))
    }

    /// Up to a page of our pairs from key `from` on, as they were at `revision`.
    pub(super) async fn page(&self, from: Vec<u8>, revision: u64) -> Result<GetResponse, Failure> {
        let options = GetOptions::new()
            .with_range(range_end(&self.prefix))
            .with_revision(self.base.etcds(revision))
            .with_limit(PAGE);
        within("reading", self.kv.clone().get(from, Some(options))).await.map_err(|error| {
            if is_out_of_range(&error) { Failure::Compacted } else { Failure::Other(error) }
        })
    }

    pub(super) async fn transact(&self, txn: Txn) -> Result<TxnResponse, Error> {
        within("writing to", self.kv.clone().txn(txn)).await
    }

    /// Watches our keys from `revision` on.
    pub(super) async fn watch(&self, revision: u64) -> Result<WatchStream, Error> {
        let options = WatchOptions::new()
            .with_range(range_end(&self.prefix))
            .with_start_revision(self.base.etcds(revision));
        within("watching", self.watch.clone().watch(&*self.prefix, Some(options))).await
    }

    /// Lets etcd drop history before `revision`.
    pub(super) async fn compact(&self, revision: u64) -> Result<(), Error> {
        let mut kv = self.kv.clone();
        match within("compacting", kv.compact(self.base.etcds(revision), None)).await {
            Ok(_) => Ok(()),
            // Another server was faster.
            Err(error) if is_out_of_range(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

pub(super) fn failed(doing: &'static str, error: etcd_client::Error) -> Error {
    Error::Etcd { doing, source: Arc::new(error) }
}

async fn within<T>(
    doing: &'static str,
    request: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T, Error> {
    match tokio::time::timeout(REQUEST_TIMEOUT, request).await {
        Ok(answer) => answer.map_err(|error| failed(doing, error)),
        Err(_) => Err(Error::Timeout { doing }),
    }
}

/// Whether etcd has compacted the revision.
fn is_out_of_range(error: &Error) -> bool {
    const OUT_OF_RANGE: i32 = 11;
    let Error::Etcd { source, .. } = error else { return false };
    match source.downcast_ref::<etcd_client::Error>() {
        Some(etcd_client::Error::GRpcStatus(status)) => status.code() as i32 == OUT_OF_RANGE,
        Some(_) | None => false,
    }
}

/// The first key after all that start with the prefix.
pub(super) fn range_end(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}
