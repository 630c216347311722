//! Session affinity as the conformance tests check it, and its timeout.

use super::*;
use tokio::time::{Duration, Instant};

/// After this time a choice of two seconds must have ended.
const EXPIRED: Duration = Duration::from_secs(15);

const NODE_PORT: &str = "192.0.2.1:30080";

/// A Service at a ClusterIP and at a node port.
fn sticky(pods: &[&Attachment], affinity_seconds: Option<u32>) -> ServiceRules {
    let entry = ServiceEntry { affinity_seconds, ..entry(pods) };
    let mut rules = service(pods, entry.clone());
    rules.entries.insert(frontend(NODE_IP, 30080), ServiceEntry { masquerade: true, ..entry });
    rules
}

/// NET-39: one host with affinity, several without, and one again; at the ClusterIP and at the node port.
#[test]
fn net_39_affinity_can_be_switched_on_and_off() {
    isolated(|directory| async move {
        let mut node = Node::new(&directory).await;
        let client = node.pod("client").await;
        let pods = [node.pod("a").await, node.pod("b").await, node.pod("c").await];
        let all: Vec<&Attachment> = pods.iter().collect();
        let clients = [
            (client.netns.clone(), "10.96.0.9:80"),
            (client.netns.clone(), NODE_PORT),
            (node.outside.clone(), NODE_PORT),
        ];
        for (from, to) in &clients {
            let hosts = |calls| names(Some(from), to, calls);
            node.set("d/s", sticky(&all, Some(10_800)));
            assert_eq!(hosts(16).len(), 1, "{to}");
            node.set("d/s", sticky(&all, None));
            assert!(hosts(30).len() > 1, "{to} without affinity");
            node.set("d/s", sticky(&all, Some(10_800)));
            assert_eq!(hosts(15).len(), 1, "{to} again");
        }
        assert!(node.services.verify().unwrap());
    });
}

fn remembered() -> String {
    run(&format!("nft list map ip {TABLE} affinity"))
}

/// NET-40: a choice ends when no new connection has come for the timeout. A changed timeout applies to clients that
/// connect afterwards, known ones included.
#[test]
fn net_40_a_choice_ends_with_the_timeout_and_the_timeout_can_change() {
    isolated(|directory| async move {
        let mut node = Node::new(&directory).await;
        let client = node.pod("client").await;
        let pods = [node.pod("a").await, node.pod("b").await, node.pod("c").await];
        let all: Vec<&Attachment> = pods.iter().collect();
        let from = Some(client.netns.as_path());
        node.set("d/s", sticky(&all, Some(10_800)));
        let first = names(from, "10.96.0.9:80", 5);
        assert_eq!(first.len(), 1);
        assert!(remembered().contains("expires 2h59m"), "{}", remembered());

        node.set("d/s", sticky(&all, Some(2)));
        assert!(remembered().contains("elements"), "the change itself forgets nobody");
        let before = Instant::now();
        assert_eq!(names(from, "10.96.0.9:80", 2), first, "the client keeps its endpoint");
        while remembered().contains("elements") {
            assert!(before.elapsed() < EXPIRED, "{}", remembered());
        }
        assert!(before.elapsed().as_millis() > 1900, "not before the timeout");
        assert!(call_tcp(from, "10.96.0.9:80").is_ok());
        assert!(node.services.verify().unwrap());
    });
}
