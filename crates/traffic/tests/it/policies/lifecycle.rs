//! Restarts of the agent, starting and terminating pods, and servers of the node.

use super::*;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};

/// A connection from x/b to port 7 of x/a that answers every byte.
fn echo(cluster: &Cluster) -> TcpStream {
    let (server, client) = (cluster.pods["x/a"].1.clone(), cluster.pods["x/b"].1.clone());
    let listener =
        crate::isolated::inside(&server.netns, || TcpListener::bind("0.0.0.0:7")).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut byte = [0];
        while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
    });
    let to = format!("{}:7", server.addresses[0]);
    let stream = crate::isolated::inside(&client.netns, move || TcpStream::connect(to)).unwrap();
    stream.set_read_timeout(Some(crate::isolated::PATIENCE)).unwrap();
    stream
}

fn answers(stream: &mut TcpStream) -> bool {
    let mut byte = [0];
    stream.write_all(b"x").is_ok() && stream.read_exact(&mut byte).is_ok()
}

#[test]
fn net_134_t_net_22_restart_termination_and_reuse_of_an_address() {
    isolated(|directory| async move {
        let mut cluster = Cluster::start(&directory).await;
        let http = Probe::Tcp(80);
        let mut stream = echo(&cluster);
        cluster
            .apply("x/p", ingress(json!([{ "podSelector": { "matchLabels": { "pod": "none" } } }])))
            .await;
        cluster.expect("deny", http, |_, to| to != "x/a").await;
        assert!(answers(&mut stream), "an established connection survives a policy");

        // Without an interruption of the policy: no connection succeeds meanwhile.
        let (netns, to) = (cluster.pods["x/b"].1.netns.clone(), cluster.pods["x/a"].1.addresses[0]);
        let prober = spawn_blocking(move || {
            (0..5).all(|_| call_tcp_within(Some(&netns), &format!("{to}:80"), SHORT).is_err())
        });
        cluster.running = None;
        cluster.enforce(Vec::new()).await;
        assert!(prober.await.unwrap(), "the rules of the earlier process stay in force");
        cluster.expect("after a restart", http, |_, to| to != "x/a").await;
        assert!(answers(&mut stream), "a restart does not cut connections");

        // The pod terminates: it stays isolated, and its connections stay.
        let client = cluster.server.admin();
        let key = ObjectKey::new("x", "a");
        client.delete::<Pod>(&key, &DeleteOptions::default().grace(30)).await.unwrap();
        cluster.expect("terminating", http, |_, to| to != "x/a").await;
        assert!(answers(&mut stream));
        client.delete::<Pod>(&key, &DeleteOptions::default().grace(0)).await.unwrap();
        cluster.expect("object deleted", http, |_, to| to != "x/a").await;
        assert!(answers(&mut stream), "its address is not released yet");
        let uid = cluster.pods["x/a"].0.metadata.uid.clone().unwrap();
        cluster.policies().pod_detached(&uid).await.unwrap();
        assert!(!run("nft list ruleset").contains("ingress-lf0p2"));
    });
}

#[test]
fn net_134_a_known_policy_is_in_force_when_a_pod_is_attached() {
    isolated(|directory| async move {
        let cluster = Cluster::start(&directory).await;
        cluster.apply("x/p", json!({ "podSelector": { "matchLabels": { "new": "yes" } }, "policyTypes": ["Ingress", "Egress"] })).await;
        cluster.apply("y/p", json!({ "podSelector": pods("a"), "policyTypes": ["Ingress"] })).await;
        // The node knows both policies when it enforces the second.
        cluster.expect("known", Probe::Tcp(80), |_, to| to != "y/a").await;
        for i in 0..5 {
            let pod = json!({
                "metadata": { "namespace": "x", "name": format!("new-{i}"), "labels": { "new": "yes" } },
                "spec": { "nodeName": NODE, "containers": [{ "name": "c", "image": "i" }] },
            });
            let pod: Pod = cluster.create(pod).await;
            let uid = pod.metadata.uid.clone().unwrap();
            let attachment = cluster.network.attach(&uid, &[]).await.unwrap();
            serve_tcp(Some(&attachment.netns), 80, "new");
            cluster.policies().pod_attached(&pod, &attachment.addresses).await.unwrap();
            let to = format!("{}:80", cluster.pods["x/b"].1.addresses[0]);
            let out = call_tcp_within(Some(&attachment.netns), &to, SHORT);
            assert_eq!(out, Err(ErrorKind::TimedOut));
            let to = format!("{}:80", attachment.addresses[0]);
            let from = cluster.pods["x/b"].1.netns.clone();
            assert_eq!(call_tcp_within(Some(&from), &to, SHORT), Err(ErrorKind::TimedOut));
            assert!(call_tcp_within(None, &to, SHORT).is_ok(), "NET-131: probes of the node");
            cluster.policies().pod_detached(&uid).await.unwrap();
            cluster.network.detach(&uid).await.unwrap();
        }
    });
}

#[test]
fn a_server_of_the_node_can_be_selected_like_a_pod() {
    isolated(|directory| async move {
        let mut cluster = Cluster::start(&directory).await;
        serve_tcp(None, 53, "dns");
        let labels = BTreeMap::from([("k8s-app".to_string(), "kube-dns".to_string())]);
        cluster
            .enforce(vec![LocalServer {
                namespace: "kube-system".into(),
                labels,
                addresses: cluster.network.gateways().iter().map(|(_, address)| *address).collect(),
                ports: vec![("dns-tcp".into(), network::Protocol::Tcp, 53)],
            }])
            .await;
        let reaches = async |wanted: bool| {
            let start = Instant::now();
            loop {
                let netns = cluster.pods["x/a"].1.netns.clone();
                let call = move || call_tcp_within(Some(&netns), "10.77.3.1:53", SHORT).is_ok();
                if spawn_blocking(call).await.unwrap() == wanted {
                    return true;
                }
                if start.elapsed() > PATIENCE {
                    return false;
                }
            }
        };
        cluster.apply("x/p", json!({ "podSelector": {}, "policyTypes": ["Egress"] })).await;
        assert!(reaches(false).await, "NET-135: DNS is not exempt");
        let to = json!([{ "namespaceSelector": {}, "podSelector": { "matchLabels": { "k8s-app": "kube-dns" } } }]);
        cluster.apply("x/q", json!({ "podSelector": {}, "policyTypes": ["Egress"], "egress": [{ "to": to, "ports": [{ "port": 53 }] }] })).await;
        assert!(reaches(true).await);
    });
}

#[test]
fn a_table_that_another_program_deleted_is_restored_with_the_next_change() {
    isolated(|directory| async move {
        let cluster = Cluster::start(&directory).await;
        cluster.apply("x/p", ingress(json!([{ "podSelector": pods("none") }]))).await;
        cluster.expect("deny", Probe::Tcp(80), |_, to| to != "x/a").await;
        run("nft delete table ip landfall-pods-policies");
        cluster.apply("y/p", json!({ "podSelector": pods("a"), "policyTypes": ["Ingress"] })).await;
        cluster.expect("both", Probe::Tcp(80), |_, to| to != "x/a" && to != "y/a").await;
    });
}
