//! Routes follow the Node objects of a real API server. The node under test is `a`, with the address 192.0.2.1.

use client::{Client, ObjectKey};
use k8s_openapi::api::core::v1::Node;
use network::{Cidr, Pods, PodsConfig};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use testbed::TestServer;
use traffic::Watched;
use traffic::routes::{self, Config, Running, Status};

/// Every change takes milliseconds. After this time the test fails.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long to wait for a change that must not come.
const SHORT: Duration = Duration::from_millis(300);

/// Runs `test` in new network and mount namespaces.
fn isolated<F: Future<Output = ()>>(test: impl FnOnce(PathBuf) -> F + Send + 'static) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_path_buf();
    let thread = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)
            .expect("this test needs root: run `make test` as root");
        let none: Option<&str> = None;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
        run("ip link set lo up; ip link add eth0 type veth peer name wire; ip link set wire up");
        run("ip address add 192.0.2.1/24 dev eth0; ip link set eth0 up");
        run("ip route add default via 192.0.2.254");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test(path));
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Output of a shell command in this network namespace.
fn run(line: &str) -> String {
    let output = Command::new("sh").args(["-c", line]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).to_string();
    assert!(output.status.success(), "{line}: {}{text}", String::from_utf8_lossy(&output.stderr));
    text
}

async fn open(directory: &Path) -> Arc<Pods> {
    let config = PodsConfig {
        state_dir: directory.join("state"),
        netns_dir: directory.join("netns"),
        link: "lf0".into(),
        cidrs: vec!["10.77.1.0/24".parse::<Cidr>().unwrap()],
        cluster_cidrs: vec![],
        table: "landfall-lf0".into(),
        mtu: 1450,
    };
    Arc::new(Pods::open(config).await.unwrap())
}

fn start(client: &Client, pods: &Arc<Pods>) -> Running {
    let config = Config::new("a", &["192.0.2.1".parse().unwrap()]);
    routes::start(Watched::start(client), pods.clone(), config)
}

async fn create(client: &Client, name: &str, address: &str, range: &str) {
    let node = json!({
        "metadata": { "name": name },
        "spec": { "podCIDR": range, "podCIDRs": [range] },
    });
    client.create::<Node>(&typed::from_value(node).unwrap()).await.unwrap();
    set_address(client, name, address).await;
}

async fn set_address(client: &Client, name: &str, address: &str) {
    let status =
        json!({ "status": { "addresses": [{ "type": "InternalIP", "address": address }] } });
    client.patch_status::<Node>(&ObjectKey::cluster(name), &status).await.unwrap();
}

async fn delete(client: &Client, name: &str) {
    let options = client::DeleteOptions::default();
    client.delete::<Node>(&ObjectKey::cluster(name), &options).await.unwrap();
}

/// Destinations and next hops of the routes to other nodes.
fn routed() -> Vec<String> {
    let text = run("ip route show proto 108");
    text.lines().map(|line| line.split(' ').take(5).collect::<Vec<_>>().join(" ")).collect()
}

/// Waits until the routes are these.
async fn until_routes(running: &Running, expected: &[&str]) {
    let mut status = running.status();
    let wait = async {
        loop {
            status.borrow_and_update();
            if routed() == expected {
                return;
            }
            status.changed().await.unwrap();
        }
    };
    let done = tokio::time::timeout(PATIENCE, wait).await;
    assert!(
        done.is_ok(),
        "{:?}, expected {expected:?}; {:?}",
        routed(),
        *running.status().borrow()
    );
}

async fn until_status(running: &Running, matches: impl Fn(&Status) -> bool) -> Status {
    let mut status = running.status();
    let found = tokio::time::timeout(PATIENCE, status.wait_for(|status| matches(status))).await;
    found.unwrap_or_else(|_| panic!("{:?}", *running.status().borrow())).unwrap().clone()
}

const TO_B: &str = "10.77.2.0/24 via 192.0.2.2 dev eth0";
const TO_C: &str = "10.77.3.0/24 via 10.77.3.1 dev lf0v";

