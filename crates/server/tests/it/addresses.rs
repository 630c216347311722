//! The addresses of Services, and those by which clients reach the server.

use crate::cluster::{Cluster, config};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use server::{Config, ServiceRange};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

const SERVICES: &str = "/api/v1/namespaces/default/services";
const RANGE: &str = "/apis/networking.k8s.io/v1/servicecidrs/kubernetes";

fn with_range(dir: &Path, range: &str) -> Config {
    Config { service_range: ServiceRange::from_option(range).unwrap(), ..config(dir) }
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
    assert_eq!(cluster.running.service_range(), ServiceRange::default());
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
