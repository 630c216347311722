//! The format of backups, and restores that are refused or fail.

use super::format::{FILES, Flaw, decode};
use super::restore::after;
use super::*;
use crate::object::Index;
use crate::start::{STORE_FILE, StoreChoice, store_options};
use proptest::prelude::*;
use ring::digest::{SHA256, digest};
use std::collections::BTreeMap;
use std::fs;
use std::sync::OnceLock;
use store::{Change, Draft, Expect, Memory, Write};

/// The length of the checksum at the end.
const SUM: usize = 32;

fn draft(namespace: &str, name: &str, data: &str) -> Draft {
    let before =
        "{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\"metadata\":{\"resourceVersion\":\"";
    let namespace = match namespace {
        "" => String::new(),
        namespace => format!("\"namespace\":\"{namespace}\","),
    };
    let after = format!("\",{namespace}\"name\":\"{name}\"}},\"data\":{data}}}");
    Draft { bytes: format!("{before}{after}").into_bytes(), revision_at: before.len() }
}

async fn put(store: &Store, collection: &str, name: &str, draft: Draft) {
    let expect =
        store.get(collection, name).map_or(Expect::Absent, |o| Expect::Revision(o.revision()));
    let (collection, name) = (collection.into(), name.to_owned());
    store.write(Write { collection, name, expect, change: Change::Put(draft) }).await.unwrap();
}

/// The parts of a data directory that a backup contains.
fn keys(dir: &Path) {
    fs::create_dir_all(dir.join("pki")).unwrap();
    for name in FILES {
        fs::write(dir.join(name), format!("content of {name}")).unwrap();
    }
}

async fn made() -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    keys(dir.path());
    let store = Store::open_memory(&Memory::<Index>::default(), store_options());
    put(&store, "configmaps", "default/b", draft("default", "b", "{\"k\":\"v\"}")).await;
    put(&store, "namespaces", "default", draft("", "default", "{}")).await;
    put(&store, "configmaps", "default/a", draft("default", "a", "{\"k\":\"v\"}")).await;
    put(&store, "configmaps", "default/b", draft("default", "b", "{\"k\":\"newer\"}")).await;
    // Not an object of a kind, and useless for another cluster.
    let bytes = b"{\"metadata\":{\"resourceVersion\":\"\"},\"owner\":\"x\"}".to_vec();
    let internal = Draft { bytes, revision_at: 32 };
    put(&store, "internal/nodeports", "30000", internal.clone()).await;
    put(&store, "internal/servers", "192.0.2.1:6443", internal).await;
    // Too deep for a recursive decoder.
    let deep = format!("{}1{}", "[".repeat(3000), "]".repeat(3000));
    put(&store, "configmaps", "default/deep", draft("default", "deep", &deep)).await;
    let mut bytes = Vec::new();
    Backups::new(store, dir.path()).write(&mut bytes).await.unwrap();
    bytes
}

/// One backup for all tests of this file, which only read it.
fn sample() -> &'static [u8] {
    static MADE: OnceLock<Vec<u8>> = OnceLock::new();
    MADE.get_or_init(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(made())
    })
}

fn resealed(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(bytes.len().saturating_sub(SUM));
    let sum = digest(&SHA256, &bytes);
    bytes.extend_from_slice(sum.as_ref());
    bytes
}

#[test]
fn a_decoded_backup_equals_the_encoded_one() {
    let contents = decode(sample()).unwrap();
    assert!(contents.header.revision >= 5);
    let names: Vec<_> = contents.objects.iter().map(|kept| kept.entry.name.as_str()).collect();
    assert_eq!(names, ["default/a", "default/b", "default/deep", "default", "30000"]);
    let b = &contents.objects[1];
    assert!(b.created < contents.objects[0].created, "it was created first, and changed later");
    assert_eq!(b.entry.draft, draft("default", "b", "{\"k\":\"newer\"}"));
    for (name, bytes) in &contents.files {
        assert_eq!(bytes, format!("content of {name}").as_bytes());
    }
}

#[test]
fn every_flipped_byte_and_every_truncation_is_detected() {
    let good = sample();
    for at in 0..good.len() {
        assert!(decode(&good[..at]).is_err(), "cut at {at}");
        let mut bad = good.to_vec();
        bad[at] ^= 0x40;
        assert!(decode(&bad).is_err(), "byte {at} flipped");
    }
}

