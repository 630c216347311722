//! How fast the embedded store is on this machine: `cargo run --release -p store --example speed`.

use std::sync::Arc;
use std::time::Duration;

use store::{Backend, Change, Draft, Envelope, Expect, Options, Store, Write};
use tokio::time::Instant;

const OBJECT_BYTES: usize = 2048;
const WRITERS: usize = 64;
const WRITES_EACH: usize = 2_000;
const LISTED: usize = 5_000;
const WATCHERS: usize = 1_000;
const WATCHED_WRITES: usize = 500;

const ENVELOPE: Envelope = Envelope {
    created: br#"{"type":"ADDED","object":"#,
    updated: br#"{"type":"MODIFIED","object":"#,
    deleted: br#"{"type":"DELETED","object":"#,
    end: b"}\n",
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "speed.redb".to_owned());
    let open = || Store::<()>::open(Backend::Embedded { path: path.clone().into() }, options());
    let store = open().await?;
    for writers in [1, WRITERS] {
        let took = write_from(&store, writers, WRITES_EACH * WRITERS / writers.max(8)).await;
        println!("{writers} writers: {took:.0} writes/s");
    }
    for number in 0..LISTED {
        put(&store, "listed", format!("default/{number}"), Expect::Absent).await;
    }
    let begin = Instant::now();
    let (_, objects) = store.list("listed", "", None);
    println!("list of {}: {:?}", objects.len(), begin.elapsed());

    let (took, alone) = (watched(&store, WATCHERS).await, watched(&store, 0).await);
    println!(
        "{WATCHED_WRITES} writes: {alone:?} alone, {took:?} until {WATCHERS} watchers have all"
    );

    let begin = Instant::now();
    store.close().await?;
    println!("close: {:?}", begin.elapsed());
    let begin = Instant::now();
    let store = open().await?;
    let count: usize = store.counts().iter().map(|(_, count)| count).sum();
    println!("open with {count} objects, revision {}: {:?}", store.revision(), begin.elapsed());
    store.close().await?;
    println!("file: {} MiB", std::fs::metadata(&path)?.len() >> 20);
    std::fs::remove_file(path)?;
    Ok(())
}

fn options() -> Options {
    Options { history: Duration::from_secs(300), ..Options::new(ENVELOPE) }
}

async fn put(store: &Store<()>, collection: &str, name: String, expect: Expect) -> u64 {
    let draft = Draft { bytes: vec![b'x'; OBJECT_BYTES], revision_at: 100 };
    let write = Write { collection: collection.into(), name, expect, change: Change::Put(draft) };
    store.write(write).await.expect("a disk that works").revision()
}

/// Every writer updates its own object over and over. Returns writes per second.
async fn write_from(store: &Store<()>, writers: usize, each: usize) -> f64 {
    let begin = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..writers {
        let store = store.clone();
        tasks.spawn(async move {
            let name = format!("w{writers}-{writer}");
            let mut expect = Expect::Absent;
            for _ in 0..each {
                expect = Expect::Revision(put(&store, "written", name.clone(), expect).await);
            }
        });
    }
    tasks.join_all().await;
    (writers * each) as f64 / begin.elapsed().as_secs_f64()
}

async fn watched(store: &Store<()>, watchers: usize) -> Duration {
    let collection: Arc<str> = format!("watched-{watchers}").into();
    let begin = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..watchers {
        let mut watcher = store.watch(&collection, store.revision()).expect("the present");
        tasks.spawn(async move {
            let mut seen = 0;
            while seen < WATCHED_WRITES {
                seen += watcher.next(usize::MAX).await.expect("a short history").len();
            }
        });
    }
    let mut writes = tokio::task::JoinSet::new();
    for number in 0..WATCHED_WRITES {
        let (store, collection) = (store.clone(), collection.clone());
        writes.spawn(async move {
            put(&store, &collection, number.to_string(), Expect::Absent).await;
        });
    }
    writes.join_all().await;
    tasks.join_all().await;
    begin.elapsed()
}
