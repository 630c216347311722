//! The Service proxy with a real API server, the real kernel and real connections.

mod dual_stack;
mod edges;

use crate::isolated::{
    SHORT, call_tcp_within, cidr, config, inside, ip, isolated, run, serve_tcp, serve_udp,
};
use client::{DeleteOptions, ObjectKey};
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use network::{Attachment, Pods, PodsConfig, Services, ServicesConfig};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::time::Duration;
use testbed::TestServer;
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use traffic::Watched;
use traffic::services::health::{self, HealthConfig, HealthServers};
use traffic::services::{self, Running};

const NODE: &str = "n1";
const PATIENCE: Duration = Duration::from_secs(10);
/// Where the proxy's health is served in the test's network namespace.
const HEALTH: &str = "127.0.0.1:10256";
const METRICS: &str = "127.0.0.1:10249";

struct Cluster {
    server: TestServer,
    pods: Pods,
    _proxy: Running,
    _health: HealthServers,
}

impl Cluster {
    async fn start(directory: &Path) -> Cluster {
        Cluster::with(TestServer::with_service_account().await, config(directory)).await
    }

    async fn with(server: TestServer, pods: PodsConfig) -> Cluster {
        let node = json!({ "metadata": { "name": NODE }, "status": { "addresses": [
            { "type": "InternalIP", "address": "192.0.2.1" },
            { "type": "InternalIP", "address": "2001:db8::1" }] } });
        server.admin().create::<Node>(&typed::from_value(node).unwrap()).await.unwrap();
        let pods = Pods::open(pods).await.unwrap();
        run("ip link add up0 type veth peer name down0; ip address add 192.0.2.1/24 dev up0
             ip address add 2001:db8::1/64 dev up0 nodad
             ip link set up0 up; ip link set down0 up; ip route add default via 192.0.2.2");
        let client = server.node(NODE); // With the rights of an agent.
        let watched = Watched::start(&client);
        watched.synced().await;
        let rules = Services::open(&ServicesConfig {
            table: "landfall-services".into(),
            service_ranges: watched.service_ranges(),
            pod_ranges: vec![cidr("10.77.0.0/16"), cidr("fd77:3::/32")],
            gateways: pods.gateways(),
        });
        let config =
            services::Config { node_name: NODE.into(), pod_ranges: Vec::new(), delay: None };
        let proxy = services::start(watched.clone(), Box::new(rules.unwrap()), config);
        proxy.synced().await;
        let config = HealthConfig {
            node_name: NODE.into(),
            health: HEALTH.parse().ok(),
            metrics: METRICS.parse().ok(),
            addresses: vec![ip("192.0.2.1")],
        };
        let health = health::start(&watched, proxy.state(), vec![proxy.metrics()], config).await;
        Cluster { server, pods, _proxy: proxy, _health: health }
    }

    async fn pod(&self, name: &str) -> Attachment {
        let pod = self.pods.attach(name, &[]).await.unwrap();
        serve_tcp(Some(&pod.netns), 8080, name);
        serve_udp(&pod.netns, 8080, name);
        pod
    }

    async fn service(&self, spec: Value) {
        let service = json!({ "metadata": { "name": "s", "namespace": "default" }, "spec": spec });
        self.server.admin().create::<Service>(&typed::from_value(service).unwrap()).await.unwrap();
    }

    /// Replaces the endpoints of the Service.
    async fn endpoints(&self, pods: &[(&Attachment, bool)]) {
        let endpoints: Vec<Value> = pods
            .iter()
            .map(|(pod, ready)| {
                json!({ "addresses": [pod.addresses[0].to_string()], "nodeName": NODE,
                "conditions": { "ready": ready, "serving": ready, "terminating": !ready } })
            })
            .collect();
        let ports = json!([{ "name": "tcp", "port": 8080, "protocol": "TCP" },
                           { "name": "udp", "port": 8080, "protocol": "UDP" }]);
        let key = ObjectKey::new("default", "s-1");
        let client = self.server.admin();
        let patch = json!({ "endpoints": endpoints, "ports": ports });
        if client.patch_merge::<EndpointSlice>(&key, &patch).await.is_err() {
            let slice = json!({ "metadata": { "name": "s-1", "namespace": "default",
                "labels": { "kubernetes.io/service-name": "s" } },
                "addressType": "IPv4", "endpoints": endpoints, "ports": ports });
            client.create::<EndpointSlice>(&typed::from_value(slice).unwrap()).await.unwrap();
        }
    }
}

/// Calls until the answer is the wanted one.
async fn until<T: PartialEq + std::fmt::Debug + Send + 'static>(
    wanted: T,
    call: impl Fn() -> T + Send + Clone + 'static,
) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = spawn_blocking(call.clone()).await.unwrap();
        if found == wanted {
            return;
        }
        assert!(Instant::now() < deadline, "{found:?} instead of {wanted:?}");
    }
}

