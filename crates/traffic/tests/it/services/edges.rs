//! Sharp edges: endpoints that end while clients still use them, node ports on loopback, and many changes at once.

use super::*;
use network::{Ranges, ServiceRules};
use std::collections::HashMap;
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use traffic::services::{Forgotten, PacketRules, UdpPort};

/// Changes the conditions of the only endpoint. Letters: r ready, s serving, t terminating.
async fn endpoint(cluster: &Cluster, pod: &Attachment, conditions: &str) {
    let has = |letter| conditions.contains(letter);
    let endpoint = json!({ "addresses": [pod.addresses[0].to_string()], "nodeName": NODE,
        "conditions": { "ready": has('r'), "serving": has('s'), "terminating": has('t') } });
    let patch = json!({ "endpoints": [endpoint] });
    let key = ObjectKey::new("default", "s-1");
    cluster.server.admin().patch_merge::<EndpointSlice>(&key, &patch).await.unwrap();
}

/// T-NET-24, T-EDGE-28: if no endpoint of a UDP port serves, known clients keep the last one, as long as that answers;
/// new ones are refused. Known clients move when another endpoint serves.
#[test]
fn t_net_24_known_udp_clients_keep_an_endpoint_that_no_longer_serves_until_there_is_another() {
    isolated(|directory| async move {
        let cluster = Cluster::start(&directory).await;
        let (client, a, b) =
            (cluster.pod("client").await, cluster.pod("a").await, cluster.pod("b").await);
        cluster.endpoints(&[(&a, true)]).await;
        cluster.service(serde_json::from_str(SPEC).unwrap()).await;
        let netns = client.netns.clone();
        let socket = move |port: u16| {
            let socket = inside(&netns, move || UdpSocket::bind(("0.0.0.0", port))).unwrap();
            socket.set_read_timeout(Some(SHORT)).unwrap();
            // A connected socket learns that it is refused.
            inside(&netns, move || socket.connect("10.96.0.77:80").map(|()| socket)).unwrap()
        };
        let call = |socket: UdpSocket| {
            let socket = Arc::new(socket);
            move || {
                let mut buffer = [0; 100];
                socket.send(b"x").ok()?;
                let length = socket.recv(&mut buffer).ok()?;
                let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
                text.split(' ').next().map(str::to_owned)
            }
        };
        let known = call(socket(5555));
        until(Some("a".to_owned()), known.clone()).await;
        endpoint(&cluster, &a, "").await;
        // Another client each time: one that was served before the rules changed would be a known one.
        let refused = move || call(socket(0))();
        until(None, refused.clone()).await;
        assert_eq!(spawn_blocking(known.clone()).await.unwrap(), Some("a".to_owned()));
        assert_eq!(spawn_blocking(refused).await.unwrap(), None, "still");
        cluster.endpoints(&[(&a, false), (&b, true)]).await;
        until(Some("b".to_owned()), known).await;
    });
}

/// T-EDGE-27, T-NET-19: the health check tells a load balancer at once that this node has no ready endpoint. A connection
/// that still arrives reaches the terminating endpoint for as long as that one serves.
#[test]
fn t_edge_27_health_checks_fail_while_terminating_endpoints_still_get_connections() {
    isolated(|directory| async move {
        let cluster = Cluster::start(&directory).await;
        let (client, a) = (cluster.pod("client").await, cluster.pod("a").await);
        cluster.endpoints(&[(&a, true)]).await;
        let mut spec: Value = serde_json::from_str(SPEC).unwrap();
        spec["type"] = json!("LoadBalancer");
        spec["externalTrafficPolicy"] = json!("Local");
        spec["healthCheckNodePort"] = json!(31000);
        spec["ports"][0]["nodePort"] = json!(30080);
        cluster.service(spec).await;
        let check = || {
            let address: SocketAddr = "192.0.2.1:31000".parse().unwrap();
            TcpStream::connect_timeout(&address, PATIENCE).ok()?;
            get("192.0.2.1:31000", "/").split(' ').nth(1).map(str::to_owned)
        };
        until(Some("200".to_owned()), check).await;
        endpoint(&cluster, &a, "st").await;
        until(Some("503".to_owned()), check).await;
        for to in ["10.96.0.77:80", "192.0.2.1:30080"] {
            let netns = client.netns.clone();
            let reached = spawn_blocking(move || answer(&netns, to)).await.unwrap();
            assert_eq!(reached, Some("a".to_owned()), "{to}");
        }
    });
}

