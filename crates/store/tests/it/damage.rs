//! The embedded store with damaged files, wrong permissions and full disks.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::bed::*;
use store::{Backend, Error, Expect, Options, WriteError};

async fn open(path: &Path) -> Result<Store, Error> {
    Store::open(Backend::Embedded { path: path.into() }, Options::new(ENVELOPE)).await
}

#[tokio::test]
async fn a_file_is_opened_by_one_store_at_a_time() {
    let bed = Bed::embedded();
    let store = bed.open().await;
    create(&store, "a", "1").await;
    let Err(refused) = bed.try_open().await else { panic!("opened twice") };
    assert!(matches!(refused, Error::InUse { .. }));
    assert!(refused.to_string().contains(bed.file().to_str().unwrap()));
    let store = bed.reopen(store).await;
    assert_eq!(listed(&store.list(PODS, "", None).1), "a=1");
}

#[tokio::test]
async fn the_file_is_readable_only_by_its_owner_even_if_it_was_created_otherwise() {
    let bed = Bed::embedded();
    let rights = || std::fs::metadata(bed.file()).unwrap().permissions().mode() & 0o777;
    let store = bed.open().await;
    assert_eq!(rights(), 0o600);
    create(&store, "a", "1").await;
    store.close().await.unwrap();
    drop(store);
    std::fs::set_permissions(bed.file(), Permissions::from_mode(0o644)).unwrap();
    let store = bed.open().await;
    assert_eq!(rights(), 0o600);
    assert_eq!(listed(&store.list(PODS, "", None).1), "a=1");
}

/// The whole history of a file, or the error.
async fn story(path: &Path) -> Result<String, Error> {
    let store = open(path).await?;
    let mut watcher = store.watch(PODS, 1).expect("the history of these files is short");
    let story = described(&watcher.try_next(usize::MAX).unwrap());
    let story = format!("{story}; {}", listed(&store.list(PODS, "", None).1));
    store.close().await?;
    Ok(story)
}

async fn write_some(store: &Store) {
    for number in 0..60 {
        create(store, &format!("n{number}"), &"x".repeat(number * 40)).await;
    }
    for number in (0..60).step_by(3) {
        update(store, &format!("n{number}"), "short").await;
    }
    for number in (0..60).step_by(7) {
        delete(store, &format!("n{number}")).await;
    }
}

/// Overwrites every position once with a few bytes of garbage.
async fn check_damaged(image: &[u8], dir: &Path) {
    let good = dir.join("good");
    std::fs::write(&good, image).unwrap();
    let expected = story(&good).await.unwrap();
    let path = dir.join("damaged");
    let header = (0..320).step_by(3);
    let rest = (320..image.len()).step_by(image.len() / 150);
    let mut refused = 0;
    for at in header.chain(rest) {
        let mut damaged = image.to_vec();
        for (nth, byte) in damaged[at..].iter_mut().take(6).enumerate() {
            *byte ^= 0xA5_u8.rotate_left(nth as u32);
        }
        std::fs::write(&path, damaged).unwrap();
        match story(&path).await {
            Ok(story) => assert!(story == expected, "damage at {at} has changed what is described"),
            Err(error) => {
                assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
                refused += 1;
            }
        }
    }
    assert!(refused > 50, "{refused} refused");
    for len in [0, 1, 100, 4096, image.len() / 2, image.len() - 1] {
        std::fs::write(&path, &image[..len]).unwrap();
        match story(&path).await {
            Ok(story) => assert!(len == 0 && story == "; ", "an empty file is a new one"),
            Err(error) => assert!(error.to_string().contains(path.to_str().unwrap()), "{error}"),
        }
    }
}

#[tokio::test]
async fn garbage_in_a_closed_file_is_reported_or_harmless() {
    let bed = Bed::embedded();
    let store = bed.open().await;
    write_some(&store).await;
    store.close().await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    check_damaged(&std::fs::read(bed.file()).unwrap(), dir.path()).await;
}

#[tokio::test]
async fn garbage_in_a_file_left_by_a_crash_is_reported_or_harmless() {
    let bed = Bed::embedded();
    let store = bed.open().await;
    write_some(&store).await;
    // As after a kill: the file was not closed.
    let image = std::fs::read(bed.file()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    check_damaged(&image, dir.path()).await;
}

#[tokio::test]
async fn a_file_that_is_something_else_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notes.txt");
    let notes = "do not lose this\n".repeat(1000);
    std::fs::write(&path, &notes).unwrap();
    assert!(open(&path).await.is_err());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), notes);
}

/// A small file system that is gone after the test. None where mounting is not allowed.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new(size: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let option = format!("size={size}");
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &option, "tmpfs"])
            .arg(dir.path())
            .output()
            .expect("mount can be run");
        let why = String::from_utf8_lossy(&mount.stderr);
        assert!(mount.status.success(), "this test needs root: run `make test` as root; {why}");
        SmallDisk(dir)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).output();
    }
}