/// The first line of the response and its header fields and body.
fn get(address: &str, path: &str) -> String {
    let address: SocketAddr = address.parse().unwrap();
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

fn answer(netns: &Path, to: &str) -> Option<String> {
    let text = call_tcp_within(Some(netns), to, SHORT).ok()?;
    Some(text.split(' ').next().unwrap_or_default().to_owned())
}

/// The value of a metric on the proxy's page.
fn metric(name: &str) -> Option<f64> {
    let page = get(METRICS, "/metrics");
    let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.and_then(|value| value.parse().ok())
}

const SPEC: &str = r#"{ "clusterIP": "10.96.0.77", "ports": [
    { "name": "tcp", "port": 80, "protocol": "TCP" }, { "name": "udp", "port": 80, "protocol": "UDP" }] }"#;

/// NET-52, NET-53, T-NET-14: Services and slices change, and the packet rules follow. W-34: so do the metrics.
#[test]
fn packet_rules_follow_services_and_slices() {
    isolated(|directory| async move {
        let cluster = Cluster::start(&directory).await;
        let (client, a, b) =
            (cluster.pod("client").await, cluster.pod("a").await, cluster.pod("b").await);
        cluster.endpoints(&[(&a, true)]).await;
        cluster.service(serde_json::from_str(SPEC).unwrap()).await;
        let netns = client.netns.clone();
        let call = move || answer(&netns, "10.96.0.77:80");
        until(Some("a".to_owned()), call.clone()).await;
        cluster.endpoints(&[(&a, false), (&b, true)]).await;
        until(Some("b".to_owned()), call.clone()).await;
        for _ in 0..20 {
            assert_eq!(spawn_blocking(call.clone()).await.unwrap(), Some("b".to_owned()));
        }
        let page = spawn_blocking(|| get(METRICS, "/metrics")).await.unwrap();
        let count = page.lines().find_map(|line| {
            line.strip_prefix(
                "kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family=\"IPv4\"} ",
            )
        });
        assert!(count.is_some_and(|count| count != "0"), "{page}");
        let key = ObjectKey::new("default", "s");
        let admin = cluster.server.admin();
        admin.delete::<Service>(&key, &DeleteOptions::default()).await.unwrap();
        until(None, call).await;
    });
}

/// NET-60, NET-61, T-NET-23: a UDP client that keeps its source port gets the new endpoint.
#[test]
fn udp_clients_move_to_the_new_endpoint() {
    isolated(|directory| async move {
        let cluster = Cluster::start(&directory).await;
        let (client, a, b) =
            (cluster.pod("client").await, cluster.pod("a").await, cluster.pod("b").await);
        cluster.endpoints(&[(&a, true)]).await;
        cluster.service(serde_json::from_str(SPEC).unwrap()).await;
        let socket = inside(&client.netns, || UdpSocket::bind("0.0.0.0:5555")).unwrap();
        socket.set_read_timeout(Some(SHORT)).unwrap();
        let socket = std::sync::Arc::new(socket);
        let call = move || {
            let mut buffer = [0; 100];
            socket.send_to(b"x", "10.96.0.77:80").ok()?;
            let (length, _) = socket.recv_from(&mut buffer).ok()?;
            let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
            Some(text.split(' ').next().unwrap_or_default().to_owned())
        };
        until(Some("a".to_owned()), call.clone()).await;
        cluster.endpoints(&[(&b, true)]).await;
        until(Some("b".to_owned()), call).await;
    });
}

/// NET-42, NET-43, NET-65, NET-66, T-NET-19, T-NET-20: the health of the proxy and of a Service on this node.
#[test]
fn health_is_served_over_http() {
    isolated(|directory| async move {
        let cluster = Cluster::start(&directory).await;
        let a = cluster.pod("a").await;
        let status = |address: &'static str, path: &'static str| {
            move || get(address, path).split(' ').nth(1).map(str::to_owned)
        };
        let code = |code: &str| Some(code.to_owned());
        until(code("200"), status(HEALTH, "/healthz")).await;
        until(code("404"), status(HEALTH, "/other")).await;
        let body = spawn_blocking(|| get(HEALTH, "/healthz")).await.unwrap();
        assert!(
            body.contains("\"lastUpdated\"") && body.contains("\"nodeEligible\":true"),
            "{body}"
        );
        assert!(body.contains("\"status\":{\"IPv4\":{\"lastUpdated\""), "{body}");
        let mode = spawn_blocking(|| get(METRICS, "/proxyMode")).await.unwrap();
        assert!(mode.ends_with("nftables"), "{mode}");
        let settings = spawn_blocking(|| get(METRICS, "/configz")).await.unwrap();
        let (_, settings) = settings.split_once("\r\n\r\n").unwrap();
        let settings: Value = serde_json::from_str(settings).unwrap();
        assert_eq!(settings["kubeproxy.config.k8s.io"]["Mode"], "nftables");
        assert_eq!(settings["kubeproxy.config.k8s.io"]["HealthzBindAddress"], HEALTH);

        let taint = json!({ "spec": { "taints": [
            { "key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule" }] } });
        let node = ObjectKey::cluster(NODE);
        cluster.server.admin().patch_merge::<Node>(&node, &taint).await.unwrap();
        until(code("503"), status(HEALTH, "/healthz")).await;
        until(code("200"), status(HEALTH, "/livez")).await;
        for name in [
            "healthz_total{code=\"200\"}",
            "healthz_total{code=\"503\"}",
            "livez_total{code=\"200\"}",
        ] {
            let value = spawn_blocking(move || metric(&format!("kubeproxy_proxy_{name}")));
            assert!(value.await.unwrap() >= Some(1.0), "NET-64: {name}");
        }

        cluster.endpoints(&[(&a, true)]).await;
        let mut spec: Value = serde_json::from_str(SPEC).unwrap();
        spec["type"] = json!("LoadBalancer");
        spec["externalTrafficPolicy"] = json!("Local");
        spec["healthCheckNodePort"] = json!(31000);
        cluster.service(spec).await;
        let check = || {
            let address: SocketAddr = "192.0.2.1:31000".parse().unwrap();
            TcpStream::connect_timeout(&address, PATIENCE).ok()?;
            let text = get("192.0.2.1:31000", "/");
            let weight = text.lines().find_map(|line| {
                line.strip_prefix("x-load-balancing-endpoint-weight: ").map(str::to_owned)
            });
            Some((text.split(' ').nth(1)?.to_owned(), weight?))
        };
        until(Some(("200".to_owned(), "1".to_owned())), check).await;
        cluster.endpoints(&[(&a, false)]).await;
        until(Some(("503".to_owned(), "0".to_owned())), check).await;
    });
}