#[test]
fn routes_follow_nodes() {
    // NET-2, NET-5: every node's pods have a route and are not masqueraded.
    isolated(|directory| async move {
        let (server, pods) = (TestServer::start().await, open(&directory).await);
        let client = server.admin();
        create(&client, "a", "192.0.2.1", "10.77.1.0/24").await;
        create(&client, "b", "192.0.2.2", "10.77.2.0/24").await;
        let running = start(&server.node("a"), &pods); // With the rights of the agent.
        until_routes(&running, &[TO_B]).await;
        create(&client, "c", "198.51.100.3", "10.77.3.0/24").await;
        until_routes(&running, &[TO_B, TO_C]).await;
        let set = run("nft list set ip landfall-lf0 cluster-ranges");
        for range in ["10.77.1.0/24", "10.77.2.0/24", "10.77.3.0/24"] {
            assert!(set.contains(range), "{set}");
        }
        set_address(&client, "b", "192.0.2.22").await;
        until_routes(&running, &["10.77.2.0/24 via 192.0.2.22 dev eth0", TO_C]).await;
        assert!(run("bridge fdb show dev lf0v").contains("192.0.2.22"));

        // A change of a Node that says nothing about routes changes nothing.
        let before = running.status().borrow().changes;
        let label = json!({ "metadata": { "labels": { "disk": "ssd" } } });
        client.patch_merge::<Node>(&ObjectKey::cluster("b"), &label).await.unwrap();
        delete(&client, "c").await;
        until_routes(&running, &["10.77.2.0/24 via 192.0.2.22 dev eth0"]).await;
        assert_eq!(running.status().borrow().changes, before + 1);
        assert!(!run("nft list set ip landfall-lf0 cluster-ranges").contains("10.77.3.0/24"));
        delete(&client, "b").await;
        until_routes(&running, &[]).await;
        running.stop().await;
        pods.remove().await.unwrap();
        server.stop().await;
    });
}

#[test]
fn a_node_that_cannot_be_routed_to_is_reported_and_the_others_work() {
    isolated(|directory| async move {
        let (server, pods) = (TestServer::start().await, open(&directory).await);
        let client = server.admin();
        create(&client, "b", "192.0.2.2", "10.77.2.0/24").await;
        create(&client, "wrong", "192.0.2.9", "10.77.1.0/25").await;
        let running = start(&client, &pods);
        let status = until_status(&running, |status| !status.problems.is_empty()).await;
        let text = "pods of node wrong (10.77.1.0/25) are unreachable: \
                    the range overlaps 10.77.1.0/24 of an earlier node";
        assert_eq!(status.problems, [text]);
        assert_eq!(status.network_unavailable, None);
        until_routes(&running, &[TO_B]).await;
        delete(&client, "wrong").await;
        until_status(&running, |status| status.problems.is_empty()).await;
        running.stop().await;
        server.stop().await;
    });
}

#[test]
fn routes_stay_while_the_api_server_is_unreachable() {
    isolated(|directory| async move {
        let (server, pods) = (TestServer::start().await, open(&directory).await);
        let client = server.over_https().await;
        create(&client, "b", "192.0.2.2", "10.77.2.0/24").await;
        create(&client, "c", "198.51.100.3", "10.77.3.0/24").await;
        let running = start(&client, &pods);
        until_routes(&running, &[TO_B, TO_C]).await;
        let mut after = None;
        let server = server
            .restart(async || {
                let mut status = running.status();
                status.mark_unchanged();
                let changed = tokio::time::timeout(SHORT, status.changed()).await;
                assert!(changed.is_err() && routed() == [TO_B, TO_C]);
                // The agent restarts as well. It knows no Nodes, and leaves the routes alone.
                let new = start(&client, &pods);
                let changed = tokio::time::timeout(SHORT, new.status().changed()).await;
                assert!(changed.is_err() && routed() == [TO_B, TO_C]);
                after = Some(new);
            })
            .await;
        running.stop().await;
        let running = after.unwrap();
        until_status(&running, |status| status.ready).await;
        assert_eq!(routed(), [TO_B, TO_C]);
        delete(&client, "c").await;
        until_routes(&running, &[TO_B]).await;
        running.stop().await;
        server.stop().await;
    });
}

#[test]
fn a_failing_change_is_retried() {
    isolated(|directory| async move {
        let (server, pods) = (TestServer::start().await, open(&directory).await);
        let client = server.admin();
        create(&client, "c", "198.51.100.3", "10.77.3.0/24").await;
        run("ip link add lf0v type bridge"); // Somebody else's device.
        let running = start(&client, &pods);
        let failing = until_status(&running, |status| status.network_unavailable.is_some()).await;
        let why = failing.network_unavailable.unwrap();
        assert!(why.starts_with("setting routes to other nodes failed: "), "{why}");
        assert!(!failing.ready && routed().is_empty());
        run("ip link delete lf0v");
        until_routes(&running, &[TO_C]).await;
        until_status(&running, |status| status.network_unavailable.is_none()).await;
        running.stop().await;
        server.stop().await;
    });
}
