//! Requests to etcd, each with a limit in time and an error that says what was being done.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    ConnectOptions, GetOptions, GetResponse, Txn, TxnResponse, WatchOptions, WatchStream,
};

use crate::{Error, EtcdOptions};

/// How long etcd may take to answer.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a silent connection is tested, and how long it may stay silent then.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(5));
/// A page of a list, or what a watch has to catch up with, in one message.
const MESSAGE_BYTES_MAX: usize = 1 << 30;
/// How many pairs are read at once.
const PAGE: i64 = 500;

#[derive(Clone)]
pub(super) struct Connection {
    kv: etcd_client::KvClient,
    watch: etcd_client::WatchClient,
    pub(super) prefix: Arc<str>,
}

/// A request could not be answered because its revision is no longer known.
pub(super) enum Failure {
    Compacted,
    Other(Error),
}

impl Connection {
    pub(super) async fn new(etcd: EtcdOptions) -> Result<Self, Error> {
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
        })
    }

    /// The revision of the whole etcd: linearizable, so every write acknowledged before is in it.
    pub(super) async fn revision(&self) -> Result<u64, Error> {
        let (mut kv, options) = (self.kv.clone(), GetOptions::new().with_count_only());
        let reading = kv.get(&*self.prefix, Some(options));
        Ok(revision_of(within("reading the revision of", reading).await?.header()))
    }

    /// Writes a key that is no object, so that the revision moves where our watch sees it.
    pub(super) async fn tick(&self) -> Result<u64, Error> {
        let key = super::pair::tick_key(&self.prefix);
        let answer = within("writing to", self.kv.clone().put(key, "", None)).await?;
        Ok(revision_of(answer.header()))
    }

    /// Up to a page of our pairs from key `from` on, as they were at `revision`.
    pub(super) async fn page(&self, from: Vec<u8>, revision: u64) -> Result<GetResponse, Failure> {
        let options = GetOptions::new()
            .with_range(range_end(&self.prefix))
            .with_revision(revision as i64)
            .with_limit(PAGE);
        within("reading", self.kv.clone().get(from, Some(options))).await.map_err(|error| {
            if is_out_of_range(&error) { Failure::Compacted } else { Failure::Other(error) }
        })
    }

    pub(super) async fn transact(&self, txn: Txn) -> Result<TxnResponse, Error> {
        within("writing to", self.kv.clone().txn(txn)).await
    }

    /// Everything that happens to our keys from `revision` on.
    pub(super) async fn watch(&self, revision: u64) -> Result<WatchStream, Error> {
        let options = WatchOptions::new()
            .with_range(range_end(&self.prefix))
            .with_start_revision(revision as i64);
        within("watching", self.watch.clone().watch(&*self.prefix, Some(options))).await
    }

    /// Lets etcd forget what was before `revision`.
    pub(super) async fn compact(&self, revision: u64) -> Result<(), Error> {
        let mut kv = self.kv.clone();
        match within("compacting", kv.compact(revision as i64, None)).await {
            Ok(_) => Ok(()),
            // Another server was faster.
            Err(error) if is_out_of_range(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

pub(super) fn revision_of(header: Option<&etcd_client::ResponseHeader>) -> u64 {
    header.map_or(0, |header| header.revision() as u64)
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

/// etcd's answer to a revision that is compacted.
fn is_out_of_range(error: &Error) -> bool {
    const OUT_OF_RANGE: i32 = 11;
    let Error::Etcd { source, .. } = error else { return false };
    match source.downcast_ref::<etcd_client::Error>() {
        Some(etcd_client::Error::GRpcStatus(status)) => status.code() as i32 == OUT_OF_RANGE,
        Some(_) | None => false,
    }
}

/// The first key after all that start with the prefix.
fn range_end(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}
