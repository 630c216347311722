//! Several at once, crashes, and what may be taken away.

use super::Place;
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
    let place = Place::new();
    let other = ImageStore::open(place.path().join("store")).unwrap();
    place.import(&layout("a/b:1", "x")).unwrap();
    assert!(other.config("a/b:1").is_ok());
}

#[test]
fn many_imports_of_one_image_at_once_make_it_once() {
    let place = Place::new();
    let file = layout("a/b:1", "x").write(place.path());
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let store = ImageStore::open(place.path().join("store")).unwrap();
                store.import(&file, &|_| {}).unwrap();
            });
        }
    });
    let store = ImageStore::open(place.path().join("store")).unwrap();
    assert_eq!(store.layers("a/b:1").unwrap().len(), 2);
    assert_eq!(place.leftovers(), (2, 0));
}

#[tokio::test]
async fn removal_leaves_layers_that_others_need() {
    let place = Place::new();
    place.import(&layout("a/one:1", "1")).unwrap();
    place.import(&layout("a/two:1", "2")).unwrap();
    assert_eq!(place.leftovers().0, 3);
    let id =
        place.store.find(&runtime::ImageReference("a/one:1".into())).await.unwrap().unwrap().id;
    place.store.remove(&id).await.unwrap();
    assert_eq!(place.leftovers().0, 2);
    for layer in place.store.layers("a/two:1").unwrap() {
        assert!(layer.is_dir());
    }
    assert!(place.store.remove(&id).await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn layers_under_a_container_outlive_their_image() {
    let place = Place::new();
    place.import(&layout("a/b:1", "x")).unwrap();
    let layers = place.store.layers("a/b:1").unwrap();
    place.store.hold("c1", "a/b:1").unwrap();
    place.store.hold("c2", "a/b:1").unwrap();
    place.store.remove("a/b:1").await.unwrap();
    // Over a restart, too.
    let store = ImageStore::open(place.path().join("store")).unwrap();
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
fn what_a_crash_left_is_gone_after_open() {
    let place = Place::new();
    place.import(&layout("a/b:1", "x")).unwrap();
    let store = place.path().join("store");
    // As a process killed between the shelf and the record leaves it, and one killed while unpacking.
    let orphan = store.join(format!("layers/sha256-{}", "0".repeat(64)));
    std::fs::create_dir_all(orphan.join("fs/a")).unwrap();
    std::fs::create_dir_all(store.join("tmp/half/fs")).unwrap();
    std::fs::write(store.join("tmp/file"), "").unwrap();
    let opened = ImageStore::open(&store).unwrap();
    assert_eq!(place.leftovers(), (2, 0));
    assert!(opened.layers("a/b:1").unwrap().iter().all(|layer| layer.is_dir()));
}

/// Where the process to be killed finds its work; not set when the test runs by itself.
const VICTIM: &str = "IMAGES_TEST_IMPORT";

#[test]
fn a_process_that_imports_and_is_killed() {
    let Some(directory) = std::env::var_os(VICTIM) else { return };
    let directory = std::path::PathBuf::from(directory);
    let store = ImageStore::open(directory.join("store")).unwrap();
    store.import(directory.join("layout.tar"), &|_| {}).unwrap();
}

#[tokio::test]
async fn a_kill_at_any_time_leaves_nothing_half_used() {
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
    // Later each time, by how much is there already, until it gets through.
    for wanted in 0.. {
        let place = Place::new();
        layout.write(place.path());
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "images::sharing::a_process_that_imports_and_is_killed"])
            .env(VICTIM, place.path())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let ended = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break Some(status);
            }
            let (shelf, making) = place.leftovers();
            if shelf >= wanted && making > 0 {
                break None;
            }
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        };
        child.kill().unwrap();
        child.wait().unwrap();
        killed += usize::from(ended.is_none());
        halves += place.leftovers().1;
        // Whoever comes next finds either all of the image or none of it, and can make it.
        let store = ImageStore::open(place.path().join("store")).unwrap();
        let whole = store.layers("a/b:1").map_or(0, |layers| layers.len());
        assert_eq!(place.leftovers(), (whole, 0));
        assert!(whole == 0 || whole == 3);
        store.import(place.path().join("layout.tar"), &|_| {}).unwrap();
        for (layer, n) in store.layers("a/b:1").unwrap().iter().zip([2, 1, 0]) {
            let files = (0..100).map(|m| layer.join(format!("d{m}/f{n}")));
            assert!(files.map(|file| file.metadata().unwrap().len()).all(|size| size == 2_000));
        }
        if ended.is_some() {
            break;
        }
    }
    assert!(killed > 0 && halves > 0, "{killed} killed, {halves} things half done");
}

#[test]
fn a_moved_tag_names_the_newer_image_and_the_older_stays_by_its_digest() {
    let place = Place::new();
    let old = place.import(&layout("a/b:1", "old")).unwrap().remove(0);
    let new = place.import(&layout("a/b:1", "new")).unwrap().remove(0);
    assert_ne!(old.id, new.id);
    assert_eq!(place.store.layers("a/b:1").unwrap(), place.store.layers(&new.id).unwrap());
    assert!(place.store.layers(&old.digests[0]).is_ok());
    let tagged = place.store.tag(&old.id, "a/b:old").unwrap();
    assert_eq!(tagged.tags, ["docker.io/a/b:old"]);
}
