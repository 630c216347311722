//! Tests that run on every backend.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::bed::*;
use store::{Compacted, Expect, WriteError};

/// One test on both backends.
macro_rules! on_both {
    ($($(#[$note:meta])* async fn $name:ident($bed:ident: &mut Bed) $body:block)*) => {
        mod embedded {
            $($(#[$note])* #[tokio::test] async fn $name() {
                super::soon(super::$name(&mut super::Bed::embedded())).await;
            })*
        }
        mod etcd {
            $($(#[$note])* #[tokio::test] async fn $name() {
                super::soon(super::$name(&mut super::Bed::etcd())).await;
            })*
        }
        $(async fn $name($bed: &mut Bed) $body)*
    };
}

on_both! {
    async fn objects_are_listed_in_order_of_name(bed: &mut Bed) {
        let store = bed.open().await;
        let before = store.revision();
        let first = create(&store, "b/1", "one").await;
        assert!(first > 1 && first > before);
        create(&store, "a/1", "two").await;
        create(&store, "b/2", "three").await;
        let last = create(&store, "b-/1", "four").await;
        put_in(&store, "apps/deployments", "b/1", Expect::Absent, "other").await.unwrap();

        let (revision, all) = store.list(PODS, "", None);
        assert_eq!(listed(&all), "a/1=two b-/1=four b/1=one b/2=three");
        assert!(revision >= last);
        assert_eq!(listed(&store.list(PODS, "b/", None).1), "b/1=one b/2=three");
        assert_eq!(listed(&store.list(PODS, "b/", Some("b/1")).1), "b/2=three");
        assert_eq!(listed(&store.list(PODS, "b/", Some("a")).1), "b/1=one b/2=three");
        assert_eq!(listed(&store.list(PODS, "b/", Some("c")).1), "");
        assert_eq!(listed(&store.list("nothing", "", None).1), "");
        let counts: BTreeMap<_, _> =
            store.counts().into_iter().map(|(name, count)| (name.to_string(), count)).collect();
        assert_eq!((counts[PODS], counts["apps/deployments"]), (4, 1));
        assert_eq!(store.get(PODS, "a/1").unwrap().created(), first + 1);
        assert_eq!(store.health(), Ok(()));
    }

    async fn a_write_with_a_failed_precondition_changes_nothing(bed: &mut Bed) {
        let store = bed.open().await;
        let absent = put(&store, "a", Expect::Revision(5), "x").await;
        assert!(matches!(absent, Err(WriteError::Conflict { current: None })));
        let gone = try_delete(&store, "a", Expect::Absent).await;
        assert!(matches!(gone, Err(WriteError::Conflict { current: None })));

        let first = create(&store, "a", "one").await;
        let second = update(&store, "a", "two").await;
        for expect in [Expect::Absent, Expect::Revision(first), Expect::Revision(second + 1)] {
            for refused in [put(&store, "a", expect, "x").await, try_delete(&store, "a", expect).await] {
                let Err(WriteError::Conflict { current: Some(current) }) = refused else {
                    panic!("{refused:?}")
                };
                assert_eq!((shown(&current), current.revision()), ("two".to_owned(), second));
                assert_eq!(current.created(), first);
            }
        }
        assert_eq!(listed(&store.list(PODS, "", None).1), "a=two");
    }

    async fn of_many_writers_with_the_same_precondition_one_succeeds(bed: &mut Bed) {
        let store = bed.open().await;
        let mut revision = create(&store, "a", "start").await;
        for round in 0..5 {
            let mut writers = tokio::task::JoinSet::new();
            for writer in 0..20 {
                let store = store.clone();
                writers.spawn(async move {
                    put(&store, "a", Expect::Revision(revision), &format!("{round}-{writer}")).await
                });
            }
            let results = writers.join_all().await;
            let won: Vec<_> = results.iter().filter_map(|result| result.as_ref().ok()).collect();
            assert_eq!(won.len(), 1);
            for lost in results.iter().filter_map(|result| result.as_ref().err()) {
                let WriteError::Conflict { current: Some(current) } = lost else { panic!() };
                assert_eq!(current.revision(), won[0].revision());
            }
            assert!(won[0].revision() > revision);
            revision = won[0].revision();
        }
    }

    async fn a_deletion_returns_the_last_state_with_the_revision_of_the_deletion(bed: &mut Bed) {
        let store = bed.open().await;
        let created = create(&store, "a", "one").await;
        let mut watcher = store.watch(PODS, created).unwrap();
        let last = delete(&store, "a").await;
        assert_eq!((shown(&last), last.created()), ("one".to_owned(), created));
        assert!(last.revision() > created && store.get(PODS, "a").is_none());
        assert_eq!(described(&watcher.next(10).await.unwrap()), "-a=one(one)");
        let again = create(&store, "a", "two").await;
        assert_eq!(store.get(PODS, "a").unwrap().created(), again);
        assert_eq!(described(&watcher.next(10).await.unwrap()), "+a=two");
    }

    async fn a_list_at_an_older_revision(bed: &mut Bed) {
        let store = bed.open().await;
        let mut then = vec![(create(&store, "n/a", "1").await, "n/a=1")];
        then.push((create(&store, "n/b", "1").await, "n/a=1 n/b=1"));
        then.push((update(&store, "n/a", "2").await, "n/a=2 n/b=1"));
        then.push((delete(&store, "n/b").await.revision(), "n/a=2"));
        then.push((create(&store, "n/b", "3").await, "n/a=2 n/b=3"));
        then.push((delete(&store, "n/a").await.revision(), "n/b=3"));
        then.push((create(&store, "m/a", "4").await, "m/a=4 n/b=3"));
        for (revision, expected) in &then {
            let objects = store.list_at(PODS, "", None, *revision).unwrap();
            assert_eq!(listed(&objects), *expected);
        }
        let tail = store.list_at(PODS, "n/", Some("n/a"), then[2].0).unwrap();
        assert_eq!(listed(&tail), "n/b=1");
        let none = store.list_at(PODS, "x", None, then[2].0).unwrap();
        assert_eq!(listed(&none), "");
    }

    async fn a_watcher_gets_each_event_once_with_the_previous_state(bed: &mut Bed) {
        let store = bed.open().await;
        let start = store.revision();
        let first = create(&store, "a", "1").await;
        put_in(&store, "other", "x", Expect::Absent, "x").await.unwrap();
        update(&store, "a", "2").await;
        let third = create(&store, "b", "1").await;

        let mut watcher = store.watch(PODS, start).unwrap();
        assert_eq!(described(&watcher.next(1).await.unwrap()), "+a=1");
        assert_eq!(watcher.revision(), first);
        assert_eq!(described(&watcher.next(1).await.unwrap()), "*a=2(1)");
        // Another connection resumes from where this one got to.
        let mut watcher = store.watch(PODS, watcher.revision()).unwrap();
        assert_eq!(described(&watcher.next(10).await.unwrap()), "+b=1");
        assert_eq!(described(&watcher.try_next(10).unwrap()), "");
        assert!(watcher.revision() >= third);

        let other = put_in(&store, "other", "y", Expect::Absent, "y").await.unwrap();
        assert!(watcher.revision() >= other.revision(), "a drained watcher follows the store");
        delete(&store, "a").await;
        assert_eq!(described(&watcher.next(10).await.unwrap()), "-a=2(2)");
    }

    async fn a_list_and_its_watcher_are_consistent_during_writes(bed: &mut Bed) {
        let store = bed.open().await;
        let writing = tokio::spawn({
            let store = store.clone();
            async move {
                for round in 0..100 {
                    let name = format!("{}", round % 7);
                    match store.get(PODS, &name) {
                        None => { create(&store, &name, &format!("{round}")).await; }
                        Some(_) if round % 5 == 0 => { delete(&store, &name).await; }
                        Some(_) => { update(&store, &name, &format!("{round}")).await; }
                    }
                }
                create(&store, "end", "end").await
            }
        });
        let mut readers = tokio::task::JoinSet::new();
        for _ in 0..10 {
            let store = store.clone();
            readers.spawn(async move {
                let (mut revision, objects, mut watcher) = store.list_and_watch(PODS, "");
                let mut seen: BTreeMap<String, u64> =
                    objects.iter().map(|o| (o.name().to_owned(), o.revision())).collect();
                while !seen.contains_key("end") {
                    for event in watcher.next(3).await.unwrap() {
                        assert!(event.revision > revision);
                        revision = event.revision;
                        let name = event.object.name().to_owned();
                        let before = event.previous.as_ref().map(|object| object.revision());
                        assert_eq!(seen.remove(&name), before);
                        if event.kind != store::EventKind::Deleted {
                            seen.insert(name, event.revision);
                        }
                    }
                    tokio::task::yield_now().await;
                }
                seen
            });
        }
        writing.await.unwrap();
        let now: BTreeMap<String, u64> = store.list(PODS, "", None).1.iter()
            .map(|object| (object.name().to_owned(), object.revision())).collect();
        for seen in readers.join_all().await {
            assert_eq!(seen, now);
        }
    }

    async fn a_watch_from_the_future_waits(bed: &mut Bed) {
        let store = bed.open().await;
        let revision = create(&store, "a", "1").await;
        let mut watcher = store.watch(PODS, revision + 1).unwrap();
        assert!(watcher.revision() > revision);
        update(&store, "a", "2").await;
        update(&store, "a", "3").await;
        assert_eq!(described(&watcher.next(10).await.unwrap()), "*a=3(2)");
        store.wait_for(revision + 2).await;
    }

    async fn a_watcher_that_falls_behind_the_ring_gets_an_error(bed: &mut Bed) {
        bed.options.history_events = 3;
        let store = bed.open().await;
        let first = create(&store, "a", "1").await;
        let quiet = put_in(&store, "quiet", "x", Expect::Absent, "x").await.unwrap().revision();
        let mut slow = store.watch(PODS, first).unwrap();
        for text in ["2", "3", "4", "5"] {
            update(&store, "a", text).await;
        }
        let (oldest, last) = (first + 2, first + 5);
        let Err(Compacted { oldest: told_oldest }) = slow.next(10).await else { panic!() };
        assert_eq!(told_oldest, oldest);
        assert!(store.watch(PODS, oldest - 1).is_err());
        assert!(store.list_at(PODS, "", None, oldest - 1).is_err());
        assert_eq!(listed(&store.list_at(PODS, "", None, oldest).unwrap()), "a=2");
        let mut watcher = store.watch(PODS, oldest).unwrap();
        assert_eq!(described(&watcher.next(10).await.unwrap()), "*a=3(2) *a=4(3) *a=5(4)");
        assert_eq!(watcher.revision(), last);
        assert!(store.watch("quiet", quiet).is_ok(), "nothing is lost in a quiet collection");
    }

    async fn a_watcher_of_a_partition_sees_objects_enter_and_leave_it_and_no_others(
        bed: &mut Bed
    ) {
        bed.options.history_events = 8;
        let store = bed.open().await;
        create(&store, "a", "early").await;
        create(&store, "b", "there").await;
        let (revision, there, mut watcher) = store.list_and_watch_of(PODS, EARLY, "");
        assert_eq!(listed(&there), "a=early");
        assert_eq!(listed(&store.list_of(PODS, EARLY, "b", None).1), "");
        assert_eq!(listed(&store.list_of(PODS, "nobody's", "", None).1), "");
        update(&store, "b", "then").await;
        update(&store, "b", "first").await;
        update(&store, "a", "nowhere").await;
        update(&store, "a", "never").await;
        delete(&store, "b").await;
        assert_eq!(
            described(&watcher.next(10).await.unwrap()),
            "*b=first(then) *a=nowhere(early) -b=first(first)"
        );
        // Events of other partitions do not shorten the history of this one.
        for number in 0..20 {
            update(&store, "a", &format!("x{number}")).await;
        }
        assert_eq!(described(&watcher.try_next(10).unwrap()), "");
        assert!(watcher.revision() >= revision + 25, "a drained watcher follows the store");
        create(&store, "c", "here").await;
        assert_eq!(described(&watcher.next(10).await.unwrap()), "+c=here");
    }

    async fn a_watcher_that_falls_behind_in_a_partition_gets_an_error(bed: &mut Bed) {
        bed.options.history_events = 3;
        let store = bed.open().await;
        let first = create(&store, "a", "a1").await;
        let mut slow = store.watch_of(PODS, EARLY, first).unwrap();
        for number in 2..6 {
            update(&store, "a", &format!("a{number}")).await;
        }
        assert!(slow.next(10).await.is_err());
        assert!(store.watch_of(PODS, EARLY, first).is_err());
        // These partitions were not watched before, so their history is unknown.
        assert!(store.watch_of(PODS, "new", first).is_err());
        let watcher = store.watch_of(PODS, "new", store.revision()).unwrap();
        drop(watcher);
        assert!(store.watch_of(PODS, "new", first).is_err());
    }

    async fn history_is_bounded_by_its_size(bed: &mut Bed) {
        bed.options.history_bytes = 10_000;
        let store = bed.open().await;
        let first = create(&store, "a", "1").await;
        update(&store, "a", &"x".repeat(9_000)).await;
        update(&store, "a", &"y".repeat(9_000)).await;
        assert!(store.watch(PODS, first).is_err());
    }

    async fn a_restart_keeps_objects_history_and_revisions(bed: &mut Bed) {
        let store = bed.open().await;
        let start = store.revision();
        let created = create(&store, "a", "1").await;
        update(&store, "a", "2").await;
        create(&store, "b", "1").await;
        let last = delete(&store, "b").await.revision();

        let store = bed.reopen(store).await;
        assert!(store.revision() >= last);
        let (_, objects) = store.list(PODS, "", None);
        assert_eq!((listed(&objects), objects[0].created()), ("a=2".to_owned(), created));
        let mut watcher = store.watch(PODS, start).unwrap();
        assert_eq!(described(&watcher.next(10).await.unwrap()), "+a=1 *a=2(1) +b=1 -b=1(1)");
        assert_eq!(listed(&store.list_at(PODS, "", None, created).unwrap()), "a=1");
        assert!(update(&store, "a", "3").await > last);
        assert_eq!(described(&watcher.next(10).await.unwrap()), "*a=3(2)");
    }

    async fn a_refused_write_and_a_closed_store_stay_that_way(bed: &mut Bed) {
        let store = bed.open().await;
        let bad = store::Draft { bytes: b"x".to_vec(), revision_at: 2 };
        let write = store::Write {
            collection: PODS.into(),
            name: "a".into(),
            expect: Expect::Absent,
            change: store::Change::Put(bad),
        };
        let refused = store.write(write).await;
        assert!(matches!(refused, Err(WriteError::Backend(store::Error::Refused { .. }))));
        create(&store, "a", "1").await;
        store.close().await.unwrap();
        let late = put(&store, "b", Expect::Absent, "x").await;
        assert!(matches!(late, Err(WriteError::Backend(store::Error::Closed))));
        assert!(store.health().is_err());
        assert_eq!(listed(&store.list(PODS, "", None).1), "a=1");
    }

    async fn after_a_barrier_reads_see_acknowledged_writes(bed: &mut Bed) {
        let store = bed.open().await;
        let revision = create(&store, "a", "1").await;
        assert!(store.barrier().await.unwrap() >= revision);
        tokio::time::timeout(Duration::from_secs(5), store.wait_for(revision)).await.unwrap();
    }
}
