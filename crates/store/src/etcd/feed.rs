//! Keeps the state in memory equal to etcd: loads it once, then follows a watch.
//!
//! It loads an old state, as far back as etcd and the ring allow, and the watch adds the history. So a restarted server has
//! its history at once.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use etcd_client::{EventType, WatchResponse, WatchStream};
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::base::Base;
use super::connection::{Connection, Failure, failed};
use super::pair;
use crate::error::describe;
use crate::state::{Published, Shared, State};
use crate::{Error, Event, EventKind, Index, Object, Options};

/// The pause before a lost watch is retried.
const RETRY: Duration = Duration::from_millis(500);
/// How often old history is dropped.
const HOUSEKEEPING: Duration = Duration::from_secs(60);
/// How often loading starts over because etcd has compacted its revision.
const LOAD_TRIES: usize = 10;

/// Loads all objects at the revision where history can start.
pub(super) async fn load<I: Index>(
    connection: &Connection,
    options: &Options,
) -> Result<State<I>, Error> {
    let now = connection.revision().await?;
    let mut from = now.saturating_sub(options.history_events as u64).max(connection.base.first());
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
            let object =
                pair::object(&options.envelope, collection, name.into(), pair, connection.base)?;
            state.load(collection, Arc::new(object));
        }
        match page.kvs().last() {
            Some(last) if page.more() => from = [last.key(), &[0]].concat(),
            Some(_) | None => return Ok(state),
        }
    }
}

/// The oldest revision that etcd still has, if `revision` is older.
async fn oldest(connection: &Connection, revision: u64) -> Result<u64, Error> {
    let mut watch = connection.watch(revision).await?;
    while let Some(message) = message(&mut watch).await? {
        if message.canceled() {
            return Ok(connection.base.ours(message.compact_revision()));
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
    /// Earlier events were dropped from our ring, so etcd may drop them too.
    pub(super) forgotten: u64,
    /// The error of the first unreadable pair under our prefix. It stays in the health report.
    pub(super) damage: Arc<OnceLock<Error>>,
}

impl<I: Index> Feed<I> {
    /// Follows etcd until it is aborted.
    pub(super) async fn run(mut self) {
        loop {
            let after = self.state.read().revision();
            let result = match self.follow(after).await {
                Ok(Ended::Compacted) => self.reload().await,
                Err(error) => Err(error),
            };
            if let Err(error) = result {
                let error = describe(&error);
                tracing::warn!(error, "lost the connection to etcd; retrying");
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
                Some(message) => self.apply(&message),
            }
        }
    }

    /// Loads everything again, after etcd has compacted the revision that we were at.
    async fn reload(&mut self) -> Result<(), Error> {
        self.state.replace(load(&self.connection, &self.options).await?);
        Ok(())
    }

    fn apply(&mut self, message: &WatchResponse) {
        let base = self.connection.base;
        let mut conversion = Conversion {
            state: &self.state,
            options: &self.options,
            prefix: &self.connection.prefix,
            base,
            changed: HashMap::new(),
            events: Vec::with_capacity(message.events().len()),
        };
        let mut revision = 0;
        for event in message.events() {
            revision = event.kv().map_or(revision, |pair| base.ours(pair.mod_revision()));
            if let Err(error) = conversion.convert(event) {
                tracing::error!(%error, "ignoring a key that landfall did not write");
                self.state.set_trouble(Some(describe(&error)));
                let _ = self.damage.set(error);
            }
        }
        self.state.publish(conversion.events);
        self.state.advance(revision);
        self.drop_old_events();
    }

    fn drop_old_events(&mut self) {
        if let Some(last) = self.state.trim().last() {
            self.forgotten = last.revision;
        }
    }

    async fn keep_house(&mut self) -> Result<(), Error> {
        self.drop_old_events();
        if self.forgotten > 0 {
            self.connection.compact(self.forgotten).await?;
            self.forgotten = 0;
        }
        Ok(())
    }
}

/// Why a watch ended without an error.
enum Ended {
    /// etcd has compacted its revision.
    Compacted,
}

/// Converts a message into events.
struct Conversion<'a, I> {
    state: &'a Shared<I>,
    options: &'a Options,
    prefix: &'a str,
    base: Base,
    changed: HashMap<(String, String), Option<Arc<Object<I>>>>,
    events: Vec<Published<I>>,
}

impl<I: Index> Conversion<'_, I> {
    fn convert(&mut self, event: &etcd_client::Event) -> Result<(), Error> {
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
                pair::object(envelope, collection, name, pair, self.base)?
            }
            (EventType::Delete, Some(last)) => {
                last.deleted(envelope, collection, self.base.ours(pair.mod_revision()))
            }
            // The deletion of an ignored key.
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
