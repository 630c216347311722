//! Signs of life of the servers that share a store: one entry each, written every few seconds.
//!
//! Clocks of different machines are not compared, except roughly for a sign that is seen for the first
//! time: a server is there while its sign keeps changing. A sign outlives its server for a while, so that
//! it is known where servers were (`signing`), and is not forgotten by the clock alone.

use crate::object::{Store, Stored as _};
use api::value::ValueExt as _;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use store::{Change, Draft, Expect, Write, WriteError};
use tokio::time::Instant;

/// Not an API resource, as upstream's `masterleases` are none.
const COLLECTION: &str = "internal/servers";

pub(crate) const EVERY: Duration = Duration::from_secs(5);
/// Upstream: `DefaultEndpointReconcilerTTL`.
const FRESH: Duration = Duration::from_secs(15);
/// How old a sign may seem that is seen for the first time; clocks differ.
const RECENT: Duration = Duration::from_secs(60);
const REMEMBERED: Duration = Duration::from_secs(30 * 24 * 3600);
/// And for how long this server must have seen that it does not change: a clock may be wrong by months.
const STILL: Duration = Duration::from_secs(3600);

/// As it is stored.
#[derive(Debug, Clone)]
pub(crate) struct Sign {
    address: SocketAddr,
    revision: u64,
    /// By the clock of its server.
    at: Timestamp,
    /// It said goodbye.
    gone: bool,
    /// Names and addresses that clients know its server by. Older servers do not tell theirs.
    names: Vec<String>,
}

impl Sign {
    /// Whether clients know its server by this name or address, or knew it so not long ago.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        let is_at = |address: IpAddr| address == self.address.ip();
        name.parse().is_ok_and(is_at) || self.names.iter().any(|own| own == name)
    }
}