#[derive(Debug, Clone)]
enum Damage {
    Flip(usize, u8),
    Cut(usize),
    Insert(usize, Vec<u8>),
    Remove(usize, usize),
    Copy { from: usize, to: usize, length: usize },
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = 0..sample().len();
    prop_oneof![
        (at.clone(), 1..=255_u8).prop_map(|(at, mask)| Damage::Flip(at, mask)),
        at.clone().prop_map(Damage::Cut),
        (at.clone(), prop::collection::vec(any::<u8>(), 1..40))
            .prop_map(|(at, bytes)| Damage::Insert(at, bytes)),
        (at.clone(), 1..100_usize).prop_map(|(at, length)| Damage::Remove(at, length)),
        (at.clone(), at, 1..100_usize).prop_map(|(from, to, length)| Damage::Copy {
            from,
            to,
            length
        }),
    ]
}

fn damaged(damages: &[Damage]) -> Vec<u8> {
    let mut bytes = sample().to_vec();
    for damage in damages {
        let end = |at: usize, length: usize| (at + length).min(bytes.len());
        match damage {
            Damage::Flip(at, mask) => {
                if let Some(byte) = bytes.get_mut(*at) {
                    *byte ^= mask;
                }
            }
            Damage::Cut(at) => bytes.truncate(*at),
            Damage::Insert(at, more) => {
                let at = end(*at, 0);
                bytes.splice(at..at, more.iter().copied());
            }
            Damage::Remove(at, length) => {
                let (at, end) = (end(*at, 0), end(*at, *length));
                bytes.drain(at..end);
            }
            Damage::Copy { from, to, length } => {
                let piece = bytes[end(*from, 0)..end(*from, *length)].to_vec();
                let to = end(*to, 0);
                bytes.splice(to..to, piece);
            }
        }
    }
    bytes
}

proptest! {
    #[test]
    fn a_damaged_backup_is_refused(damages in prop::collection::vec(damage(), 1..4)) {
        let bad = damaged(&damages);
        prop_assert!(bad == sample() || decode(&bad).is_err());
    }

    /// A file with a valid checksum can contain anything: decoding must not panic, and accepted contents have the files of a
    /// backup and only objects under their own names.
    #[test]
    fn contents_with_a_valid_checksum_are_still_checked(damages in prop::collection::vec(damage(), 1..4)) {
        if let Ok(contents) = decode(&resealed(damaged(&damages))) {
            prop_assert!(contents.files.iter().map(|(name, _)| name.as_str()).eq(FILES));
            prop_assert!(contents.objects() <= 5);
        }
    }
}

#[test]
fn each_error_says_what_to_do() {
    let good = sample();
    let replaced = |from: &str, to: &str| {
        assert_eq!(from.len(), to.len());
        let at = good.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
        let mut bad = good.to_vec();
        bad[at..at + to.len()].copy_from_slice(to.as_bytes());
        resealed(bad)
    };
    let mut newer = good.to_vec();
    newer[16] = 2;
    for (bad, message) in [
        (b"a shopping list".to_vec(), "not a landfall backup"),
        (Vec::new(), "not a landfall backup"),
        (newer, "made by a newer landfall (format 2; this one reads 1)"),
        (good[..good.len() / 2].to_vec(), "damaged or cut short"),
        ([good, b"\n"].concat(), "damaged or cut short"),
        (resealed([good, b"more"].concat()), "something follows its end"),
        (replaced("\"name\":\"a\"", "\"name\":\"z\""), "has another name inside"),
        (replaced("\"name\":\"a\"", "\"name\":\"a\'"), "cannot be read"),
        (replaced("resourceVersion\":\"\"", "resourceVersion\":1 "), "cannot be read"),
        (replaced("\"apiVersion\"", "\"apiversion\""), "is no object of the API"),
        (replaced("pki/sa.key", "../sa.key."), "other files than a backup has"),
    ] {
        let flaw = decode(&bad).expect_err(message).to_string();
        assert!(flaw.contains(message), "{flaw:?} instead of {message:?}");
    }
    assert_eq!(decode(&good[..20]), Err(Flaw::Checksum));
}

#[test]
fn a_duplicate_or_missing_object_is_detected() {
    let good = sample();
    let contents = decode(good).unwrap();
    let name = &b"default/a"[..];
    // A piece is its kind, its length, and created, revision_at, collection and name before the bytes.
    let at = good.windows(name.len()).position(|window| window == name).unwrap();
    let from = at - 2 - "configmaps".len() - 2 - 4 - 8 - 5;
    let length = u32::from_le_bytes(good[from + 1..from + 5].try_into().unwrap()) as usize;
    let piece = good[from..from + 5 + length].to_vec();
    assert_eq!(piece[0], b'O');
    let missing = [&good[..from], &good[from + piece.len()..]].concat();
    let counts = |objects: u64, mut bytes: Vec<u8>| {
        let at = bytes.len() - SUM - 8;
        bytes[at..at + 8].copy_from_slice(&objects.to_le_bytes());
        resealed(bytes)
    };
    let flaw = |bytes: &[u8]| decode(bytes).expect_err("it is flawed").to_string();
    assert!(flaw(&resealed(missing.clone())).contains("are missing"));
    let less = decode(&counts(4, missing)).unwrap();
    assert_eq!(less.objects() + 1, contents.objects());
    let twice = [&good[..from], &piece[..], &good[from..]].concat();
    assert!(flaw(&counts(6, twice)).contains("\"default/a\" is in it twice"));
}

