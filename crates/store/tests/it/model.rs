//! A property test: after any operations the embedded store equals a map with complete history.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::bed::*;
use proptest::prelude::*;
use store::{Expect, WriteError};

#[derive(Debug, Clone)]
enum Step {
    /// Put with the right expectation.
    Put(u8, String),
    /// Put or delete with an expectation that is off.
    Wrong(u8, bool),
    Delete(u8),
    /// Several writes of one name at once.
    Race(u8),
    Reopen,
    /// Time passes; the ring keeps a minute.
    Wait(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..5_u8, "[a-z]{0,8}").prop_map(|(name, text)| Step::Put(name, text)),
        1 => (0..5_u8, any::<bool>()).prop_map(|(name, delete)| Step::Wrong(name, delete)),
        3 => (0..5_u8).prop_map(Step::Delete),
        1 => (0..5_u8).prop_map(Step::Race),
        1 => Just(Step::Reopen),
        2 => (1..50_u8).prop_map(Step::Wait),
    ]
}

/// Name to text and revision.
type Objects = BTreeMap<String, (String, u64)>;

/// The store and what it should be.
struct Model {
    bed: Bed,
    store: Store,
    now: Objects,
    /// The objects as they were at every revision since the first.
    then: BTreeMap<u64, Objects>,
}

impl Model {
    async fn new() -> Self {
        let mut bed = Bed::embedded();
        bed.options.history = Duration::from_secs(60);
        let store = bed.open().await;
        let then = BTreeMap::from([(store.revision(), Objects::new())]);
        Model { bed, store, now: Objects::new(), then }
    }

    async fn play(mut self, step: Step) -> Self {
        let name_of = |number: u8| format!("n{number}");
        match step {
            Step::Put(number, text) => {
                let name = name_of(number);
                let object = put(&self.store, &name, self.expect(&name), &text).await.unwrap();
                self.put(&name, &text, object.revision());
            }
            Step::Delete(number) => {
                let name = name_of(number);
                let result = try_delete(&self.store, &name, self.expect(&name)).await;
                match (self.now.remove(&name), result) {
                    (Some((text, _)), Ok(last)) => {
                        assert_eq!(shown(&last), text);
                        self.then.insert(last.revision(), self.now.clone());
                    }
                    (None, Err(WriteError::Conflict { current: None })) => {}
                    (before, result) => panic!("{before:?} {result:?}"),
                }
            }
            Step::Wrong(number, delete) => {
                let name = name_of(number);
                let expect = Expect::Revision(self.store.revision() + 1);
                let result = match delete {
                    true => try_delete(&self.store, &name, expect).await,
                    false => put(&self.store, &name, expect, "wrong").await,
                };
                let Err(WriteError::Conflict { current }) = result else { panic!("{result:?}") };
                let current = current.map(|object| (shown(&object), object.revision()));
                assert_eq!(current.as_ref(), self.now.get(&name));
            }
            Step::Race(number) => {
                let name = name_of(number);
                let expect = self.expect(&name);
                let (one, two) = tokio::join!(
                    put(&self.store, &name, expect, "one"),
                    put(&self.store, &name, expect, "two"),
                );
                assert!(matches!(two, Err(WriteError::Conflict { current: Some(_) })));
                self.put(&name, "one", one.unwrap().revision());
            }
            Step::Reopen => self.store = self.bed.reopen(self.store).await,
            Step::Wait(seconds) => tokio::time::advance(Duration::from_secs(seconds.into())).await,
        }
        self.check();
        self
    }

    fn expect(&self, name: &str) -> Expect {
        self.now.get(name).map_or(Expect::Absent, |(_, revision)| Expect::Revision(*revision))
    }

    fn put(&mut self, name: &str, text: &str, revision: u64) {
        assert!(revision > *self.then.keys().last().unwrap(), "revisions only grow");
        self.now.insert(name.to_owned(), (text.to_owned(), revision));
        self.then.insert(revision, self.now.clone());
    }

