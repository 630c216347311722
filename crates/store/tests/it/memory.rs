//! `Memory`, which outlives the store that uses it.

use crate::bed::{self, create, delete, described, listed, put, update};
use std::sync::Arc;
use store::{Expect, Memory, Options, WriteError};

fn open(memory: &Memory<bed::Text>) -> bed::Store {
    store::Store::open_memory(memory, Options::new(bed::ENVELOPE))
}

#[tokio::test]
async fn acknowledged_writes_and_history_survive_the_store() {
    let memory = Memory::default();
    let store = open(&memory);
    let first = create(&store, "a", "1").await;
    update(&store, "a", "2").await;
    store.cut();
    drop(store);
    let store = open(&memory);
    assert_eq!(listed(&store.list(bed::PODS, "", None).1), "a=2");
    let mut watcher = store.watch(bed::PODS, first).unwrap();
    assert_eq!(described(&watcher.try_next(10).unwrap()), "*a=2(1)");
    assert_eq!(create(&store, "b", "1").await, 3, "revisions go on");
}

#[tokio::test]
async fn only_the_store_that_was_opened_last_can_write() {
    let memory = Memory::default();
    let (old, new) = (open(&memory), open(&memory));
    let refused = put(&old, "a", Expect::Absent, "1").await;
    assert!(matches!(refused, Err(WriteError::Backend(store::Error::Closed))), "{refused:?}");
    create(&new, "a", "1").await;
    assert!(old.get(bed::PODS, "a").is_none(), "the old one does not learn of it");
}

#[tokio::test]
async fn a_copy_has_the_same_objects_and_is_independent() {
    let memory = Memory::default();
    let store = open(&memory);
    create(&store, "a", "1").await;
    let copy = open(&memory.copy());
    create(&copy, "b", "1").await;
    update(&store, "a", "2").await;
    assert_eq!(listed(&copy.list(bed::PODS, "", None).1), "a=1 b=1");
    assert_eq!(listed(&store.list(bed::PODS, "", None).1), "a=2");
    assert!(copy.watch(bed::PODS, 0).is_err(), "there is no history from before");
    assert!(copy.watch(bed::PODS, 1).is_ok());
}

#[tokio::test]
async fn a_simulated_crash_happens_after_an_exact_number_of_writes() {
    let memory = Memory::default();
    let store = open(&memory);
    let mut gone = memory.cut_after(2);
    create(&store, "a", "1").await;
    assert!(gone.try_recv().is_err());
    create(&store, "b", "1").await;
    assert!(gone.try_recv().is_ok());
    assert!(put(&store, "c", Expect::Absent, "1").await.is_err());
    let store = open(&memory);
    assert_eq!(listed(&store.list(bed::PODS, "", None).1), "a=1 b=1");
    create(&store, "c", "1").await;
}

#[tokio::test]
async fn watchers_that_start_before_the_next_change_share_one_list() {
    let store = open(&Memory::default());
    for name in ["a/1", "a/2", "b/1"] {
        create(&store, name, "1").await;
    }
    let (_, first, _one) = store.list_and_watch(bed::PODS, "");
    let (_, again, _two) = store.list_and_watch(bed::PODS, "");
    assert!(Arc::ptr_eq(&first, &again));
    let (_, part, _three) = store.list_and_watch(bed::PODS, "a/");
    assert_eq!(listed(&part), "a/1=1 a/2=1");
    update(&store, "a/1", "2").await;
    let (_, changed, _four) = store.list_and_watch(bed::PODS, "");
    assert_eq!(listed(&changed), "a/1=2 a/2=1 b/1=1");
    delete(&store, "b/1").await;
    assert_eq!(listed(&store.list_and_watch(bed::PODS, "").1), "a/1=2 a/2=1");
    assert_eq!(listed(&first), "a/1=1 a/2=1 b/1=1", "an earlier snapshot does not change");
}

#[tokio::test]
async fn a_watcher_returns_no_more_bytes_at_a_time_than_its_limit() {
    let store = open(&Memory::default());
    let start = store.revision();
    for name in ["a", "b", "c", "d"] {
        create(&store, name, &name.repeat(1000)).await;
    }
    let mut watcher = store.watch(bed::PODS, start).unwrap().limit_bytes(1500);
    let mut taken = Vec::new();
    for _ in 0..3 {
        let events = watcher.try_next(10).unwrap();
        taken.push(events.iter().map(|event| event.object.name()).collect::<String>());
    }
    assert_eq!(taken, ["ab", "cd", ""]);
    assert_eq!(watcher.revision(), store.revision());
}
