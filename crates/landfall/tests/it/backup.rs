//! `landfall backup` and `landfall restore`, as an administrator uses them.
//!
//! The content of a backup is tested in `server`, restoring a store in `store`.

use crate::disk::SmallDisk;
use crate::harness::{LANDFALL, etcd::Etcd};
use crate::process::{Client, Landfall, Reach};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// The number of writes before the backup, so that the server is not idle.
const PAIRS_MIN: u64 = 20;

/// Runs landfall; returns stdout, or stderr if it fails.
fn run(args: &[&str], path: &Path) -> Result<String, String> {
    let (command, rest) = args.split_first().unwrap();
    let output = Command::new(LANDFALL).arg(command).arg(path).args(rest).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(text(&output.stderr)),
    }
}

fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

async fn number(client: &mut Client, name: &str) -> u64 {
    let reply = client.get(&format!("{MAPS}/{name}")).await.unwrap();
    reply.json()["data"]["n"].as_str().unwrap().parse().unwrap()
}

/// Writes `a`, then `b` with the same number, again and again. Returns the last number that both have.
async fn write_pairs(reach: Reach, enough: Arc<AtomicBool>, running: Arc<AtomicBool>) -> u64 {
    let mut client = reach.connect().await.unwrap();
    for number in 1.. {
        for name in ["a", "b"] {
            let patch = json!({ "data": { "n": number.to_string() } });
            let reply = client.merge(&format!("{MAPS}/{name}"), &patch).await.unwrap();
            assert_eq!(reply.code(), 200, "{}", reply.text());
        }
        enough.fetch_or(number >= PAIRS_MIN, Ordering::AcqRel);
        if !running.load(Ordering::Acquire) {
            return number;
        }
    }
    unreachable!("numbers do not end")
}

/// All objects with a uid, by their path, without their resourceVersion.
async fn objects(client: &mut Client) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    let kinds = ["namespaces", "secrets", "serviceaccounts", "configmaps", "services"];
    let paths = kinds.map(|kind| format!("/api/v1/{kind}"));
    let others = ["clusterroles", "clusterrolebindings"];
    let others = others.map(|kind| format!("/apis/rbac.authorization.k8s.io/v1/{kind}"));
    for path in paths.iter().chain(&others) {
        for mut item in client.get(path).await.unwrap().json()["items"].as_array().unwrap().clone()
        {
            let metadata = item["metadata"].as_object_mut().unwrap();
            metadata.remove("resourceVersion");
            found.insert(format!("{path} {}", metadata["uid"]), item);
        }
    }
    found
}

