//! A full disk or a damaged file: landfall reports it, loses nothing, and continues where possible.
//!
//! The full disk is a small tmpfs, which only root can mount. The tests of `store` cover which damage it recognises; here
//! `landfall up` refuses to start and names the file.

use crate::harness::down;
use crate::kernel_state::KernelState;
use crate::process::{self, Client, Landfall};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const DISK: &str = "size=12m";
/// More writes than fit on the disk.
const WRITES_MAX: usize = 400;
/// The node tries to start every ten seconds.
const NODE_START_MAX: Duration = Duration::from_secs(40);

/// A mounted tmpfs, unmounted at the end.
pub(crate) struct SmallDisk(PathBuf);

impl SmallDisk {
    pub(crate) fn mount(at: &Path, size: &str) -> SmallDisk {
        std::fs::create_dir_all(at).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("{size},mode=0700"), "landfall-test"])
            .arg(at)
            .output()
            .expect("mount can be run");
        let why = String::from_utf8_lossy(&mounted.stderr);
        assert!(mounted.status.success(), "this test needs root: run `make test` as root; {why}");
        SmallDisk(at.to_owned())
    }

    fn enlarge(&self) {
        let larger = Command::new("mount").args(["-o", "remount,size=64m"]).arg(&self.0).status();
        assert!(larger.unwrap().success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[tokio::test]
async fn a_full_disk_refuses_writes_clearly_answers_reads_and_loses_nothing() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("data");
    let disk = SmallDisk::mount(&dir, DISK);
    let mut landfall = Landfall::start(&dir).await;
    let mut client = landfall.client().await;

    let mut acknowledged = BTreeMap::new();
    let refusal = fill(&mut client, "before", &mut acknowledged).await;
    let status = refusal.expect("the disk gets full");
    assert_eq!(status["kind"], "Status", "{status}");
    assert_eq!(status["status"], "Failure", "{status}");
    assert_eq!(status["code"], 500, "{status}");
    assert_eq!(status["reason"], "InternalError", "{status}");
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("No space left on device"), "{message}");
    assert!(message.contains("store.redb"), "{message}");
    assert!(acknowledged.len() > 3, "something fits: {}", acknowledged.len());

    // Reads still work, and the server reports the problem.
    check(&mut client, &acknowledged).await;
    assert_eq!(client.get("/readyz").await.unwrap().code(), 500);
    assert!(landfall.is_alive());
    let name = acknowledged.keys().next().unwrap().clone();
    let patch = json!({ "data": { "fill": "y".repeat(300_000) } });
    let refused = client.merge(&format!("{CONFIG_MAPS}/{name}"), &patch).await.unwrap();
    assert_eq!(refused.code(), 500, "{}", refused.text());
    check(&mut client, &acknowledged).await;

    // After a restart on the full disk, the API still works, so that a user can delete objects.
    landfall.kill();
    landfall = Landfall::start(&dir).await;
    let mut client = landfall.client().await;
    check(&mut client, &acknowledged).await;
    assert_eq!(client.get("/readyz").await.unwrap().code(), 500);
    let stderr = process::stderr(&dir);
    assert!(stderr.contains("only reads and deletions are possible"), "{stderr}");
    let small = json!({ "metadata": { "name": "small" } });
    assert_eq!(client.post(CONFIG_MAPS, &small).await.unwrap().code(), 500);
    let (name, _) = acknowledged.pop_first().unwrap();
    let deleted = client.delete(&format!("{CONFIG_MAPS}/{name}")).await.unwrap();
    assert_eq!(deleted.code(), 200, "{}", deleted.text());
    check(&mut client, &acknowledged).await;

    // With free space again, everything continues without a restart.
    landfall.kill();
    disk.enlarge();
    landfall = Landfall::start(&dir).await;
    let mut client = landfall.client().await;
    check(&mut client, &acknowledged).await;
    let ballast = dir.join("ballast");
    let _ = Command::new("dd")
        .args(["if=/dev/zero", "bs=64k", "status=none"])
        .arg(format!("of={}", ballast.display()))
        .status();
    fill(&mut client, "ballast", &mut acknowledged).await.expect("the disk is full again");
    std::fs::remove_file(&ballast).unwrap();
    let mut after = None;
    for i in 0..100 {
        let object = json!({ "metadata": { "name": format!("after-{i}") } });
        let reply = client.post(CONFIG_MAPS, &object).await.unwrap();
        if reply.code() == 201 {
            after = Some(reply.json());
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let after = after.expect("writes work again once there is room");
    acknowledged.insert(after["metadata"]["name"].as_str().unwrap().to_owned(), after);
    check(&mut client, &acknowledged).await;
    assert_eq!(client.get("/readyz").await.unwrap().code(), 200);

    landfall.kill();
    let landfall = Landfall::start(&dir).await;
    check(&mut landfall.client().await, &acknowledged).await;
    landfall.stop().await;
    process::assert_no_panic(&dir);
}

/// A node cannot write anything on this disk, not even its lease. The API must work nevertheless, and the node starts
/// when there is space again.
#[tokio::test]
async fn a_full_disk_does_not_keep_a_server_with_a_node_from_starting() {
    let kernel = KernelState::capture();
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("data");
    let disk = SmallDisk::mount(&dir, DISK);
    let landfall = Landfall::start_with_node(&dir).await;
    let mut client = landfall.client().await;
    let mut acknowledged = BTreeMap::new();
    fill(&mut client, "before", &mut acknowledged).await.expect("the disk gets full");
    landfall.kill();
    // Neither the agent nor the store has a byte left.
    let _ = std::fs::remove_file(dir.join("store.redb.reserve"));
    fill_up(&dir.join("ballast"));

    let mut landfall = Landfall::start_with_node(&dir).await;
    let mut client = landfall.client().await;
    check(&mut client, &acknowledged).await;
    assert_eq!(client.get("/readyz").await.unwrap().code(), 500);
    let (name, _) = acknowledged.pop_first().unwrap();
    let deleted = client.delete(&format!("{CONFIG_MAPS}/{name}")).await.unwrap();
    assert_eq!(deleted.code(), 200, "{}", deleted.text());
    assert!(landfall.is_alive(), "{}", process::stderr(&dir));

    disk.enlarge();
    let started = || process::stderr(&dir).contains("the node has started");
    let deadline = clock::now() + NODE_START_MAX;
    while !started() && clock::now() < deadline {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(started(), "{}", process::stderr(&dir));
    assert_eq!(client.get("/readyz").await.unwrap().code(), 200);
    down(&dir);
    drop(landfall);
    process::assert_no_panic(&dir);
    kernel.assert_unchanged(&dir.join("run"));
}

/// Writes until the disk has no free byte.
fn fill_up(file: &Path) {
    for size in ["64k", "1"] {
        let _ = Command::new("dd")
            .args(["if=/dev/zero", &format!("bs={size}"), "status=none", "oflag=append"])
            .arg("conv=notrunc")
            .arg(format!("of={}", file.display()))
            .stderr(std::process::Stdio::null())
            .status();
    }
}

/// Creates objects until the server rejects one; returns the error.
async fn fill(
    client: &mut Client,
    prefix: &str,
    acknowledged: &mut BTreeMap<String, Value>,
) -> Option<Value> {
    for i in 0..WRITES_MAX {
        let name = format!("{prefix}-{i}");
        let object =
            json!({ "metadata": { "name": name }, "data": { "fill": "x".repeat(200_000) } });
        let reply = client.post(CONFIG_MAPS, &object).await.unwrap();
        if reply.code() != 201 {
            return Some(reply.json());
        }
        acknowledged.insert(name, reply.json());
    }
    None
}

/// Checks that exactly the acknowledged objects exist (and those of every namespace).
async fn check(client: &mut Client, acknowledged: &BTreeMap<String, Value>) {
    for (name, object) in acknowledged {
        let reply = client.get(&format!("{CONFIG_MAPS}/{name}")).await.unwrap();
        assert!(reply.json() == *object, "{name} is not what was acknowledged");
    }
    let list = client.get(CONFIG_MAPS).await.unwrap().json();
    let names = list["items"].as_array().unwrap().iter();
    let names = names.map(|item| item["metadata"]["name"].as_str().unwrap());
    let unknown: Vec<&str> = names
        .filter(|name| !acknowledged.contains_key(*name) && *name != "kube-root-ca.crt")
        .collect();
    assert!(unknown.is_empty(), "never acknowledged, but there: {unknown:?}");
}

#[tokio::test]
async fn a_damaged_file_is_refused_by_name() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("data");
    let landfall = Landfall::start(&dir).await;
    let mut client = landfall.client().await;
    let treasure = "treasure".repeat(2000);
    let object = json!({ "metadata": { "name": "kept" }, "data": { "treasure": treasure } });
    assert_eq!(client.post(CONFIG_MAPS, &object).await.unwrap().code(), 201);
    landfall.stop().await;

    type Damage = fn(&Path);
    let damages: &[(&str, &str, Damage)] = &[
        ("cut in half", "store.redb", |path| {
            let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
            file.set_len(file.metadata().unwrap().len() / 2).unwrap();
        }),
        ("another kind of file", "store.redb", |path| {
            std::fs::write(path, "this is a shopping list\n".repeat(1000)).unwrap();
        }),
        ("an object overwritten", "store.redb", |path| {
            let bytes = std::fs::read(path).unwrap();
            let word = b"treasuretreasure";
            let mut at = bytes.windows(word.len()).position(|window| window == word).unwrap();
            let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
            // Every copy: free pages may contain older ones.
            while let Some(next) = bytes[at..].windows(word.len()).position(|w| w == word) {
                at += next;
                file.write_all_at(b"T", at as u64).unwrap();
                at += 1;
            }
        }),
        ("zeros at the front", "store.redb", |path| {
            let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
            file.write_all_at(&[0; 4096], 0).unwrap();
        }),
        ("a key that is none", "pki/ca.key", |path| std::fs::write(path, "no key").unwrap()),
        ("a certificate that is none", "pki/ca.crt", |path| std::fs::write(path, "x").unwrap()),
        ("an empty key", "pki/sa.key", |path| std::fs::write(path, "").unwrap()),
        ("an empty token", "admin.token", |path| std::fs::write(path, "").unwrap()),
    ];
    for (what, file, damage) in damages {
        let path = dir.join(file);
        let sound = std::fs::read(&path).unwrap();
        damage(&path);
        let refused = Command::new("timeout")
            .args(["20", env!("CARGO_BIN_EXE_landfall")])
            .args(["up", "--no-node", "--no-scheduler", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(&dir)
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&refused.stderr);
        println!("{what}: {stderr}");
        assert_eq!(refused.status.code(), Some(1), "{what}: it started nevertheless");
        assert!(stderr.contains(&*path.to_string_lossy()), "{what}: no {file} in {stderr:?}");
        std::fs::write(&path, sound).unwrap();
    }

    let landfall = Landfall::start(&dir).await;
    let kept = landfall.client().await.get(&format!("{CONFIG_MAPS}/kept")).await.unwrap();
    assert_eq!(kept.json()["data"]["treasure"], treasure.as_str());
}
