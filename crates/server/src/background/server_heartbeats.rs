//! Heartbeats of the servers that share an etcd: one entry per server, written every few seconds.
//!
//! A server is alive while its entry keeps changing. Clocks of different machines are not compared, except roughly
//! for an entry that is seen for the first time. Entries outlive their server for a while, because
//! `certificate_requests` needs to know the names of former servers; they are not deleted by the clock alone.

use crate::object::{Store, Stored as _};
use api::value::ValueExt as _;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use store::{Change, Draft, Expect, Write, WriteError};
use tokio::time::Instant;

/// Not an API resource; neither are upstream's `masterleases`.
pub(crate) const COLLECTION: &str = "internal/servers";

pub(crate) const INTERVAL: Duration = Duration::from_secs(5);
/// Upstream: `DefaultEndpointReconcilerTTL`.
const ALIVE_FOR: Duration = Duration::from_secs(15);
/// How old an entry may seem when it is seen for the first time; clocks differ.
const FIRST_AGE_MAX: Duration = Duration::from_secs(60);
/// An entry is deleted when it is older than this by the clock…
const KEPT_FOR: Duration = Duration::from_secs(30 * 24 * 3600);
/// …and this server has seen no change for this long: a clock may be wrong by months.
const UNCHANGED_FOR: Duration = Duration::from_secs(3600);

/// A stored entry.
#[derive(Debug, Clone)]
pub(crate) struct Heartbeat {
    address: SocketAddr,
    revision: u64,
    /// When it was written, by the clock of its server.
    at: Timestamp,
    /// The server has stopped in an orderly way.
    stopped: bool,
    /// Names and addresses by which clients reach the server. Older versions do not write them.
    names: Vec<String>,
}

impl Heartbeat {
    /// Whether clients reach the server by this name or address, or did so recently.
    pub(crate) fn has_name(&self, name: &str) -> bool {
        let is_at = |address: IpAddr| address == self.address.ip();
        name.parse().is_ok_and(is_at) || self.names.iter().any(|own| own == name)
    }
}