#[tokio::test]
async fn a_full_disk_refuses_writes_and_loses_nothing() {
    let disk = SmallDisk::new("8m");
    let (path, filler) = (disk.0.path().join("store.redb"), disk.0.path().join("filler"));
    std::fs::write(&filler, vec![1; 3 << 20]).unwrap();
    let store = open(&path).await.unwrap();
    let mut kept = Vec::new();
    let refused = loop {
        let name = format!("n{:04}", kept.len());
        match put(&store, &name, Expect::Absent, &"x".repeat(50_000)).await {
            Ok(_) => kept.push(name),
            Err(error) => break error,
        }
    };
    let WriteError::Backend(error) = refused else { panic!("{refused:?}") };
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    let names = |store: &Store| -> Vec<String> {
        store.list(PODS, "", None).1.iter().map(|object| object.name().to_owned()).collect()
    };
    let revision = store.revision();
    assert_eq!(names(&store), kept);
    assert!(store.health().unwrap_err().contains("No space left"), "{:?}", store.health());
    assert!(put(&store, "z", Expect::Absent, &"x".repeat(500_000)).await.is_err());
    assert_eq!(store.revision(), revision);

    std::fs::remove_file(&filler).unwrap();
    assert_eq!(create(&store, "z", "fits").await, revision + 1);
    assert_eq!(store.health(), Ok(()));
    kept.push("z".to_owned());
    store.close().await.unwrap();
    let store = open(&path).await.unwrap();
    assert_eq!(names(&store), kept);
    assert_eq!(store.revision(), revision + 1);
    store.close().await.unwrap();
}

fn names(store: &Store) -> Vec<String> {
    store.list(PODS, "", None).1.iter().map(|object| object.name().to_owned()).collect()
}

/// Fills the rest of a disk.
fn fill(path: &std::path::Path) {
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
    for size in [64 << 10, 4096, 1] {
        while std::io::Write::write_all(&mut file, &vec![1; size]).is_ok() {}
    }
}

#[tokio::test]
async fn a_store_on_a_full_disk_opens_and_accepts_only_deletions_until_there_is_space() {
    let disk = SmallDisk::new("16m");
    let (path, filler) = (disk.0.path().join("store.redb"), disk.0.path().join("filler"));
    let store = open(&path).await.unwrap();
    for number in 0..20 {
        create(&store, &format!("n{number:02}"), &"x".repeat(50_000)).await;
    }
    store.close().await.unwrap();
    fill(&filler);

    let store = open(&path).await.unwrap();
    assert_eq!(names(&store).len(), 20);
    while put(&store, "more", Expect::Absent, &"x".repeat(200_000)).await.is_ok() {
        delete(&store, "more").await;
        update(&store, "n00", &"y".repeat(300_000)).await;
    }
    assert!(store.health().unwrap_err().contains("No space left"), "{:?}", store.health());
    let refused = put(&store, "small", Expect::Absent, "x").await.unwrap_err();
    assert!(matches!(refused, WriteError::Backend(store::Error::Full { .. })), "{refused:?}");
    for number in 0..10 {
        delete(&store, &format!("n{number:02}")).await;
    }
    let left = names(&store);
    store.close().await.unwrap();

    // Again on the full disk: deleted objects are gone, and there is space to delete more.
    let store = open(&path).await.unwrap();
    assert_eq!(names(&store), left);
    assert!(store.health().is_err());
    assert!(put(&store, "small", Expect::Absent, "x").await.is_err());
    delete(&store, "n10").await;
    std::fs::remove_file(&filler).unwrap();
    create(&store, "small", "x").await;
    assert_eq!(store.health(), Ok(()));
    store.close().await.unwrap();
    assert_eq!(names(&open(&path).await.unwrap()).len(), 10);
}

#[tokio::test]
async fn a_store_without_a_reserve_opens_on_a_full_disk_after_a_crash() {
    let disk = SmallDisk::new("16m");
    let (path, filler) = (disk.0.path().join("store.redb"), disk.0.path().join("filler"));
    let store = open(&path).await.unwrap();
    for number in 0..20 {
        create(&store, &format!("n{number:02}"), &"x".repeat(50_000)).await;
    }
    // As after a crash: the file was not closed, and nothing was reserved. What it does not use has no blocks
    // on the disk, so that every new page needs one.
    let crashed = disk.0.path().join("crashed");
    let sparse = Command::new("cp").arg("--sparse=always").args([&path, &crashed]).status();
    assert!(sparse.expect("cp can be run").success());
    store.close().await.unwrap();
    std::fs::remove_file(disk.0.path().join("store.redb.reserve")).unwrap();
    std::fs::rename(&crashed, &path).unwrap();
    fill(&filler);

    let store = open(&path).await.unwrap();
    assert_eq!(names(&store).len(), 20);
    assert!(store.health().is_err());
    std::fs::remove_file(&filler).unwrap();
    create(&store, "small", "x").await;
    assert_eq!(store.health(), Ok(()));
    store.close().await.unwrap();
    assert_eq!(names(&open(&path).await.unwrap()).len(), 21);
}
