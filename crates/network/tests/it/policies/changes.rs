//! Changes of the policy tables while connections exist, and large tables.

use super::*;
use std::io::{Read, Write};
use std::net::TcpListener;

/// A connection that answers every byte with the same byte.
fn echo(server: &Attachment, client: &Attachment) -> TcpStream {
    let listener = inside(&server.netns, || TcpListener::bind("0.0.0.0:7")).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut byte = [0];
        while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
    });
    let to = format!("{}:7", address(server));
    let stream = inside(&client.netns, move || TcpStream::connect(to)).unwrap();
    stream.set_read_timeout(Some(crate::isolated::PATIENCE)).unwrap();
    stream
}

fn answers(stream: &mut TcpStream) -> bool {
    let mut byte = [0];
    stream.write_all(b"x").is_ok() && stream.read_exact(&mut byte).is_ok()
}

#[test]
fn net_133_t_net_22_established_connections_survive_every_change() {
    isolated(|directory| async move {
        let (_pods, [a, b, _]) = three_pods(&directory).await;
        let mut stream = echo(&b, &a);
        let deny = || {
            Plan::default()
                .isolate(Direction::Ingress, &b, &[])
                .isolate(Direction::Egress, &b, &[])
                .isolate(Direction::Egress, &a, &[])
                .0
        };
        let first = tables(&[POD_RANGE]).await;
        first.replace(deny()).await.unwrap();
        assert!(answers(&mut stream), "a new policy that denies it");
        assert!(!reaches(Some(&a), &format!("{}:80", address(&b))));
        drop(first);
        assert!(!reaches(Some(&a), &format!("{}:80", address(&b))), "stopping keeps the rules");
        let second = tables(&[POD_RANGE]).await;
        second.replace(deny()).await.unwrap();
        assert!(answers(&mut stream), "a new process");
        let mut end = deny();
        end.pods.values_mut().for_each(|pod| pod.life = Life::Deleted);
        second.update(end).await.unwrap();
        assert!(answers(&mut stream), "no policy any more");
        assert!(reaches(Some(&a), &format!("{}:80", address(&b))));
    });
}

#[test]
fn net_134_udp_flows_of_an_earlier_pod_are_forgotten() {
    isolated(|directory| async move {
        let (_pods, [a, b, _]) = three_pods(&directory).await;
        let client = inside(&a.netns, || std::net::UdpSocket::bind("0.0.0.0:5000").unwrap());
        client.set_read_timeout(Some(SHORT)).unwrap();
        let to = format!("{}:80", address(&b));
        let asks = || client.send_to(b"x", &to).is_ok() && client.recv(&mut [0; 99]).is_ok();
        assert!(asks());
        let tables = tables(&[POD_RANGE]).await;
        tables.replace(Plan::default().isolate(Direction::Ingress, &b, &[]).0).await.unwrap();
        assert!(asks(), "the flow is established");
        tables.forget_flows(vec![ip("10.77.3.99")]).await.unwrap();
        assert!(asks(), "flows of other addresses stay");
        tables.forget_flows(b.addresses.clone()).await.unwrap();
        assert!(!asks());
    });
}

#[test]
fn net_136_a_new_peer_is_one_element_and_no_rule_changes() {
    isolated(|directory| async move {
        let (_pods, [a, b, c]) = three_pods(&directory).await;
        let tables = tables(&[POD_RANGE]).await;
        let plan = Plan::default()
            .set("peers", SetKind::Addresses, &addresses(&[&a]))
            .chain(Direction::Ingress, "policy", &[allow(Some("peers"), Ports::Any)])
            .isolate(Direction::Ingress, &b, &["policy"]);
        tables.replace(plan.0).await.unwrap();
        let list = || run(&format!("nft -a list table ip {TABLE}"));
        let before = list();
        let to = format!("{}:80", address(&b));
        assert!(!reaches(Some(&c), &to));
        let (added, removed) = (BTreeSet::from_iter(addresses(&[&c])), BTreeSet::new());
        let (kind, life) = (SetKind::Addresses, Life::Kept);
        let change = SetChange { kind, life, added, removed };
        let mut plan = Plan::default();
        plan.0.sets.insert("peers".into(), change.clone());
        tables.update(plan.0).await.unwrap();
        // The handles of all rules are the same as before.
        assert_ne!(list(), before);
        assert_eq!(list().replace("10.77.3.2, 10.77.3.4", "10.77.3.2"), before);
        assert!(reaches(Some(&a), &to) && reaches(Some(&c), &to));
        let mut plan = Plan::default();
        let back = SetChange { added: BTreeSet::new(), removed: change.added, ..change };
        plan.0.sets.insert("peers".into(), back.clone());
        tables.update(plan.0.clone()).await.unwrap();
        assert_eq!(list(), before);
        // A change that does not fit is refused as a whole.
        assert!(tables.update(plan.0).await.is_err());
        assert_eq!(list(), before);
    });
}

#[test]
fn a_thousand_policies_and_ten_thousand_peers_are_written_in_bounded_time() {
    isolated(|directory| async move {
        let (_pods, [a, b, c]) = three_pods(&directory).await;
        let tables = tables(&[POD_RANGE]).await;
        let many = (0..10_000_u32).map(|i| std::net::Ipv4Addr::from(0x0a80_0000 + i));
        let many: Vec<Member> = many.map(|address| Member::Address(address.into())).collect();
        let mut plan = Plan::default().set("many", SetKind::Addresses, &many);
        let names: Vec<String> = (0..1000).map(|i| format!("policy-{i}")).collect();
        for (i, name) in names.iter().enumerate() {
            let peers = if i == 999 { addresses(&[&a]) } else { many[i..i + 10].to_vec() };
            plan = plan.set(&format!("peers-{i}"), SetKind::Addresses, &peers).chain(
                Direction::Ingress,
                name,
                &[
                    allow(Some("many"), Ports::Any),
                    allow(Some(&format!("peers-{i}")), Ports::Range(Tcp, 80, 80)),
                ],
            );
        }
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        for pod in [&a, &b, &c] {
            plan = plan.isolate(Direction::Ingress, pod, &names);
        }
        for i in 100..200 {
            let policies = names.iter().map(ToString::to_string).collect();
            plan.0.pods.insert(
                (Direction::Ingress, format!("lf0p{i}")),
                PodChange { life: Life::New, policies },
            );
        }
        let start = Instant::now();
        tables.replace(plan.0).await.unwrap();
        let replaced = start.elapsed();
        let start = Instant::now();
        let mut one = Plan::default();
        let added = BTreeSet::from_iter(addresses(&[&c]));
        let (kind, life) = (SetKind::Addresses, Life::Kept);
        let change = SetChange { kind, life, added, removed: BTreeSet::new() };
        one.0.sets.insert("peers-5".into(), change);
        tables.update(one.0).await.unwrap();
        let element = start.elapsed();
        let start = Instant::now();
        let new = Plan::default().chain(
            Direction::Ingress,
            "last",
            &[allow(None, Ports::Range(Tcp, 81, 81))],
        );
        tables.update(new.0).await.unwrap();
        let chain = start.elapsed();
        println!("replace {replaced:?}, one element {element:?}, one chain {chain:?}");
        assert!(reaches(Some(&a), &format!("{}:80", address(&b))));
        assert!(reaches(Some(&c), &format!("{}:80", address(&b))));
        assert!(!reaches(Some(&b), &format!("{}:80", address(&c))));
        assert!(replaced.as_secs() < 10 && element.as_millis() < 500 && chain.as_secs() < 2);
    });
}
