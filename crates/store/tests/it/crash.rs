//! A writer is killed with SIGKILL repeatedly, on the same file. Acknowledged writes must be complete, and revisions must
//! continue.
//!
//! The writer is this test binary, started again with an environment variable that names the file.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write as _};
use std::process::{Command, Stdio};

use crate::bed::*;
use store::{Backend, Expect};

const FILE: &str = "LANDFALL_TEST_STORE";
const ROUND: &str = "LANDFALL_TEST_ROUND";
const ROUNDS: usize = 30;
const WRITERS: usize = 8;

/// What a writer writes: long enough to span pages, and any half of it is recognisable.
fn text(tag: &str) -> String {
    vec![tag; 300].join("|")
}

#[tokio::test]
async fn the_writer_that_gets_killed() {
    let (Ok(path), Ok(round)) = (std::env::var(FILE), std::env::var(ROUND)) else { return };
    let backend = Backend::Embedded { path: path.into() };
    let store = Store::open(backend, store::Options::new(ENVELOPE)).await.unwrap();
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let (store, round) = (store.clone(), round.clone());
        writers.spawn(async move {
            let name = format!("w{writer}");
            for count in 0.. {
                let tag = format!("{round}.{writer}.{count}");
                let current = store.get(PODS, &name).map(|object| object.revision());
                let done = match current {
                    Some(revision) if count % 7 == 3 => {
                        try_delete(&store, &name, Expect::Revision(revision)).await.unwrap();
                        continue;
                    }
                    Some(revision) => {
                        put(&store, &name, Expect::Revision(revision), &text(&tag)).await
                    }
                    None => put(&store, &name, Expect::Absent, &text(&tag)).await,
                };
                let line = format!("\nack {} {tag}\n", done.unwrap().revision());
                let mut out = std::io::stdout().lock();
                out.write_all(line.as_bytes()).unwrap();
                out.flush().unwrap();
            }
        });
    }
    writers.join_all().await;
}

/// Runs a writer and kills it after some acknowledgements. Returns all it gave.
fn run_and_kill(path: &std::path::Path, round: usize, enough: usize) -> HashMap<u64, String> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash::the_writer_that_gets_killed", "--nocapture", "--test-threads=1"])
        .env(FILE, path)
        .env(ROUND, round.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut acknowledged = HashMap::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        if let Some((revision, tag)) = line.strip_prefix("ack ").and_then(|ack| ack.split_once(' '))
        {
            acknowledged.insert(revision.parse().unwrap(), tag.to_owned());
        }
        if acknowledged.len() == enough {
            // Continues reading: writes still in the pipe were acknowledged too.
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    assert!(acknowledged.len() >= enough, "the writer ended by itself");
    acknowledged
}

#[tokio::test]
async fn acknowledged_writes_survive_a_kill() {
    let bed = Bed::embedded();
    let (mut last, mut first_of_round) = (0, 0);
    for round in 0..ROUNDS {
        let acknowledged = run_and_kill(&bed.file(), round, 1 + round * 37 % 101);

        let store = bed.open().await;
        assert!(store.revision() >= *acknowledged.keys().max().unwrap());
        assert!(store.revision() > last);
        let mut watcher = store.watch(PODS, first_of_round.max(1)).unwrap();
        let events = watcher.try_next(usize::MAX).unwrap();
        let mut seen = HashMap::new();
        for event in &events {
            let shown = shown(&event.object);
            let tag = shown.split('|').next().unwrap().to_owned();
            assert_eq!(shown, text(&tag), "no half write");
            seen.insert(event.revision, tag);
        }
        for (revision, tag) in &acknowledged {
            assert!(*revision > last, "a revision is given once");
            assert_eq!(seen.get(revision), Some(tag), "revision {revision}");
        }
        last = store.revision();
        first_of_round = last;
        store.close().await.unwrap();
    }
}