/// NET-64, NET-74, T-EDGE-26: the proxy measures how long changes take, and separately the deletion of a pod. T-NET-9: a
/// deletion does not count as network programming.
#[test]
fn net_74_the_time_from_the_deletion_of_a_pod_to_its_rules_is_measured() {
    const PROGRAMMED: &str =
        "kubeproxy_network_programming_duration_seconds_count{ip_family=\"IPv4\"}";
    const DELETED: &str = "landfall_proxy_pod_deletion_duration_seconds_count{local=\"true\"}";
    const DELETED_SUM: &str = "landfall_proxy_pod_deletion_duration_seconds_sum{local=\"true\"}";
    isolated(|directory| async move {
        let cluster = Cluster::start(&directory).await;
        let admin = cluster.server.admin();
        cluster.service(serde_json::from_str(SPEC).unwrap()).await;
        let key = ObjectKey::new("default", "a");
        let pod = json!({ "metadata": { "name": "a", "namespace": "default" },
            "spec": { "nodeName": NODE, "terminationGracePeriodSeconds": 300,
                      "containers": [{ "name": "c", "image": "i" }] } });
        let pod = admin.create::<Pod>(&typed::from_value(pod).unwrap()).await.unwrap();
        let endpoint = |terminating: bool| {
            json!([{ "addresses": ["10.77.3.99"], "nodeName": NODE,
                "conditions": { "ready": !terminating, "serving": true, "terminating": terminating },
                "targetRef": { "kind": "Pod", "namespace": "default", "name": "a",
                               "uid": pod.metadata.uid } }])
        };
        let trigger = clock::rfc3339_micros(clock::now());
        let slice = json!({ "metadata": { "name": "s-1", "namespace": "default",
                "labels": { "kubernetes.io/service-name": "s" },
                "annotations": { "endpoints.kubernetes.io/last-change-trigger-time": trigger } },
            "addressType": "IPv4", "endpoints": endpoint(false),
            "ports": [{ "name": "tcp", "port": 8080, "protocol": "TCP" }] });
        admin.create::<EndpointSlice>(&typed::from_value(slice).unwrap()).await.unwrap();
        until(Some(1.0), || metric(PROGRAMMED)).await;
        assert_eq!(spawn_blocking(|| metric(DELETED)).await.unwrap(), None);

        admin.delete::<Pod>(&key, &DeleteOptions::default()).await.unwrap();
        let patch = json!({ "endpoints": endpoint(true), "metadata": { "annotations":
            { "endpoints.kubernetes.io/last-change-trigger-time": null } } });
        let slice = ObjectKey::new("default", "s-1");
        admin.patch_merge::<EndpointSlice>(&slice, &patch).await.unwrap();
        until(Some(1.0), || metric(DELETED)).await;
        let values = spawn_blocking(|| {
            let changes = |what: &str| {
                let name = format!("kubeproxy_sync_proxy_rules_{what}");
                metric(&name)
            };
            (
                metric(DELETED_SUM).unwrap(),
                metric(PROGRAMMED),
                [changes("endpoint_changes_pending"), changes("service_changes_pending")],
                [changes("endpoint_changes_total"), changes("service_changes_total")],
            )
        });
        let (sum, programmed, pending, total) = values.await.unwrap();
        assert!(sum < PATIENCE.as_secs_f64(), "from the request, not the end of the grace: {sum}");
        assert_eq!(programmed, Some(1.0), "a deletion is not a trigger");
        assert_eq!(pending, [Some(0.0); 2]);
        // The server's own Service and slice may count too.
        assert!(total[0] >= Some(2.0) && total[1] >= Some(1.0), "{total:?}");
    });
}