    fn check(&self) {
        assert_eq!(objects(&self.store.list(PODS, "", None).1), self.now);
        assert_eq!(self.store.revision(), *self.then.keys().last().unwrap());
        let mut reached = false;
        for (revision, expected) in &self.then {
            let past = self.store.list_at(PODS, "", None, *revision);
            let watcher = self.store.watch(PODS, *revision);
            assert_eq!(past.is_ok(), watcher.is_ok());
            assert!(past.is_ok() || !reached, "history has no holes");
            let (Ok(past), Ok(mut watcher)) = (past, watcher) else { continue };
            reached = true;
            assert_eq!(&objects(&past), expected);
            // Following the watch from there leads here.
            let mut followed = expected.clone();
            for event in watcher.try_next(usize::MAX).unwrap() {
                let name = event.object.name().to_owned();
                let before = event.previous.as_ref().map(|o| (shown(o), o.revision()));
                assert_eq!(followed.remove(&name), before);
                if event.kind != store::EventKind::Deleted {
                    followed.insert(name, (shown(&event.object), event.revision));
                }
            }
            assert_eq!(followed, self.now);
            self.check_partitions(*revision, expected);
        }
        assert!(reached, "the present can always be described");
    }

    /// A partition equals the filtered collection, now and from `then` on.
    fn check_partitions(&self, then: u64, was: &Objects) {
        for partition in [EARLY, LATE] {
            let within = |text: &str| match text.bytes().next() {
                Some(first) => (first <= b'm') == (partition == EARLY),
                None => false,
            };
            let part = |all: &Objects| -> Objects {
                let part = all.iter().filter(|(_, (text, _))| within(text));
                part.map(|(name, object)| (name.clone(), object.clone())).collect()
            };
            assert_eq!(objects(&self.store.list_of(PODS, partition, "", None).1), part(&self.now));
            let mut followed = part(was);
            let mut watcher = self.store.watch_of(PODS, partition, then).unwrap();
            for event in watcher.try_next(usize::MAX).unwrap() {
                let name = event.object.name().to_owned();
                let (was, is) = (followed.remove(&name), shown(&event.object));
                assert!(was.is_some() || within(&is), "an event of another partition");
                if event.kind != store::EventKind::Deleted && within(&is) {
                    followed.insert(name, (is, event.revision));
                }
            }
            assert_eq!(followed, part(&self.now));
            assert_eq!(watcher.revision(), self.store.revision());
        }
    }
}

fn objects(list: &[std::sync::Arc<store::Object<Text>>]) -> Objects {
    list.iter().map(|o| (o.name().to_owned(), (shown(o), o.revision()))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_store_equals_a_map_with_complete_history(steps in prop::collection::vec(step(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut model = Model::new().await;
            for step in steps {
                model = model.play(step).await;
            }
            model.play(Step::Reopen).await;
        });
    }
}

#[tokio::test(start_paused = true)]
async fn history_that_is_no_longer_available_is_removed_from_the_file() {
    let bed = Bed::embedded();
    let store = bed.open().await;
    let first = create(&store, "kept", "old").await;
    for number in 0..50 {
        update(&store, "kept", &format!("{number}")).await;
        create(&store, "gone", "x").await;
        delete(&store, "gone").await;
    }
    tokio::time::advance(Duration::from_secs(299)).await;
    assert!(store.watch(PODS, first).is_ok());
    let last = update(&store, "kept", "young").await;
    tokio::time::sleep(Duration::from_secs(11)).await; // The clock is paused: takes no time.
    assert!(store.watch(PODS, first).is_err());
    assert_eq!(listed(&store.list_at(PODS, "", None, last - 1).unwrap()), "kept=49");
    store.close().await.unwrap();

    let records = {
        use redb::{ReadableDatabase, ReadableTableMetadata};
        let records = redb::TableDefinition::<u64, &[u8]>::new("records");
        let file = redb::Database::open(bed.file()).unwrap();
        file.begin_read().unwrap().open_table(records).unwrap().len().unwrap()
    };
    assert_eq!(records, 2, "the newest, and what was before it");
    let store = bed.open().await;
    let mut watcher = store.watch(PODS, last - 1).unwrap();
    assert_eq!(described(&watcher.next(10).await.unwrap()), "*kept=young(49)");
    assert!(store.watch(PODS, last - 3).is_err());
}
