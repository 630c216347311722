//! Restores a snapshot of one store into another one, on the same backend or the other.

use crate::bed::*;
use store::{Backend, Entry, Error, Expect, WriteError, restore};

/// Far greater than the revisions of the first store.
const AFTER: u64 = 1_000_000;
const OTHERS: &str = "others";

/// Objects of two collections, some changed, one deleted and one created again.
async fn fill(store: &Store) {
    for name in ["a", "b", "c", "d"] {
        create(store, name, "1").await;
    }
    put_in(store, OTHERS, "x", Expect::Absent, "5").await.unwrap();
    update(store, "a", "2").await;
    delete(store, "b").await;
    create(store, "b", "3").await;
    delete(store, "d").await;
}

/// As a backup has them: oldest first.
async fn entries(store: &Store) -> Vec<Entry> {
    let mut objects = store.snapshot().await.unwrap().objects;
    objects.sort_by_key(|(_, object)| object.created());
    let entry = |(collection, object): &(_, std::sync::Arc<store::Object<Text>>)| Entry {
        collection: std::sync::Arc::clone(collection),
        name: object.name().to_owned(),
        draft: object.draft(),
    };
    objects.iter().map(entry).collect()
}

async fn check_round_trip(from: &Bed, to: &Bed) {
    let store = from.open().await;
    fill(&store).await;
    let old_revision = store.revision();
    let taken = entries(&store).await;
    restore(to.backend(), AFTER, taken.clone()).await.unwrap();

    let restored = to.open().await;
    assert!(restored.revision() > AFTER, "{}", restored.revision());
    let (_, objects) = restored.list(PODS, "", None);
    assert_eq!(listed(&objects), "a=2 b=3 c=1");
    assert_eq!(listed(&restored.list(OTHERS, "", None).1), "x=5");
    let created = |name: &str| restored.get(PODS, name).unwrap().created();
    assert!(AFTER < created("a") && created("a") < created("c") && created("c") < created("b"));

    // Revisions of the first store refer to nothing here.
    assert!(restored.watch(PODS, old_revision).is_err(), "the watcher has missed something");
    assert!(restored.watch(PODS, AFTER).is_err());
    for old in [0, old_revision, store.get(PODS, "a").unwrap().revision()] {
        for name in ["a", "new"] {
            let refused = put(&restored, name, Expect::Revision(old), "9").await;
            assert!(matches!(refused, Err(WriteError::Conflict { .. })), "{name} at {old}");
        }
    }

    // It works like any store.
    let mut watcher = restored.watch(PODS, restored.revision()).unwrap();
    let before = restored.revision();
    assert!(update(&restored, "a", "4").await > before);
    create(&restored, "e", "7").await;
    delete(&restored, "c").await;
    assert_eq!(described(&watcher.try_next(usize::MAX).unwrap()), "*a=4(2) +e=7 -c=1(1)");
    let restored = to.reopen(restored).await;
    assert_eq!(listed(&restored.list(PODS, "", None).1), "a=4 b=3 e=7");
    restored.close().await.unwrap();
    drop(restored);
    drop(watcher);

    let Err(refused) = restore(to.backend(), 2 * AFTER, taken).await else {
        panic!("restored over a store that holds objects");
    };
    assert!(matches!(refused, Error::Exists { .. } | Error::EtcdNotEmpty { .. }), "{refused}");
    assert_eq!(listed(&to.open().await.list(PODS, "", None).1), "a=4 b=3 e=7");
}

#[tokio::test]
async fn an_embedded_store_is_restored_into_another() {
    check_round_trip(&Bed::embedded(), &Bed::embedded()).await;
}

#[tokio::test]
async fn an_embedded_store_is_restored_into_etcd_and_back() {
    let etcd = Bed::etcd();
    check_round_trip(&Bed::embedded(), &etcd).await;
    let embedded = Bed::embedded();
    let store = etcd.open().await;
    restore(embedded.backend(), 3 * AFTER, entries(&store).await).await.unwrap();
    assert_eq!(listed(&embedded.open().await.list(PODS, "", None).1), "a=4 b=3 e=7");
}

#[tokio::test]
async fn an_unfinished_restore_into_etcd_is_not_opened() {
    let bed = Bed::etcd();
    let Backend::Etcd(options) = bed.backend() else { unreachable!("it is on etcd") };
    let mut client = etcd_client::Client::connect(&options.endpoints, None).await.unwrap();
    client.put("/landfall///restoring", "", None).await.unwrap();
    client.put("/landfall/pods//a", "half", None).await.unwrap();
    let opened = bed.try_open().await.map(drop);
    let again = restore(bed.backend(), AFTER, Vec::new()).await;
    for refused in [opened, again] {
        let said = refused.expect_err("it is half a cluster").to_string();
        assert!(said.contains("etcdctl del --prefix /landfall/"), "{said}");
    }
}

#[tokio::test]
async fn a_restore_into_etcd_that_fails_leaves_nothing() {
    let bed = Bed::etcd();
    let twice = |text: &str| Entry {
        collection: PODS.into(),
        name: "twice".to_owned(),
        draft: draft(text),
    };
    restore(bed.backend(), AFTER, vec![twice("1"), twice("2")]).await.unwrap_err();
    restore(bed.backend(), AFTER, vec![twice("3")]).await.unwrap();
    assert_eq!(listed(&bed.open().await.list(PODS, "", None).1), "twice=3");
}

#[tokio::test]
async fn a_snapshot_during_writes_has_one_revision() {
    for bed in [Bed::embedded(), Bed::etcd()] {
        let store = bed.open().await;
        // Two names that are always written one after the other: a, then b with the same text.
        create(&store, "a", "0").await;
        create(&store, "b", "0").await;
        let writer = {
            let store = store.clone();
            tokio::spawn(async move {
                for number in 1..200 {
                    update(&store, "a", &number.to_string()).await;
                    update(&store, "b", &number.to_string()).await;
                }
            })
        };
        let mut different = 0;
        while !writer.is_finished() {
            let snapshot = store.snapshot().await.unwrap();
            let text = |name: &str| {
                let found = snapshot.objects.iter().find(|(_, object)| object.name() == name);
                shown(&found.unwrap().1).parse::<u64>().unwrap()
            };
            let (a, b) = (text("a"), text("b"));
            assert!(a == b || a == b + 1, "a is {a}, b is {b}");
            assert!(snapshot.objects.iter().all(|(_, o)| o.revision() <= snapshot.revision));
            different += u32::from(a != b);
            tokio::task::yield_now().await;
        }
        writer.await.unwrap();
        assert!(different > 0, "no snapshot was taken between two writes");
    }
}

/// A server that is a moment behind waits for what others wrote before it was asked.
#[tokio::test]
async fn a_snapshot_has_what_another_server_wrote_before() {
    let bed = Bed::etcd();
    let (one, other) = (bed.open().await, bed.open().await);
    for number in 1..=20 {
        create(&one, &number.to_string(), "1").await;
        let snapshot = other.snapshot().await.unwrap();
        assert_eq!(snapshot.objects.len(), number);
    }
}