pub(crate) fn read(store: &Store) -> Vec<Sign> {
    let (_, stored) = store.list(COLLECTION, "", None);
    let signs = stored.iter().filter_map(|stored| {
        let sign = stored.value();
        let (address, at) = (stored.name().parse().ok()?, sign.text(&["at"]).parse().ok()?);
        let names = sign["names"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let names = names.map(str::to_owned).collect();
        Some(Sign { address, revision: stored.revision(), at, gone: sign["gone"] == true, names })
    });
    signs.collect()
}

pub(crate) async fn give(
    store: &Store,
    address: SocketAddr,
    names: &BTreeSet<String>,
    gone: bool,
) -> Result<(), String> {
    let name = address.to_string();
    let before = store.get(COLLECTION, &name);
    let expect = before.map_or(Expect::Absent, |before| Expect::Revision(before.revision()));
    let mut bytes = b"{\"metadata\":{\"resourceVersion\":\"".to_vec();
    let revision_at = bytes.len();
    let rest = json!({"at": clock::now_rfc3339(), "gone": gone, "names": names}).to_string();
    bytes.extend_from_slice(format!("\"}},{}", &rest[1..]).as_bytes());
    write(store, name, expect, Change::Put(Draft { bytes, revision_at })).await
}

/// So that servers that never come back do not fill the store.
pub(crate) async fn forget(store: &Store, old: Vec<Sign>) {
    for sign in old {
        let expect = Expect::Revision(sign.revision);
        if let Err(error) = write(store, sign.address.to_string(), expect, Change::Delete).await {
            tracing::warn!(error, "an old sign of life stays for now");
        }
    }
}

async fn write(store: &Store, name: String, expect: Expect, change: Change) -> Result<(), String> {
    match store.write(Write { collection: COLLECTION.into(), name, expect, change }).await {
        // Whoever else wrote it: it has changed.
        Ok(_) | Err(WriteError::Conflict { .. }) => Ok(()),
        Err(WriteError::Backend(error)) => Err(error.to_string()),
    }
}

fn age(sign: &Sign, now: Timestamp) -> Duration {
    now.duration_since(sign.at).unsigned_abs()
}

/// What one server has seen of the others' signs.
#[derive(Default)]
pub(crate) struct Signs(BTreeMap<SocketAddr, Seen>);

struct Seen {
    revision: u64,
    /// Since when it is that revision.
    since: Instant,
    /// When it was seen to change, while that is not too long ago.
    changed: Option<Instant>,
}

impl Signs {
    /// The servers that are there, by what is stored now.
    pub(crate) fn fresh(
        &mut self,
        stored: &[Sign],
        now: Instant,
        time: Timestamp,
    ) -> BTreeSet<SocketAddr> {
        self.0.retain(|address, _| stored.iter().any(|sign| sign.address == *address));
        let mut fresh = BTreeSet::new();
        for sign in stored {
            let seen = self.0.entry(sign.address).or_insert_with(|| Seen {
                revision: sign.revision,
                since: now,
                changed: (age(sign, time) <= RECENT).then_some(now),
            });
            if seen.revision != sign.revision {
                *seen = Seen { revision: sign.revision, since: now, changed: Some(now) };
            }
            seen.changed = seen.changed.filter(|at| !sign.gone && now.duration_since(*at) < FRESH);
            if seen.changed.is_some() {
                fresh.insert(sign.address);
            }
        }
        fresh
    }

    /// Those that nobody needs any more.
    pub(crate) fn old(&self, stored: &[Sign], now: Instant, time: Timestamp) -> Vec<Sign> {
        let still = |sign: &Sign| {
            self.0.get(&sign.address).is_some_and(|seen| {
                seen.revision == sign.revision && now.duration_since(seen.since) >= STILL
            })
        };
        let old = stored.iter().filter(|sign| age(sign, time) > REMEMBERED && still(sign));
        old.cloned().collect()
    }

    /// For whoever was there, the time begins anew.
    pub(crate) fn excuse(&mut self, now: Instant) {
        for seen in self.0.values_mut() {
            seen.changed = seen.changed.map(|_| now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sign(last: u8, revision: u64, age: i64, gone: bool) -> Sign {
        let at = Timestamp::from_second(1_800_000_000 - age).unwrap();
        Sign { address: (([192, 0, 2, last]), 6443).into(), revision, at, gone, names: Vec::new() }
    }

    fn stamp() -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap()
    }

    /// Who is fresh at that second, by the last number of the address.
    fn fresh(signs: &mut Signs, start: Instant, second: u64, stored: &[Sign]) -> Vec<u8> {
        let there = signs.fresh(stored, start + Duration::from_secs(second), stamp());
        there.iter().map(|address| last(address.ip())).collect()
    }

    fn last(ip: IpAddr) -> u8 {
        ip.to_string().rsplit('.').next().unwrap().parse().unwrap()
    }

    /// T-CTRL-63
    #[test]
    fn t_ctrl_63_a_server_is_there_while_its_sign_changes() {
        let (start, mut signs) = (Instant::now(), Signs::default());
        let mut look = |second, stored: &[Sign]| fresh(&mut signs, start, second, stored);
        assert_eq!(look(0, &[sign(1, 10, 3, false), sign(2, 11, 5, false)]), [1, 2]);
        assert_eq!(look(10, &[sign(1, 20, 0, false), sign(2, 11, 5, false)]), [1, 2]);
        assert_eq!(look(15, &[sign(1, 30, 0, false), sign(2, 11, 5, false)]), [1]);
        assert_eq!(look(20, &[sign(1, 30, 0, false), sign(2, 31, 0, false)]), [1, 2], "it is back");
        assert_eq!(
            look(21, &[sign(1, 30, 0, false), sign(2, 32, 0, true)]),
            [1],
            "it said goodbye"
        );
        assert_eq!(look(22, &[sign(1, 30, 0, false)]), [1]);
        assert_eq!(look(45, &[sign(1, 30, 0, false)]), [0_u8; 0]);
    }

    /// T-CTRL-63
    #[test]
    fn t_ctrl_63_an_old_sign_is_believed_only_once_it_changes_and_clocks_may_differ() {
        let (start, mut signs) = (Instant::now(), Signs::default());
        let mut look = |second, stored: &[Sign]| fresh(&mut signs, start, second, stored);
        assert_eq!(look(0, &[sign(1, 10, 3600, false), sign(2, 11, -50, false)]), [2]);
        assert_eq!(look(5, &[sign(1, 12, 3600, false), sign(2, 13, -50, false)]), [1, 2]);
    }

    /// T-CTRL-63
    #[test]
    fn t_ctrl_63_while_this_server_cannot_sign_others_are_excused_but_the_dead_stay_dead() {
        let (start, mut signs) = (Instant::now(), Signs::default());
        let stored = [sign(1, 10, 0, false), sign(2, 11, 3600, false)];
        assert_eq!(fresh(&mut signs, start, 0, &stored), [1]);
        signs.excuse(start + Duration::from_secs(40));
        assert_eq!(fresh(&mut signs, start, 50, &stored), [1]);
        assert_eq!(fresh(&mut signs, start, 56, &stored), [0_u8; 0]);
        signs.excuse(start + Duration::from_secs(57));
        assert_eq!(fresh(&mut signs, start, 58, &stored), [0_u8; 0]);
    }

    #[tokio::test]
    async fn a_sign_says_what_its_server_is_called_and_an_old_one_where_it_is() {
        let store = Store::open_memory(&store::Memory::default(), crate::run::store_options());
        let names = BTreeSet::from(["server-2".to_owned(), "203.0.113.2".to_owned()]);
        give(&store, "192.0.2.2:6443".parse().unwrap(), &names, false).await.unwrap();
        let start = b"{\"metadata\":{\"resourceVersion\":\"";
        let rest = b"\"},\"at\":\"2026-01-02T03:04:05Z\",\"gone\":false}";
        let draft = Draft { bytes: [&start[..], rest].concat(), revision_at: start.len() };
        let put = Change::Put(draft);
        write(&store, "192.0.2.3:6443".into(), Expect::Absent, put).await.unwrap();
        let signs = read(&store);
        for (name, known) in [
            ("server-2", true),
            ("203.0.113.2", true),
            ("192.0.2.2", true),
            ("192.0.2.3", true),
            ("server-3", false),
            ("192.0.2.4", false),
        ] {
            assert_eq!(signs.iter().any(|sign| sign.is_called(name)), known, "{name}");
        }
    }

    /// The clock of this server, or of the others, may be wrong by years: who signs is not forgotten.
    #[test]
    fn a_sign_is_forgotten_when_it_is_old_and_was_seen_not_to_change_for_an_hour() {
        const DAY: i64 = 24 * 3600;
        let (start, mut signs) = (Instant::now(), Signs::default());
        let mut look = |second: u64, stored: &[Sign]| {
            let (now, time) = (start + Duration::from_secs(second), stamp());
            signs.fresh(stored, now, time);
            let old = signs.old(stored, now, time);
            old.iter().map(|sign| last(sign.address.ip())).collect::<Vec<_>>()
        };
        let stored = |revision| {
            [
                sign(1, 10, 31 * DAY, true),
                sign(2, 11, 29 * DAY, true),
                sign(3, revision, 400 * DAY, false),
                sign(4, revision + 1, -400 * DAY, false),
            ]
        };
        assert_eq!(look(0, &stored(12)), [0_u8; 0], "just seen");
        for second in (5..3600).step_by(5) {
            assert_eq!(look(second, &stored(12 + second)), [0_u8; 0], "{second}");
        }
        assert_eq!(look(3600, &stored(3612)), [1]);
    }
}
