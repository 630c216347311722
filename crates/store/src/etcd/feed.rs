//! Keeps the state equal to what etcd holds: reads it once, then follows a watch.
//!
//! The reading starts in the past, as far back as etcd remembers and the ring may hold, and the
//! watch fills in the history. So a restarted server has its ring at once.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use etcd_client::{EventType, WatchResponse, WatchStream};
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::connection::{Connection, Failure, failed};
use super::pair;
use crate::error::describe;
use crate::state::{Published, Shared, State};
use crate::{Error, Event, EventKind, Index, Object, Options};

/// How long to wait before a lost watch is tried again.
const RETRY: Duration = Duration::from_millis(500);
/// How often old history is let go.
const HOUSEKEEPING: Duration = Duration::from_secs(60);
/// A reading is started over when etcd forgets its revision meanwhile, but not for ever.
const LOAD_TRIES: usize = 10;

/// Reads all objects as they were where history can begin.
pub(super) async fn load<I: Index>(
    connection: &Connection,
    options: &Options,
) -> Result<State<I>, Error> {
    let now = connection.revision().await?;
    let mut from = now.saturating_sub(options.history_events as u64).max(1);
    for _ in 0..LOAD_TRIES {
        match load_at(connection, options, from).await {
            Ok(state) => return Ok(state),
            Err(Failure::Compacted) => from = oldest(connection, from).await?,
            Err(Failure::Other(error)) => return Err(error),
        }
    }
    Err(Error::Timeout { doing: "reading all objects" })
}

async fn load_at<I: Index>(
    connection: &Connection,
    options: &Options,
    revision: u64,
) -> Result<State<I>, Failure> {
    let mut state = State::new(revision, options);
    let mut from = connection.prefix.as_bytes().to_vec();
    loop {
        let page = connection.page(from, revision).await?;
        for pair in page.kvs() {
            let Some((collection, name)) = pair::parse_key(&connection.prefix, pair.key())? else {
                continue;
            };
            let object = pair::object(&options.envelope, collection, name.into(), pair)?;
            state.load(collection, Arc::new(object));
        }
        match page.kvs().last() {
            Some(last) if page.more() => from = [last.key(), &[0]].concat(),
            Some(_) | None => return Ok(state),
        }
    }
}

/// The oldest revision that etcd can still tell; asked for when `revision` is older than that.
async fn oldest(connection: &Connection, revision: u64) -> Result<u64, Error> {
    let mut watch = connection.watch(revision).await?;
    while let Some(message) = message(&mut watch).await? {
        if message.canceled() {
            return Ok(message.compact_revision() as u64);
        }
        if !message.events().is_empty() {
            break;
        }
    }
    Ok(revision)
}

pub(super) struct Feed<I> {
    pub(super) connection: Connection,
    pub(super) state: Arc<Shared<I>>,
    pub(super) options: Options,
    /// Everything before has left our ring, so etcd may forget it.
    pub(super) forgotten: u64,
    /// The first pair under our prefix that could not be read. It stays in the health report.
    pub(super) damage: Arc<OnceLock<Error>>,
}

impl<I: Index> Feed<I> {
    /// Follows etcd for ever.
    pub(super) async fn run(mut self) {
        loop {
            let after = self.state.read().revision();
            let result = match self.follow(after).await {
                Ok(Ended::Compacted) => self.reload().await,
                Err(error) => Err(error),
            };
            if let Err(error) = result {
                let error = describe(&error);
                tracing::warn!(error, "lost etcd, trying again");
                self.state.set_trouble(Some(error));
                sleep(RETRY).await;
            }
        }
    }

    async fn follow(&mut self, after: u64) -> Result<Ended, Error> {
        let mut watch = self.connection.watch(after + 1).await?;
        self.state.set_trouble(self.damage.get().map(|damage| describe(damage)));
        let mut housekeeping = interval(self.options.history.clamp(RETRY, HOUSEKEEPING));
        housekeeping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let message = tokio::select! {
                biased;
                message = message(&mut watch) => message?,
                _ = housekeeping.tick() => {
                    self.keep_house().await?;
                    continue;
                }
            };
            match message {
                None => return Err(Error::EtcdEnded { why: String::new() }),
                Some(message) if message.compact_revision() > 0 => return Ok(Ended::Compacted),
                Some(message) if message.canceled() => {
                    return Err(Error::EtcdEnded { why: message.cancel_reason().to_owned() });
                }
                Some(message) => self.take(&message),
            }
        }
    }

    /// We were away for so long that etcd has forgotten where we were.
    async fn reload(&mut self) -> Result<(), Error> {
        self.state.replace(load(&self.connection, &self.options).await?);
        Ok(())
    }

    fn take(&mut self, message: &WatchResponse) {
        let mut taking = Taking {
            state: &self.state,
            options: &self.options,
            prefix: &self.connection.prefix,
            changed: HashMap::new(),
            events: Vec::with_capacity(message.events().len()),
        };
        let mut revision = 0;
        for event in message.events() {
            revision = event.kv().map_or(revision, |pair| pair.mod_revision() as u64);
            if let Err(error) = taking.take(event) {
                tracing::error!(%error, "ignoring a key that someone else has written");
                self.state.set_trouble(Some(describe(&error)));
                let _ = self.damage.set(error);
            }
        }
        self.state.publish(taking.events);
        self.state.advance(revision);
        self.forget();
    }

    fn forget(&mut self) {
        if let Some(last) = self.state.trim().last() {
            self.forgotten = last.revision;
        }
    }

    async fn keep_house(&mut self) -> Result<(), Error> {
        self.forget();
        if self.forgotten > 0 {
            self.connection.compact(self.forgotten).await?;
            self.forgotten = 0;
        }
        Ok(())
    }
}

/// How a watch ends without an error.
enum Ended {
    /// Its place is no longer known to etcd.
    Compacted,
}

/// A message while it is turned into events.
struct Taking<'a, I> {
    state: &'a Shared<I>,
    options: &'a Options,
    prefix: &'a str,
    changed: HashMap<(String, String), Option<Arc<Object<I>>>>,
    events: Vec<Published<I>>,
}

impl<I: Index> Taking<'_, I> {
    fn take(&mut self, event: &etcd_client::Event) -> Result<(), Error> {
        let Some(pair) = event.kv() else { return Ok(()) };
        let Some((collection, name)) = pair::parse_key(self.prefix, pair.key())? else {
            return Ok(());
        };
        let key = (collection.to_owned(), name.to_owned());
        let previous = match self.changed.get(&key) {
            Some(changed) => changed.clone(),
            None => self.state.read().get(collection, name),
        };
        let envelope = &self.options.envelope;
        let object = match (event.event_type(), &previous) {
            (EventType::Put, _) => {
                let name =
                    previous.as_ref().map_or_else(|| name.into(), |p| p.shared_name().clone());
                pair::object(envelope, collection, name, pair)?
            }
            (EventType::Delete, Some(last)) => {
                last.deleted(envelope, collection, pair.mod_revision() as u64)
            }
            // The deletion of something that was ignored.
            (EventType::Delete, None) => return Ok(()),
        };
        let (kind, revision, object) = (object.kind(), object.revision(), Arc::new(object));
        self.changed.insert(key, (kind != EventKind::Deleted).then(|| object.clone()));
        let event = Event { revision, kind, object, previous };
        self.events.push((collection.into(), Arc::new(event)));
        Ok(())
    }
}

async fn message(watch: &mut WatchStream) -> Result<Option<WatchResponse>, Error> {
    watch.message().await.map_err(|error| failed("watching", error))
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Other(error)
    }
}