async fn check_round_trip(from: &[&str], to: &[&str]) {
    let home = tempfile::tempdir().unwrap();
    let (old, new) = (home.path().join("old"), home.path().join("new"));
    let landfall = Landfall::start_with(&old, from).await;
    let mut client = landfall.client().await;
    for name in ["a", "b"] {
        let object = json!({ "metadata": { "name": name }, "data": { "n": "0" } });
        assert_eq!(client.post(MAPS, &object).await.unwrap().code(), 201);
    }
    let secret = json!({ "metadata": { "name": "s" }, "stringData": { "password": "hunter2" } });
    let secrets = "/api/v1/namespaces/default/secrets";
    assert_eq!(client.post(secrets, &secret).await.unwrap().code(), 201);
    let review =
        json!({ "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {} });
    let token = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let token = client.post(token, &review).await.unwrap().json()["status"]["token"].clone();

    let (enough, running) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(true)));
    let writing = tokio::spawn(write_pairs(landfall.reach(), enough.clone(), running.clone()));
    while !enough.load(Ordering::Acquire) {
        client.get(MAPS).await.unwrap();
    }
    let acknowledged = number(&mut client, "b").await;
    let file = home.path().join("backup");
    let data_dir = old.to_str().unwrap().to_owned();
    let (at, dir) = (file.clone(), data_dir.clone());
    let taken = tokio::task::spawn_blocking(move || run(&["backup", "--data-dir", &dir], &at));
    let output = taken.await.unwrap().unwrap();
    assert!(output.contains("keep it as safe as"), "{output}");
    running.store(false, Ordering::Release);
    let written = writing.await.unwrap();
    assert!(written > acknowledged, "nothing was written during the backup");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let refused = run(&["backup", "--data-dir", &data_dir], &file).unwrap_err();
    assert!(refused.contains("exists already"), "{refused}");

    let newest = client.get(&format!("{MAPS}/b")).await.unwrap().json();
    let newest = newest["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let before = objects(&mut client).await;
    landfall.kill();

    let new_dir = new.to_str().unwrap();
    let mut args = vec!["restore", "--data-dir", new_dir];
    args.extend(to);
    let output = run(&args, &file).unwrap();
    assert!(output.contains("start it with: landfall up"), "{output}");
    let refused = run(&args, &file).unwrap_err();
    assert!(refused.contains("is not empty"), "{refused}");
    let landfall = Landfall::start_with(&new, to).await;
    // With the old token and the old authority.
    let admin = std::fs::read_to_string(old.join("admin.token")).unwrap();
    let mut client = landfall.reach().with_token(admin.trim()).connect().await.unwrap();
    let (a, b) = (number(&mut client, "a").await, number(&mut client, "b").await);
    assert!(acknowledged <= b && a <= written, "{acknowledged} <= {b}, {a} <= {written}");
    assert!(a == b || a == b + 1, "not one moment: a is {a}, b is {b}");
    let after = objects(&mut client).await;
    for (place, object) in &before {
        let there = after.get(place).unwrap_or_else(|| panic!("{place} is missing"));
        let changes = ["a", "b"].iter().any(|name| object["metadata"]["name"] == **name)
            || object["metadata"]["name"] == "kubernetes"
            // A controller writes the rules of aggregated roles, in any order.
            || !object["aggregationRule"].is_null();
        assert!(changes || there == object, "{object} has become {there}");
    }

    // A client with an old resourceVersion has to list again and cannot overwrite anything.
    let watch = client.get(&format!("{MAPS}?watch=true&resourceVersion={newest}")).await.unwrap();
    assert!(watch.text().contains("\"code\":410"), "{}", watch.text());
    let list = client.get(&format!("{MAPS}?resourceVersion={newest}")).await.unwrap();
    assert_eq!(list.code(), 200);
    for item in list.json()["items"].as_array().unwrap() {
        let revision = item["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
        assert!(revision.parse::<u64>().unwrap() > newest.parse::<u64>().unwrap());
    }
    let stale = json!({ "metadata": { "resourceVersion": newest }, "data": { "n": "7" } });
    assert_eq!(client.merge(&format!("{MAPS}/b"), &stale).await.unwrap().code(), 409);
    let token = token.as_str().unwrap();
    let mut account = landfall.reach().with_token(token).connect().await.unwrap();
    let whoami = json!({ "kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1" });
    let whoami =
        account.post("/apis/authentication.k8s.io/v1/selfsubjectreviews", &whoami).await.unwrap();
    assert_eq!(
        whoami.json()["status"]["userInfo"]["username"],
        "system:serviceaccount:default:default",
        "a token from before the backup is valid"
    );
    landfall.stop().await;
    crate::process::assert_no_panic(&new);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_taken_during_writes_is_restored_as_the_same_cluster() {
    check_round_trip(&[], &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_on_etcd_is_restored_into_another_etcd() {
    let (old, new) = (Etcd::start(), Etcd::start());
    let store = |etcd: &Etcd| format!("etcd://{}", etcd.address);
    check_round_trip(&["--store", &store(&old)], &["--store", &store(&new)]).await;
    // A restore does not overwrite an existing cluster.
    let home = tempfile::tempdir().unwrap();
    let landfall = Landfall::start_with(&home.path().join("data"), &[]).await;
    let file = home.path().join("backup");
    run(&["backup", "--data-dir", landfall.dir.to_str().unwrap()], &file).unwrap();
    let dir = home.path().join("new");
    let store = store(&new);
    let args = ["restore", "--data-dir", dir.to_str().unwrap(), "--store", &store];
    let refused = run(&args, &file).unwrap_err();
    assert!(refused.contains("etcd already holds keys"), "{refused}");
    assert!(!dir.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_on_an_embedded_store_is_restored_into_etcd() {
    let etcd = Etcd::start();
    check_round_trip(&[], &["--store", &format!("etcd://{}", etcd.address)]).await;
}

#[tokio::test]
async fn a_backup_that_does_not_fit_or_is_damaged_leaves_nothing() {
    let home = tempfile::tempdir().unwrap();
    let landfall = Landfall::start(&home.path().join("data")).await;
    let data_dir = landfall.dir.to_str().unwrap();
    let take = |file: &Path| run(&["backup", "--data-dir", data_dir], file);

    let disk = home.path().join("disk");
    let _mounted = SmallDisk::mount(&disk, "size=64k");
    let refused = take(&disk.join("backup")).unwrap_err();
    assert!(refused.contains("No space left on device"), "{refused}");
    assert_eq!(names(&disk), Vec::<String>::new());

    let file = home.path().join("backup");
    take(&file).unwrap();
    let output = run(&["restore", "--check"], &file).unwrap();
    assert!(output.contains("is complete: "), "{output}");
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let new = home.path().join("new");
    for args in [&["restore", "--check"][..], &["restore", "--data-dir", new.to_str().unwrap()]] {
        let refused = run(args, &file).unwrap_err();
        assert!(refused.contains("backup: it is damaged"), "{refused}");
    }
    // A restore onto a full disk fails.
    bytes[middle] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let full = disk.join("new");
    let refused = run(&["restore", "--data-dir", full.to_str().unwrap()], &file).unwrap_err();
    assert!(refused.contains("No space left on device"), "{refused}");
    assert!(!new.exists() && names(&disk).is_empty(), "{:?}", names(&disk));

    landfall.stop().await;
    let refused = run(&["backup", "--data-dir", home.path().join("data").to_str().unwrap()], &new);
    assert!(refused.unwrap_err().contains("no landfall is running"));
    assert!(!new.exists());
}
