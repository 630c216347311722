//! Tests of the log with a simulated disk that loses power.
//!
//! The disk records all operations. A power loss is then simulated at every point: synced data is there; of data that was
//! not synced, any sectors may be missing.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::time::Instant;

use super::log::{Log, Place};
use crate::object::Identity;
use crate::state::{DroppedEvent, Published, State};
use crate::{Envelope, Error, Event, EventKind, Object, Options};

const SECTOR: usize = 512;

#[derive(Debug, Clone)]
enum Operation {
    Write(u64, Vec<u8>),
    Resize(u64),
    Sync,
    /// Not a disk operation: from here on this revision was acknowledged.
    Acknowledged(u64),
}

#[derive(Debug, Clone, Default)]
struct Disk {
    image: Arc<Mutex<Vec<u8>>>,
    operations: Arc<Mutex<Vec<Operation>>>,
    full: Arc<AtomicBool>,
}

impl Disk {
    fn record(&self, operations: Operation) -> io::Result<()> {
        if self.full.load(Ordering::Relaxed) {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        apply(&mut self.image.lock().unwrap(), &operations, |_| true);
        self.operations.lock().unwrap().push(operations);
        Ok(())
    }
}

impl redb::StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.image.lock().unwrap().len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let (image, start) = (self.image.lock().unwrap(), offset as usize);
        out.copy_from_slice(
            image.get(start..start + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?,
        );
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.record(Operation::Resize(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.record(Operation::Sync)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.record(Operation::Write(offset, data.to_vec()))
    }
}

/// Applies an operation to the image, except for sectors that do not arrive.
fn apply(image: &mut Vec<u8>, operations: &Operation, mut arrives: impl FnMut(usize) -> bool) {
    match operations {
        Operation::Write(offset, data) => {
            let start = *offset as usize;
            for at in start..start + data.len() {
                if at < image.len() && arrives(at / SECTOR) {
                    image[at] = data[at - start];
                }
            }
        }
        Operation::Resize(len) => image.resize(*len as usize, 0),
        Operation::Sync | Operation::Acknowledged(_) => {}
    }
}

fn options() -> Options {
    Options::new(Envelope { created: b"", updated: b"", deleted: b"", end: b"" })
}

fn open(disk: Disk) -> Result<Log, Error> {
    Log::open_with(Place::Memory, |builder| builder.create_with_backend(disk))
}

fn content(revision: u64) -> Vec<u8> {
    format!("{revision},").repeat(300).into_bytes()
}

fn created(revision: u64) -> Published<()> {
    let (kind, name) = (EventKind::Created, format!("n{revision}").into());
    let identity = Identity { collection: "pods", name, kind, revision, created: revision };
    let options = options();
    let object = Arc::new(Object::new(&options.envelope, identity, &content(revision), b""));
    ("pods".into(), Arc::new(Event { revision, kind, object, previous: None }))
}

fn load(log: &Log) -> Result<State<()>, Error> {
    log.load(&options(), Instant::now())
}

/// Every object up to the state's revision exists and is complete.
fn assert_whole(state: &State<()>) {
    for revision in 2..=state.revision() {
        let object = state.get("pods", &format!("n{revision}")).expect("no gap");
        assert_eq!(object.around_revision().0, content(revision));
    }
    assert_eq!(state.list("pods", None, "", None).len() as u64, state.revision() - 1);
}

/// Deterministic pseudo-random numbers.
fn scatter(seed: u64) -> u64 {
    let mixed = (seed ^ (seed >> 31)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 17
}

#[test]
fn acknowledged_writes_survive_a_power_loss_at_any_point() {
    let disk = Disk::default();
    let log = open(disk.clone()).unwrap();
    let mut revision = 1;
    for batch in 0..12_u64 {
        let events: Vec<_> = (1..=1 + batch % 4).map(|nth| created(revision + nth)).collect();
        revision += events.len() as u64;
        log.commit(&events, &[] as &[DroppedEvent]).unwrap();
        disk.record(Operation::Acknowledged(revision)).unwrap();
    }
    let operations = disk.operations.lock().unwrap().clone();
    drop(log);

    let (mut synced, mut acknowledged) = (Vec::new(), 0);
    let mut pending: Vec<&Operation> = Vec::new();
    for (moment, next) in operations.iter().enumerate() {
        if acknowledged > 0 {
            // Nothing, something, everything of what was not synced has arrived.
            for share in [0, 1, 2, 3] {
                let mut image: Vec<u8> = synced.clone();
                for (nth, operations) in pending.iter().enumerate() {
                    apply(&mut image, operations, |sector| {
                        let seed = (moment * 1000 + nth) as u64 * 1_000_003 + sector as u64;
                        scatter(seed * 4 + share) % 3 < share
                    });
                }
                let found = Disk { image: Arc::new(Mutex::new(image)), ..Disk::default() };
                let state = open(found).and_then(|log| load(&log)).unwrap();
                assert!(state.revision() >= acknowledged, "cut at {moment}, {share}");
                assert_whole(&state);
            }
        }
        match next {
            Operation::Acknowledged(revision) => acknowledged = *revision,
            Operation::Sync => {
                pending.drain(..).for_each(|operations| apply(&mut synced, operations, |_| true))
            }
            Operation::Write(..) | Operation::Resize(_) => pending.push(next),
        }
    }
    assert_eq!(acknowledged, revision);
}

#[test]
fn a_commit_that_failed_is_taken_back_whether_it_reached_the_disk_or_not() {
    let disk = Disk::default();
    let log = open(disk.clone()).unwrap();
    log.commit(&[created(2)], &[]).unwrap();
    disk.full.store(true, Ordering::Relaxed);
    let large: Vec<_> = (3..400).map(created).collect();
    assert!(matches!(log.commit(&large, &[]), Err(Error::Full { .. })));
    drop(log);
    assert!(open(disk.clone()).is_err(), "still full");
    disk.full.store(false, Ordering::Relaxed);
    let log = open(disk.clone()).unwrap();
    log.rewind(2).unwrap();
    assert_whole(&load(&log).unwrap());

    // As if the sync had failed after everything had arrived.
    log.commit(&[created(3), created(4)], &[]).unwrap();
    log.rewind(2).unwrap();
    let state = load(&log).unwrap();
    assert_eq!(state.revision(), 2);
    assert_whole(&state);
    assert!(matches!(log.rewind(9), Err(Error::Damaged { .. })), "a file that lost writes");
}
