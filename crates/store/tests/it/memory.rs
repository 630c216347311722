//! Memory that outlives the store on it.

use crate::bed::{self, create, listed, put, told, update};
use store::{Expect, Memory, Options, WriteError};

fn open(memory: &Memory<bed::Text>) -> bed::Store {
    store::Store::open_memory(memory, Options::new(bed::ENVELOPE))
}

#[tokio::test]
async fn what_was_acknowledged_survives_the_store_and_so_does_its_history() {
    let memory = Memory::default();
    let store = open(&memory);
    let first = create(&store, "a", "1").await;
    update(&store, "a", "2").await;
    store.cut();
    drop(store);
    let store = open(&memory);
    assert_eq!(listed(&store.list(bed::PODS, "", None).1), "a=2");
    let mut watcher = store.watch(bed::PODS, first).unwrap();
    assert_eq!(told(&watcher.try_next(10).unwrap()), "*a=2(1)");
    assert_eq!(create(&store, "b", "1").await, 3, "revisions go on");
}

#[tokio::test]
async fn only_the_store_that_was_opened_last_can_write() {
    let memory = Memory::default();
    let (old, new) = (open(&memory), open(&memory));
    let refused = put(&old, "a", Expect::Absent, "1").await;
    assert!(matches!(refused, Err(WriteError::Backend(store::Error::Closed))), "{refused:?}");
    create(&new, "a", "1").await;
    assert!(old.get(bed::PODS, "a").is_none(), "nobody tells the old one");
}

#[tokio::test]
async fn a_copy_has_the_same_objects_and_a_life_of_its_own() {
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
async fn the_power_goes_after_exactly_so_many_writes() {
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
