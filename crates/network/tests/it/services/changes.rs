//! What changes of a Service do to open and to new connections, what they cost, and the order of decisions.

use super::*;
use crate::isolated::PATIENCE;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A busy machine makes calls slowly; a hundred of them must happen within this many rounds of changes.
const ROUNDS_MAX: usize = 5000;

/// A server that returns every byte.
pub(super) fn serve_echo(server: &Attachment, port: u16) {
    let listener = inside(&server.netns, move || TcpListener::bind(("0.0.0.0", port))).unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut byte = [0];
                while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
            });
        }
    });
}

pub(super) fn connect(client: &Attachment, to: &'static str) -> TcpStream {
    let stream = inside(&client.netns, move || TcpStream::connect(to)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

pub(super) fn answers(stream: &mut TcpStream) -> bool {
    let mut byte = [0];
    stream.write_all(b"x").is_ok() && stream.read_exact(&mut byte).is_ok()
}

/// NET-63, T-NET-22: rules decide about new connections. No change of a Service ends an open one.
#[test]
fn net_63_open_connections_survive_every_change_of_the_service() {
    isolated(|directory| async move {
        let mut node = Node::new(&directory).await;
        let (client, server) = (node.pod("client").await, node.pod("server").await);
        let other = node.pod("other").await;
        serve_echo(&server, 7);
        let echo = SocketAddr::new(server.addresses[0], 7);
        let at_echo = ServiceEntry { endpoints: [echo].into(), ..ServiceEntry::default() };
        node.set("d/s", service(&[&server], at_echo.clone()));
        let mut open = connect(&client, "10.96.0.9:80");
        assert!(answers(&mut open));
        let none = |unserved| ServiceEntry { unserved, ..ServiceEntry::default() };
        let sources: Arc<[_]> = [cidr("203.0.113.0/24")].into();
        for (change, entry) in [
            ("another endpoint", entry(&[&other])),
            ("no endpoint", none(Unserved::Reject)),
            ("no endpoint on this node", none(Unserved::Drop)),
            ("other sources only", ServiceEntry { sources: Some(sources), ..at_echo.clone() }),
            ("affinity", ServiceEntry { affinity_seconds: Some(60), ..at_echo }),
        ] {
            node.set("d/s", service(&[&server], entry));
            assert!(answers(&mut open), "{change}");
        }
        node.services.apply(vec![("d/s".into(), None)]).unwrap();
        node.services.sweep().unwrap();
        assert!(answers(&mut open), "the Service is gone");
        let new = call_tcp_within(Some(&client.netns), "10.96.0.9:80", SHORT);
        assert_eq!(new, Err(TimedOut), "a new connection");
    });
}

/// NET-68: while endpoints, their number, affinity and masquerading change, every new connection finds an endpoint.
#[test]
fn net_68_no_connection_fails_while_a_service_changes() {
    isolated(|directory| async move {
        let mut node = Node::new(&directory).await;
        let client = node.pod("client").await;
        let pods = [node.pod("a").await, node.pod("b").await, node.pod("c").await];
        let [a, b, c] = [&pods[0], &pods[1], &pods[2]];
        node.set("d/s", service(&[a], entry(&[a])));
        let done = Arc::new(AtomicBool::new(false));
        let calls = Arc::new(AtomicUsize::new(0));
        let (stop, netns) = (done.clone(), client.netns.clone());
        let called = calls.clone();
        let caller = std::thread::spawn(move || {
            let mut answers = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                answers.push(call_tcp(Some(&netns), "10.96.0.9:80"));
                called.fetch_add(1, Ordering::Relaxed);
            }
            answers
        });
        let sets: [&[&Attachment]; 6] = [&[b], &[a, b], &[a, b, c], &[c], &[a, b, c], &[c, a]];
        let mut round = 0;
        while round < 40 || calls.load(Ordering::Relaxed) < 100 {
            assert!(round < ROUNDS_MAX, "{calls:?} calls");
            round += 1;
            for pods in sets {
                let affinity_seconds = (round % 4 == 3).then_some(60);
                let masquerade = round % 3 == 2;
                let changed = ServiceEntry { affinity_seconds, masquerade, ..entry(pods) };
                node.set("d/s", service(pods, changed));
            }
            node.services.sweep().unwrap();
        }
        done.store(true, Ordering::Relaxed);
        let answers = caller.join().unwrap();
        let failed: Vec<_> = answers.iter().filter(|answer| answer.is_err()).collect();
        assert!(failed.is_empty(), "{} of {}: {failed:?}", failed.len(), answers.len());
        assert!(node.services.verify().unwrap());
    });
}

/// NET-70: a change costs a few elements, whatever the number of endpoints and of Services.
#[test]
fn net_70_a_change_is_a_few_elements_whatever_the_size_of_the_cluster() {
    isolated(|directory| async move {
        let mut node = Node::new(&directory).await;
        let endpoint = |n: u32| SocketAddr::from(([10, 77, (n >> 8) as u8, n as u8], 8080));
        let of = |numbers: std::ops::Range<u32>| {
            let endpoints = numbers.map(endpoint).collect();
            service(&[], ServiceEntry { endpoints, ..ServiceEntry::default() })
        };
        let others = (1..=1000_u32).map(|n| {
            let address = format!("10.96.{}.{}", 1 + (n >> 8), n & 255);
            let entry = ServiceEntry { endpoints: [endpoint(n)].into(), ..ServiceEntry::default() };
            let rules = ServiceRules {
                entries: [(frontend(&address, 80), entry)].into(),
                cluster_ips: [ip(&address)].into(),
                ..ServiceRules::default()
            };
            (format!("d/{n}").into(), Some(rules))
        });
        node.services.apply(others.collect()).unwrap();
        node.set("d/s", of(0..10_000));
        for (change, range) in [
            ("one more", 0..10_001),
            ("one less", 0..10_000),
            ("another first one", 1..10_001),
            ("the first one leaves", 2..10_001),
        ] {
            let sent = node.set("d/s", of(range));
            assert!(sent <= 5, "{change}: {sent} elements");
        }
        node.services.sweep().unwrap();
        assert!(node.services.verify().unwrap());
    });
}

/// NET-73, NET-67: sources are checked before anything else; then endpoints, ports that have none, ports that were not
/// declared, and addresses that no Service has.
#[test]
fn net_73_decisions_have_an_order() {
    isolated(|directory| async move {
        let mut node = Node::new(&directory).await;
        let (client, server) = (node.pod("client").await, node.pod("server").await);
        let sources: Arc<[_]> = [cidr("192.0.2.2/32")].into();
        let balanced = |entry| ServiceEntry { sources: Some(sources.clone()), ..entry };
        let rejected = ServiceEntry { unserved: Unserved::Reject, ..ServiceEntry::default() };
        let rules = |entry: &ServiceEntry| {
            let mut rules = service(&[], entry.clone());
            rules.entries.insert(frontend(NODE_IP, 80), balanced(entry.clone()));
            rules.entries.insert(frontend(NODE_IP, 30080), entry.clone());
            rules
        };
        node.set("d/s", rules(&rejected));
        let (pod, outside) = (Some(client.netns.as_path()), Some(node.outside.clone()));
        let call = |from: Option<&Path>, to: &str| call_tcp_within(from, to, SHORT);
        assert_eq!(call(pod, "192.0.2.1:80"), Err(TimedOut), "sources before endpoints");
        assert_eq!(call(outside.as_deref(), "192.0.2.1:80"), Err(ConnectionRefused));
        assert_eq!(call(outside.as_deref(), "192.0.2.1:30080"), Err(ConnectionRefused));
        assert_eq!(call(pod, "10.96.0.9:80"), Err(ConnectionRefused), "no endpoint");
        let dropped = ServiceEntry { unserved: Unserved::Drop, ..rejected.clone() };
        node.set("d/s", rules(&dropped));
        let to = "10.96.0.9:80";
        assert_eq!(call(pod, to), Err(TimedOut), "dropped before undeclared ports are rejected");
        assert_eq!(
            call(pod, "10.96.0.9:81"),
            Err(ConnectionRefused),
            "before unknown ones are dropped"
        );
        assert_eq!(call(pod, "10.96.0.8:81"), Err(TimedOut), "no Service has the address");

        // From endpoints to none and back is one transaction each.
        let served = ServiceEntry { masquerade: true, ..entry(&[&server]) };
        for _ in 0..2 {
            node.set("d/s", rules(&served));
            for to in ["10.96.0.9:80", "192.0.2.1:30080"] {
                assert_eq!(
                    call(pod, to),
                    Ok("server 10.77.3.1".into()),
                    "masqueraded after all checks"
                );
            }
            assert!(call(outside.as_deref(), "192.0.2.1:80").is_ok());
            node.set("d/s", rules(&rejected));
            for to in ["192.0.2.1:80", "192.0.2.1:30080"] {
                assert_eq!(call(outside.as_deref(), to), Err(ConnectionRefused), "{to}");
            }
        }
        assert!(node.services.verify().unwrap());
    });
}
