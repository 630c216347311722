//! Concurrent use, crashes and garbage collection of the image store.

use super::TestStore;
use super::fixture::{Layer, Layout};
use runtime::{ImageStore, Images};
use serde_json::json;

fn layout(name: &str, own: &str) -> Layout {
    let base = Layer::new().file("base", "shared").build();
    let own = Layer::new().file("own", own).build();
    Layout::default().image(name, &[base, own], json!({}))
}

#[test]
fn two_stores_on_one_directory_see_the_same_images() {
    let test = TestStore::new();
    let other = ImageStore::open(test.path().join("store")).unwrap();
    test.import(&layout("a/b:1", "x")).unwrap();
    assert!(other.config("a/b:1").is_ok());
}

#[test]
fn parallel_imports_of_an_image_store_it_once() {
    let test = TestStore::new();
    let file = layout("a/b:1", "x").write(test.path());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let store = ImageStore::open(test.path().join("store")).unwrap();
                store.import(&file, &|_| {}).unwrap();
            });
        }
    });
    let store = ImageStore::open(test.path().join("store")).unwrap();
    assert_eq!(store.layers("a/b:1").unwrap().len(), 2);
    assert_eq!(test.leftovers(), (2, 0));
}

#[tokio::test]
async fn removing_an_image_keeps_layers_of_other_images() {
    let test = TestStore::new();
    test.import(&layout("a/one:1", "1")).unwrap();
    test.import(&layout("a/two:1", "2")).unwrap();
    assert_eq!(test.leftovers().0, 3);
    let id = test.store.find(&runtime::ImageReference("a/one:1".into())).await.unwrap().unwrap().id;
    test.store.remove(&id).await.unwrap();
    assert_eq!(test.leftovers().0, 2);
    for layer in test.store.layers("a/two:1").unwrap() {
        assert!(layer.is_dir());
    }
    assert!(test.store.remove(&id).await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn layers_of_a_container_outlive_their_image() {
    let test = TestStore::new();
    test.import(&layout("a/b:1", "x")).unwrap();
    let layers = test.store.layers("a/b:1").unwrap();
    test.store.hold("c1", "a/b:1").unwrap();
    test.store.hold("c2", "a/b:1").unwrap();
    test.store.remove("a/b:1").await.unwrap();
    // Holds survive a restart.
    let store = ImageStore::open(test.path().join("store")).unwrap();
    store.release("c1").unwrap();
    assert!(layers.iter().all(|layer| layer.is_dir()));
    assert_eq!(store.holders().unwrap(), ["c2"]);
    store.release("c2").unwrap();
    store.release("c2").unwrap();
    assert!(layers.iter().all(|layer| !layer.exists()));
    assert!(store.hold("c3", "a/b:1").unwrap_err().is_not_found());
    assert!(store.hold("../c3", "a/b:1").is_err());
}

#[test]
fn leftovers_of_a_crash_are_removed_by_open() {
    let test = TestStore::new();
    test.import(&layout("a/b:1", "x")).unwrap();
    let store = test.path().join("store");
    // As left by a process that was killed before it wrote the record, and by one that was killed while unpacking.
    let orphan = store.join(format!("layers/sha256-{}", "0".repeat(64)));
    std::fs::create_dir_all(orphan.join("fs/a")).unwrap();
    std::fs::create_dir_all(store.join("tmp/half/fs")).unwrap();
    std::fs::write(store.join("tmp/file"), "").unwrap();
    let opened = ImageStore::open(&store).unwrap();
    assert_eq!(test.leftovers(), (2, 0));
    assert!(opened.layers("a/b:1").unwrap().iter().all(|layer| layer.is_dir()));
}

/// Environment variable with the directory for the process that is killed.
const IMPORT_DIRECTORY: &str = "IMAGES_TEST_IMPORT";

#[test]
fn import_in_a_process_that_is_killed() {
    let Some(directory) = std::env::var_os(IMPORT_DIRECTORY) else { return };
    let directory = std::path::PathBuf::from(directory);
    let store = ImageStore::open(directory.join("store")).unwrap();
    store.import(directory.join("layout.tar"), &|_| {}).unwrap();
}

#[tokio::test]
async fn killing_an_import_at_any_time_leaves_no_partial_image() {
    let mut layers = Vec::new();
    for n in 0..3 {
        let mut layer = Layer::new();
        for m in 0..100 {
            layer = layer.file(&format!("d{m}/f{n}"), &format!("{n}").repeat(2_000));
        }
        layers.push(layer.build());
    }
    let layout = Layout::default().image("a/b:1", &layers, json!({}));
    let (mut killed, mut halves) = (0, 0);
    // Kill it later each time, depending on the number of stored layers, until it completes.
    for min_layers in 0.. {
        let test = TestStore::new();
        layout.write(test.path());
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "images::sharing::import_in_a_process_that_is_killed"])
            .env(IMPORT_DIRECTORY, test.path())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let ended = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break Some(status);
            }
            let (stored, temporary) = test.leftovers();
            if stored >= min_layers && temporary > 0 {
                break None;
            }
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        };
        child.kill().unwrap();
        child.wait().unwrap();
        killed += usize::from(ended.is_none());
        halves += test.leftovers().1;
        // The next process finds all of the image or none of it, and can import it.
        let store = ImageStore::open(test.path().join("store")).unwrap();
        let whole = store.layers("a/b:1").map_or(0, |layers| layers.len());
        assert_eq!(test.leftovers(), (whole, 0));
        assert!(whole == 0 || whole == 3);
        store.import(test.path().join("layout.tar"), &|_| {}).unwrap();
        for (layer, n) in store.layers("a/b:1").unwrap().iter().zip([2, 1, 0]) {
            let files = (0..100).map(|m| layer.join(format!("d{m}/f{n}")));
            assert!(files.map(|file| file.metadata().unwrap().len()).all(|size| size == 2_000));
        }
        if ended.is_some() {
            break;
        }
    }
    assert!(killed > 0 && halves > 0, "{killed} killed, {halves} partial layers");
}

#[test]
fn a_moved_tag_refers_to_the_newer_image_and_the_older_keeps_its_digest() {
    let test = TestStore::new();
    let old = test.import(&layout("a/b:1", "old")).unwrap().remove(0);
    let new = test.import(&layout("a/b:1", "new")).unwrap().remove(0);
    assert_ne!(old.id, new.id);
    assert_eq!(test.store.layers("a/b:1").unwrap(), test.store.layers(&new.id).unwrap());
    assert!(test.store.layers(&old.digests[0]).is_ok());
    let tagged = test.store.tag(&old.id, "a/b:old").unwrap();
    assert_eq!(tagged.tags, ["docker.io/a/b:old"]);
}