/// NET-37: node ports are not served on loopback, even if the Node lists such an address, and no socket is bound.
#[test]
fn net_37_node_ports_are_not_served_on_loopback() {
    isolated(|directory| async move {
        let cluster = Cluster::start(&directory).await;
        let addresses = json!([{ "type": "InternalIP", "address": "127.0.0.1" },
                               { "type": "InternalIP", "address": "192.0.2.1" }]);
        let status = json!({ "status": { "addresses": addresses } });
        let node = ObjectKey::cluster(NODE);
        cluster.server.admin().patch_status::<Node>(&node, &status).await.unwrap();
        let a = cluster.pod("a").await;
        cluster.endpoints(&[(&a, true)]).await;
        let mut spec: Value = serde_json::from_str(SPEC).unwrap();
        spec["type"] = json!("NodePort");
        spec["ports"][0]["nodePort"] = json!(30080);
        cluster.service(spec).await;
        // Clients on the node itself.
        let call = |to: &'static str| move || call_tcp_within(None, to, SHORT).map(drop);
        until(Ok(()), call("192.0.2.1:30080")).await;
        let refused = Err(std::io::ErrorKind::ConnectionRefused);
        assert_eq!(spawn_blocking(call("127.0.0.1:30080")).await.unwrap(), refused);
        TcpListener::bind("0.0.0.0:30080").expect("no other socket has the port");
    });
}

/// Packet rules whose transactions take as long as the test wants.
struct SlowRules {
    /// The Services that a transaction changes, when it begins.
    transactions: Sender<Vec<Arc<str>>>,
    go_on: Arc<Mutex<Receiver<()>>>,
}

impl PacketRules for SlowRules {
    fn replace_all(&mut self, _: HashMap<Arc<str>, ServiceRules>) -> network::Result<usize> {
        Ok(0)
    }

    fn apply(&mut self, changes: Vec<(Arc<str>, Option<ServiceRules>)>) -> network::Result<usize> {
        let _ = self.transactions.send(changes.iter().map(|(name, _)| name.clone()).collect());
        let _ = self.go_on.lock().unwrap().recv_timeout(PATIENCE);
        Ok(changes.len())
    }

    fn set_ranges(&mut self, _: Ranges) -> network::Result<()> {
        Ok(())
    }

    fn sweep(&mut self) -> network::Result<()> {
        Ok(())
    }

    fn needs_sweep(&self) -> bool {
        false
    }

    fn verify(&mut self) -> network::Result<bool> {
        Ok(true)
    }

    fn forget_udp_clients(&mut self, _: &[UdpPort]) -> Vec<Forgotten> {
        Vec::new()
    }
}

/// NET-71: the first change is applied at once. What changes during a transaction is in the next one, together.
#[tokio::test]
async fn net_71_changes_during_a_transaction_are_applied_together() {
    const TOGETHER: usize = 20;
    let server = TestServer::start().await;
    let watched = Watched::start(&server.node(NODE));
    watched.synced().await;
    let (transactions, started) = channel();
    let (go_on, wait) = channel();
    let rules = SlowRules { transactions, go_on: Arc::new(Mutex::new(wait)) };
    let config = services::Config { node_name: NODE.into(), pod_ranges: Vec::new(), delay: None };
    let proxy = services::start(watched, Box::new(rules), config);
    proxy.synced().await;
    let started = Arc::new(Mutex::new(started));
    let next = async || {
        let started = started.clone();
        let next = spawn_blocking(move || started.lock().unwrap().recv_timeout(PATIENCE));
        next.await.unwrap().expect("a transaction")
    };
    let create = async |name: String| {
        let service = json!({ "metadata": { "name": name, "namespace": "default" },
                              "spec": { "ports": [{ "port": 80 }] } });
        server.admin().create::<Service>(&typed::from_value(service).unwrap()).await.unwrap();
    };
    create("first".into()).await;
    // Services of the server itself may come before it.
    while !next().await.iter().any(|name| **name == *"default/first") {
        go_on.send(()).unwrap();
    }
    for number in 0..TOGETHER {
        create(format!("s{number}")).await;
    }
    let mut together = Vec::new();
    while together.iter().sum::<usize>() < TOGETHER {
        // Ends the transaction that runs.
        go_on.send(()).unwrap();
        together.push(next().await.len());
    }
    // The watch may deliver the last ones when the second transaction has begun.
    assert!(together.len() <= 2, "{together:?}");
    go_on.send(()).unwrap();
}
