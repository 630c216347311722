//! The addresses of Services, and those by which clients reach the server.

use crate::cluster::{Cluster, config};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use server::{Config, ServiceRanges};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

const SERVICES: &str = "/api/v1/namespaces/default/services";
const RANGE: &str = "/apis/networking.k8s.io/v1/servicecidrs/kubernetes";

fn with_range(dir: &Path, range: &str) -> Config {
    Config { service_ranges: ServiceRanges::from_option(range).unwrap(), ..config(dir) }
}

async fn started(dir: tempfile::TempDir, range: &str) -> Cluster {
    let config = with_range(dir.path(), range);
    Cluster::with(dir, config).await
}

/// Whether the server at `address` has a certificate for this name.
async fn is_named(cluster: &Cluster, address: SocketAddr, name: &str) -> bool {
    let ca = std::fs::read(cluster.dir.path().join("pki/ca.crt")).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&ca).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_details(provider, Arc::new(tls::Clock))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    TlsConnector::from(Arc::new(tls)).connect(name, stream).await.is_ok()
}

/// NET-143, NET-95: the configured range is the ServiceCIDR `kubernetes`; the Service `kubernetes` has its first address,
/// and the certificate names it.
#[tokio::test]
async fn net_143_a_new_cluster_gets_the_configured_range() {
    let cluster = started(tempfile::tempdir().unwrap(), "10.7.16.0/20").await;
    assert_eq!(cluster.read(RANGE).await["spec"]["cidrs"], json!(["10.7.16.0/20"]));
    let kubernetes = cluster.read(&format!("{SERVICES}/kubernetes")).await;
    assert_eq!(kubernetes["spec"]["clusterIP"], "10.7.16.1");
    assert_eq!(
        cluster.read("/apis/networking.k8s.io/v1/ipaddresses/10.7.16.1").await["kind"],
        "IPAddress"
    );
    let address = cluster.running.address;
    assert!(is_named(&cluster, address, "10.7.16.1").await);
    assert!(!is_named(&cluster, address, "10.96.0.1").await);
    let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}});
    let service = cluster.make(SERVICES, service).await;
    let ip: std::net::Ipv4Addr = service["spec"]["clusterIP"].as_str().unwrap().parse().unwrap();
    assert_eq!(u32::from(ip) >> 12, u32::from_be_bytes([10, 7, 16, 0]) >> 12, "{ip}");
}

/// NET-143: a cluster keeps its range, because Services have addresses of it; another configured range is reported.
#[tokio::test]
async fn net_143_an_existing_cluster_keeps_its_range_and_reports_another_one() {
    let cluster = Cluster::start().await;
    cluster.running.stop().await;
    let cluster = started(cluster.dir, "10.7.16.0/20").await;
    assert_eq!(cluster.read(RANGE).await["spec"]["cidrs"], json!(["10.96.0.0/16"]));
    assert_eq!(cluster.running.service_ranges(), ServiceRanges::default());
    let kubernetes = cluster.read(&format!("{SERVICES}/kubernetes")).await;
    assert_eq!(kubernetes["spec"]["clusterIP"], "10.96.0.1");
    assert!(is_named(&cluster, cluster.running.address, "10.96.0.1").await);
    let events = cluster.read("/api/v1/namespaces/default/events").await;
    let inconsistent =
        |event: &&Value| event["reason"] == "KubernetesDefaultServiceCIDRInconsistent";
    let event = events["items"].as_array().unwrap().iter().find(inconsistent).unwrap();
    assert_eq!(
        (&event["type"], &event["involvedObject"]["kind"]),
        (&json!("Warning"), &json!("ServiceCIDR"))
    );
    let message = event["message"].as_str().unwrap();
    assert!(message.contains("10.96.0.0/16") && message.contains("10.7.16.0/20"), "{message}");

    let cluster = cluster.restart().await;
    let events = cluster.read("/api/v1/namespaces/default/events").await;
    assert_eq!(events["items"].as_array().unwrap().iter().filter(inconsistent).count(), 1);
}