/// Everything below a directory, by name.
fn tree(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        match path.is_dir() {
            true => {
                let inner = tree(&path).into_iter();
                found.extend(inner.map(|(inner, bytes)| (format!("{name}/{inner}"), bytes)));
                found.insert(name, Vec::new());
            }
            false => drop(found.insert(name, fs::read(path).unwrap())),
        }
    }
    found
}

#[tokio::test]
async fn a_restore_creates_a_data_directory_that_a_store_can_open() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("data");
    let restored =
        restore(decode(&made().await).unwrap(), &dir, &StoreChoice::Embedded).await.unwrap();
    assert_eq!(restored.objects, 5);
    let there = tree(&dir);
    let names: Vec<&str> = there.keys().map(String::as_str).collect();
    let wanted = ["admin.token", "pki", "pki/ca.crt", "pki/ca.key", "pki/sa.key", STORE_FILE];
    assert_eq!(names, wanted);
    let backend = crate::start::backend(&StoreChoice::Embedded, &dir);
    let store = Store::open(backend, store_options()).await.unwrap();
    assert!(store.revision() > restored.after);
    assert_eq!(store.list("configmaps", "", None).1.len(), 3);
    let created = |name: &str| store.get("configmaps", name).unwrap().created();
    assert!(created("default/b") < created("default/a"), "in the order in which they were created");
    assert_eq!(store.get("namespaces", "default").unwrap().draft(), draft("", "default", "{}"));

    // Nothing is restored over it.
    store.close().await.unwrap();
    let before = tree(&dir);
    let again = restore(decode(&made().await).unwrap(), &dir, &StoreChoice::Embedded).await;
    let message = again.unwrap_err().to_string();
    assert!(message.contains("is not empty (admin.token is there)"), "{message}");
    assert_eq!(tree(&dir), before);
}

#[tokio::test]
async fn a_failed_restore_leaves_nothing_and_a_server_does_not_start_on_an_interrupted_one() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("data");
    // No etcd listens there.
    let nowhere = StoreChoice::Etcd(vec!["http://127.0.0.1:1".to_owned()]);
    restore(decode(&made().await).unwrap(), &dir, &nowhere).await.unwrap_err();
    assert!(!dir.exists());

    fs::create_dir_all(dir.join("restoring")).unwrap();
    assert!(unfinished(&dir));
    let again = restore(decode(&made().await).unwrap(), &dir, &StoreChoice::Embedded).await;
    let message = again.unwrap_err().to_string();
    assert!(message.contains("restoring is there"), "{message}");
    let config = crate::Config {
        data_dir: dir.clone(),
        listen: "127.0.0.1:0".parse().unwrap(),
        store: StoreChoice::Embedded,
        service_ranges: Default::default(),
        audit_log: None,
        controllers: false,
    };
    let Err(refused) = crate::start(config).await else { panic!("half a cluster started") };
    assert!(refused.to_string().contains("did not finish"), "{refused}");
    assert_eq!(tree(&dir).keys().collect::<Vec<_>>(), ["restoring"]);
}

#[test]
fn revisions_after_a_restore_are_greater_than_all_assigned_before() {
    let day = jiff::SignedDuration::from_hours(24);
    let now: jiff::Timestamp = "2026-11-17T12:00:00Z".parse().unwrap();
    let first = after(5_000_000, now);
    // Restored again from the same backup after a day of writes, or from a later one.
    let day_of_writes = first + 30_000 * 24 * 3600;
    assert!(after(5_000_000, now + day) > day_of_writes);
    assert!(after(first + 7, now + day) > day_of_writes);
    assert!(after(day_of_writes, now + day) > day_of_writes);
    // A clock that was never set.
    assert!(after(5_000_000, jiff::Timestamp::UNIX_EPOCH) > 5_000_000 + 1000);
    // JavaScript's numbers represent them exactly for the next centuries.
    assert!(after(0, "2200-01-01T00:00:00Z".parse().unwrap()) < 1 << 53);
}
