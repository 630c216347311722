//! A store on either backend, and short functions for the tests.

pub(crate) mod etcd;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use store::{
    Backend, Change, Draft, Envelope, EtcdOptions, Event, EventKind, Expect, Index, Object,
    Options, Write, WriteError,
};

pub(crate) type Store = store::Store<Text>;

/// The index of these tests: the length of the object, and its partition.
pub(crate) struct Text(pub(crate) usize, Option<Arc<str>>);

impl Index for Text {
    fn read(_collection: &str, _name: &str, bytes: &[u8]) -> Self {
        let partition = match bytes[1] {
            b'a'..=b'm' => Some(EARLY.into()),
            b'n'..=b'z' => Some(LATE.into()),
            _ => None,
        };
        Text(bytes.len(), partition)
    }

    fn partition_key(&self) -> Option<&Arc<str>> {
        self.1.as_ref()
    }
}

/// The partitions of texts, by their first letter.
pub(crate) const EARLY: &str = "early";
pub(crate) const LATE: &str = "late";

pub(crate) const ENVELOPE: Envelope =
    Envelope { created: b"ADDED ", updated: b"MODIFIED ", deleted: b"DELETED ", end: b"\n" };

pub(crate) const PODS: &str = "pods";

/// A location where stores can be opened repeatedly.
pub(crate) struct Bed {
    dir: tempfile::TempDir,
    etcd: Option<etcd::Etcd>,
    pub(crate) options: Options,
}

impl Bed {
    pub(crate) fn embedded() -> Self {
        Bed { dir: tempfile::tempdir().unwrap(), etcd: None, options: Options::new(ENVELOPE) }
    }

    pub(crate) fn etcd() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let etcd = Some(etcd::Etcd::start(dir.path()));
        Bed { dir, etcd, options: Options::new(ENVELOPE) }
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.dir.path().join("store.redb")
    }

    pub(crate) fn etcd_server(&mut self) -> &mut etcd::Etcd {
        self.etcd.as_mut().unwrap()
    }

    pub(crate) fn backend(&self) -> Backend {
        match &self.etcd {
            None => Backend::Embedded { path: self.file() },
            Some(etcd) => Backend::Etcd(EtcdOptions {
                endpoints: vec![etcd.url()],
                prefix: "/landfall/".to_owned(),
            }),
        }
    }

    pub(crate) async fn open(&self) -> Store {
        self.try_open().await.unwrap()
    }

    pub(crate) async fn try_open(&self) -> Result<Store, store::Error> {
        Store::open(self.backend(), self.options.clone()).await
    }

    pub(crate) async fn reopen(&self, store: Store) -> Store {
        store.close().await.unwrap();
        drop(store);
        self.open().await
    }
}

/// `<text @>`: the revision stands where the @ is.
pub(crate) fn draft(text: &str) -> Draft {
    let bytes = format!("<{text} >").into_bytes();
    let revision_at = bytes.len() - 1;
    Draft { bytes, revision_at }
}

pub(crate) fn shown(object: &Object<Text>) -> String {
    let text = String::from_utf8(object.bytes().to_vec()).unwrap();
    assert_eq!(object.index().0, text.len(), "the index belongs to these bytes");
    assert!(text.ends_with(&format!(" {}>", object.revision())), "{text} carries its revision");
    text[1..].split(' ').next().unwrap().to_owned()
}

pub(crate) type Written = Result<Arc<Object<Text>>, WriteError<Text>>;

pub(crate) async fn put(store: &Store, name: &str, expect: Expect, text: &str) -> Written {
    put_in(store, PODS, name, expect, text).await
}

pub(crate) async fn put_in(
    store: &Store,
    collection: &str,
    name: &str,
    expect: Expect,
    text: &str,
) -> Written {
    let (collection, name) = (collection.into(), name.to_owned());
    store.write(Write { collection, name, expect, change: Change::Put(draft(text)) }).await
}

pub(crate) async fn create(store: &Store, name: &str, text: &str) -> u64 {
    put(store, name, Expect::Absent, text).await.unwrap().revision()
}

pub(crate) async fn update(store: &Store, name: &str, text: &str) -> u64 {
    let current = store.get(PODS, name).unwrap().revision();
    put(store, name, Expect::Revision(current), text).await.unwrap().revision()
}

pub(crate) async fn delete(store: &Store, name: &str) -> Arc<Object<Text>> {
    let expect = Expect::Revision(store.get(PODS, name).unwrap().revision());
    try_delete(store, name, expect).await.unwrap()
}

pub(crate) async fn try_delete(store: &Store, name: &str, expect: Expect) -> Written {
    let name = name.to_owned();
    store.write(Write { collection: PODS.into(), name, expect, change: Change::Delete }).await
}

/// `a=1 b=2`
pub(crate) fn listed(objects: &[Arc<Object<Text>>]) -> String {
    let each: Vec<_> = objects.iter().map(|o| format!("{}={}", o.name(), shown(o))).collect();
    each.join(" ")
}

/// `+a=1 *a=2(1) -a=2(2)`: created, updated, deleted; in brackets what was there before.
pub(crate) fn described(events: &[Arc<Event<Text>>]) -> String {
    let each: Vec<_> = events
        .iter()
        .map(|event| {
            assert_eq!(event.object.revision(), event.revision);
            let (sign, prefix) = match event.kind {
                EventKind::Created => ('+', "ADDED "),
                EventKind::Updated => ('*', "MODIFIED "),
                EventKind::Deleted => ('-', "DELETED "),
            };
            let frame = String::from_utf8(event.object.frame().to_vec()).unwrap();
            let bytes = String::from_utf8(event.object.bytes().to_vec()).unwrap();
            assert_eq!(frame, format!("{prefix}{bytes}\n"));
            let before = event.previous.as_ref().map(|object| format!("({})", shown(object)));
            let (name, text) = (event.object.name(), shown(&event.object));
            format!("{sign}{name}={text}{}", before.unwrap_or_default())
        })
        .collect();
    each.join(" ")
}

/// A timeout for tests that hang.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("this takes too long")
}