/// NET-143: after the ServiceCIDR is gone, the next start creates one with the configured range. The Service
/// `kubernetes` keeps its address, and the certificate has both.
#[tokio::test]
async fn net_143_a_deleted_range_is_replaced_by_the_configured_one() {
    let cluster = Cluster::start().await;
    cluster.patch(RANGE, json!({"metadata": {"finalizers": null}})).await.ok();
    cluster.delete(RANGE).await.ok();
    cluster.running.stop().await;
    let cluster = started(cluster.dir, "10.7.16.0/20").await;
    assert_eq!(cluster.read(RANGE).await["spec"]["cidrs"], json!(["10.7.16.0/20"]));
    let kubernetes = cluster.read(&format!("{SERVICES}/kubernetes")).await;
    assert_eq!(kubernetes["spec"]["clusterIP"], "10.96.0.1");
    for name in ["10.96.0.1", "10.7.16.1"] {
        assert!(is_named(&cluster, cluster.running.address, name).await, "{name}");
    }
    cluster.delete(&format!("{SERVICES}/kubernetes")).await.ok();
    let waited = tokio::time::timeout(std::time::Duration::from_secs(10), async {
        loop {
            let kubernetes = cluster.get(&format!("{SERVICES}/kubernetes")).await;
            if kubernetes.code == 200 {
                break kubernetes.body;
            }
            tokio::task::yield_now().await;
        }
    });
    assert_eq!(waited.await.unwrap()["spec"]["clusterIP"], "10.7.16.1");
}

/// The addresses that the Endpoints and the slice `kubernetes` have.
async fn advertised(cluster: &Cluster) -> [Vec<String>; 2] {
    let text =
        |values: Vec<Value>| values.iter().map(|one| one.as_str().unwrap().to_owned()).collect();
    let endpoints = cluster.read("/api/v1/namespaces/default/endpoints/kubernetes").await;
    let slice = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";
    let slice = cluster.read(slice).await;
    let with_port = |ip: &Value, port: &Value| json!(format!("{}:{port}", ip.as_str().unwrap()));
    let subset = &endpoints["subsets"][0];
    let of_endpoints = subset["addresses"].as_array().unwrap().iter();
    let of_endpoints = of_endpoints.map(|one| with_port(&one["ip"], &subset["ports"][0]["port"]));
    let of_slice = slice["endpoints"].as_array().unwrap().iter();
    let of_slice = of_slice.map(|one| with_port(&one["addresses"][0], &slice["ports"][0]["port"]));
    [text(of_endpoints.collect()), text(of_slice.collect())]
}

/// NET-95: a server on a loopback address also listens on the gateway of the node's pods, with the same certificate, and
/// the endpoints have that address, which pods can reach.
#[tokio::test]
async fn net_95_a_server_on_loopback_serves_pods_at_their_gateway() {
    let cluster = Cluster::start().await;
    let port = cluster.running.address.port();
    let before = format!("127.0.0.1:{port}");
    assert_eq!(advertised(&cluster).await, [[before.as_str()], [before.as_str()]]);
    // Every address of 127.0.0.0/8 is an address of this machine, so it stands for the gateway.
    let gateway: SocketAddr = format!("127.9.8.7:{port}").parse().unwrap();
    assert!(TcpStream::connect(gateway).await.is_err());
    for _ in 0..2 {
        cluster.running.serve_pods_at(gateway.ip()).await.unwrap();
        let after = gateway.to_string();
        assert_eq!(advertised(&cluster).await, [[after.as_str()], [after.as_str()]]);
    }
    for address in [gateway, cluster.running.address] {
        assert!(is_named(&cluster, address, "127.9.8.7").await);
        assert!(is_named(&cluster, address, "127.0.0.1").await);
    }
    // Deleted endpoints come back with the same address.
    cluster.delete("/api/v1/namespaces/default/endpoints/kubernetes").await.ok();
    assert!(cluster.until("/api/v1/namespaces/default/endpoints/kubernetes", 200).await);
    assert_eq!(advertised(&cluster).await[0], [gateway.to_string()]);

    let address = cluster.running.address;
    cluster.running.stop().await;
    for closed in [gateway, address] {
        assert!(TcpStream::connect(closed).await.is_err(), "{closed} is closed");
    }
}

#[tokio::test]
async fn an_address_of_another_machine_is_refused_and_the_endpoints_stay() {
    let cluster = Cluster::start().await;
    let before = advertised(&cluster).await;
    let refused = cluster.running.serve_pods_at("192.0.2.77".parse().unwrap()).await.unwrap_err();
    assert!(refused.to_string().contains("cannot listen on 192.0.2.77"), "{refused}");
    assert_eq!(advertised(&cluster).await, before);
}

/// NET-95: a server on another address than loopback can be reached by pods as it is.
#[tokio::test]
async fn net_95_a_server_that_pods_can_reach_opens_no_further_port() {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { listen: "0.0.0.0:0".parse().unwrap(), ..config(dir.path()) };
    let cluster = Cluster::with(dir, config).await;
    let before = advertised(&cluster).await;
    cluster.running.serve_pods_at("127.9.8.7".parse().unwrap()).await.unwrap();
    assert_eq!(advertised(&cluster).await, before);
}