pub(crate) fn read(store: &Store) -> Vec<Heartbeat> {
    let (_, stored) = store.list(COLLECTION, "", None);
    let heartbeats = stored.iter().filter_map(|stored| {
        let heartbeat = stored.value();
        let (address, at) = (stored.name().parse().ok()?, heartbeat.text(&["at"]).parse().ok()?);
        let names = heartbeat["names"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let names = names.map(str::to_owned).collect();
        Some(Heartbeat {
            address,
            revision: stored.revision(),
            at,
            stopped: heartbeat["gone"] == true,
            names,
        })
    });
    heartbeats.collect()
}

/// Writes this server's entry.
pub(crate) async fn send(
    store: &Store,
    address: SocketAddr,
    names: &BTreeSet<String>,
    stopped: bool,
) -> Result<(), String> {
    let name = address.to_string();
    let before = store.get(COLLECTION, &name);
    let expect = before.map_or(Expect::Absent, |before| Expect::Revision(before.revision()));
    let mut bytes = b"{\"metadata\":{\"resourceVersion\":\"".to_vec();
    let revision_at = bytes.len();
    let rest = json!({"at": clock::now_rfc3339(), "gone": stopped, "names": names}).to_string();
    bytes.extend_from_slice(format!("\"}},{}", &rest[1..]).as_bytes());
    write(store, name, expect, Change::Put(Draft { bytes, revision_at })).await
}

/// Deletes entries of servers that have not come back.
pub(crate) async fn delete(store: &Store, old: Vec<Heartbeat>) {
    for heartbeat in old {
        let expect = Expect::Revision(heartbeat.revision);
        if let Err(error) =
            write(store, heartbeat.address.to_string(), expect, Change::Delete).await
        {
            tracing::warn!(error, "deleting an old server heartbeat failed");
        }
    }
}

async fn write(store: &Store, name: String, expect: Expect, change: Change) -> Result<(), String> {
    match store.write(Write { collection: COLLECTION.into(), name, expect, change }).await {
        // After a conflict the entry has changed too, which is all that matters.
        Ok(_) | Err(WriteError::Conflict { .. }) => Ok(()),
        Err(WriteError::Backend(error)) => Err(error.to_string()),
    }
}

fn age(heartbeat: &Heartbeat, now: Timestamp) -> Duration {
    now.duration_since(heartbeat.at).unsigned_abs()
}

/// What this server has observed of the others' entries.
#[derive(Default)]
pub(crate) struct Heartbeats(BTreeMap<SocketAddr, Observed>);

struct Observed {
    revision: u64,
    /// When this revision was seen first.
    since: Instant,
    /// When the entry changed last; none if that is too long ago for the server to be alive.
    changed: Option<Instant>,
}

impl Heartbeats {
    /// The servers that are alive, by the entries that are stored now.
    pub(crate) fn alive(
        &mut self,
        stored: &[Heartbeat],
        now: Instant,
        time: Timestamp,
    ) -> BTreeSet<SocketAddr> {
        self.0.retain(|address, _| stored.iter().any(|heartbeat| heartbeat.address == *address));
        let mut alive = BTreeSet::new();
        for heartbeat in stored {
            let observed = self.0.entry(heartbeat.address).or_insert_with(|| Observed {
                revision: heartbeat.revision,
                since: now,
                changed: (age(heartbeat, time) <= FIRST_AGE_MAX).then_some(now),
            });
            if observed.revision != heartbeat.revision {
                *observed =
                    Observed { revision: heartbeat.revision, since: now, changed: Some(now) };
            }
            observed.changed = observed
                .changed
                .filter(|at| !heartbeat.stopped && now.duration_since(*at) < ALIVE_FOR);
            if observed.changed.is_some() {
                alive.insert(heartbeat.address);
            }
        }
        alive
    }

    /// The entries to delete.
    pub(crate) fn expired(
        &self,
        stored: &[Heartbeat],
        now: Instant,
        time: Timestamp,
    ) -> Vec<Heartbeat> {
        let unchanged = |heartbeat: &Heartbeat| {
            self.0.get(&heartbeat.address).is_some_and(|observed| {
                observed.revision == heartbeat.revision
                    && now.duration_since(observed.since) >= UNCHANGED_FOR
            })
        };
        let expired = stored
            .iter()
            .filter(|heartbeat| age(heartbeat, time) > KEPT_FOR && unchanged(heartbeat));
        expired.cloned().collect()
    }

    /// Counts all servers that were alive as alive for another period: this server itself could not write.
    pub(crate) fn extend(&mut self, now: Instant) {
        for observed in self.0.values_mut() {
            observed.changed = observed.changed.map(|_| now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heartbeat(last: u8, revision: u64, age: i64, stopped: bool) -> Heartbeat {
        let at = Timestamp::from_second(1_800_000_000 - age).unwrap();
        Heartbeat {
            address: (([192, 0, 2, last]), 6443).into(),
            revision,
            at,
            stopped,
            names: Vec::new(),
        }
    }

    fn stamp() -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap()
    }

    /// Which servers are alive at that second, by the last number of the address.
    fn alive(
        heartbeats: &mut Heartbeats,
        start: Instant,
        second: u64,
        stored: &[Heartbeat],
    ) -> Vec<u8> {
        let alive = heartbeats.alive(stored, start + Duration::from_secs(second), stamp());
        alive.iter().map(|address| last(address.ip())).collect()
    }

    fn last(ip: IpAddr) -> u8 {
        ip.to_string().rsplit('.').next().unwrap().parse().unwrap()
    }

    #[test]
    fn t_ctrl_63_a_server_is_alive_while_its_heartbeat_changes() {
        let (start, mut heartbeats) = (Instant::now(), Heartbeats::default());
        let mut look = |second, stored: &[Heartbeat]| alive(&mut heartbeats, start, second, stored);
        assert_eq!(look(0, &[heartbeat(1, 10, 3, false), heartbeat(2, 11, 5, false)]), [1, 2]);
        assert_eq!(look(10, &[heartbeat(1, 20, 0, false), heartbeat(2, 11, 5, false)]), [1, 2]);
        assert_eq!(look(15, &[heartbeat(1, 30, 0, false), heartbeat(2, 11, 5, false)]), [1]);
        assert_eq!(
            look(20, &[heartbeat(1, 30, 0, false), heartbeat(2, 31, 0, false)]),
            [1, 2],
            "it is back"
        );
        assert_eq!(
            look(21, &[heartbeat(1, 30, 0, false), heartbeat(2, 32, 0, true)]),
            [1],
            "it has stopped"
        );
        assert_eq!(look(22, &[heartbeat(1, 30, 0, false)]), [1]);
        assert_eq!(look(45, &[heartbeat(1, 30, 0, false)]), [0_u8; 0]);
    }

    #[test]
    fn t_ctrl_63_an_old_heartbeat_counts_only_once_it_changes_and_clocks_may_differ() {
        let (start, mut heartbeats) = (Instant::now(), Heartbeats::default());
        let mut look = |second, stored: &[Heartbeat]| alive(&mut heartbeats, start, second, stored);
        assert_eq!(look(0, &[heartbeat(1, 10, 3600, false), heartbeat(2, 11, -50, false)]), [2]);
        assert_eq!(look(5, &[heartbeat(1, 12, 3600, false), heartbeat(2, 13, -50, false)]), [1, 2]);
    }

    #[test]
    fn t_ctrl_63_while_this_server_cannot_write_living_servers_stay_alive_and_dead_ones_dead() {
        let (start, mut heartbeats) = (Instant::now(), Heartbeats::default());
        let stored = [heartbeat(1, 10, 0, false), heartbeat(2, 11, 3600, false)];
        assert_eq!(alive(&mut heartbeats, start, 0, &stored), [1]);
        heartbeats.extend(start + Duration::from_secs(40));
        assert_eq!(alive(&mut heartbeats, start, 50, &stored), [1]);
        assert_eq!(alive(&mut heartbeats, start, 56, &stored), [0_u8; 0]);
        heartbeats.extend(start + Duration::from_secs(57));
        assert_eq!(alive(&mut heartbeats, start, 58, &stored), [0_u8; 0]);
    }

    #[tokio::test]
    async fn a_heartbeat_has_the_names_of_its_server_and_an_old_format_only_its_address() {
        let store = Store::open_memory(&store::Memory::default(), crate::start::store_options());
        let names = BTreeSet::from(["server-2".to_owned(), "203.0.113.2".to_owned()]);
        send(&store, "192.0.2.2:6443".parse().unwrap(), &names, false).await.unwrap();
        let start = b"{\"metadata\":{\"resourceVersion\":\"";
        let rest = b"\"},\"at\":\"2026-01-02T03:04:05Z\",\"gone\":false}";
        let draft = Draft { bytes: [&start[..], rest].concat(), revision_at: start.len() };
        let put = Change::Put(draft);
        write(&store, "192.0.2.3:6443".into(), Expect::Absent, put).await.unwrap();
        let heartbeats = read(&store);
        for (name, known) in [
            ("server-2", true),
            ("203.0.113.2", true),
            ("192.0.2.2", true),
            ("192.0.2.3", true),
            ("server-3", false),
            ("192.0.2.4", false),
        ] {
            assert_eq!(
                heartbeats.iter().any(|heartbeat| heartbeat.has_name(name)),
                known,
                "{name}"
            );
        }
    }

    /// The clock of this server, or of the others, may be wrong by years: entries that change are kept.
    #[test]
    fn a_heartbeat_is_deleted_when_it_is_old_and_has_not_changed_for_an_hour() {
        const DAY: i64 = 24 * 3600;
        let (start, mut heartbeats) = (Instant::now(), Heartbeats::default());
        let mut look = |second: u64, stored: &[Heartbeat]| {
            let (now, time) = (start + Duration::from_secs(second), stamp());
            heartbeats.alive(stored, now, time);
            let expired = heartbeats.expired(stored, now, time);
            expired.iter().map(|heartbeat| last(heartbeat.address.ip())).collect::<Vec<_>>()
        };
        let stored = |revision| {
            [
                heartbeat(1, 10, 31 * DAY, true),
                heartbeat(2, 11, 29 * DAY, true),
                heartbeat(3, revision, 400 * DAY, false),
                heartbeat(4, revision + 1, -400 * DAY, false),
            ]
        };
        assert_eq!(look(0, &stored(12)), [0_u8; 0], "just seen");
        for second in (5..3600).step_by(5) {
            assert_eq!(look(second, &stored(12 + second)), [0_u8; 0], "{second}");
        }
        assert_eq!(look(3600, &stored(3612)), [1]);
    }
}
