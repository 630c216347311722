//! Direct requests to the endpoint: access control and the content of the pages (N-168 to N-171).

use crate::cluster::{Cluster, NODE};
use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject as _};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// A TLS connection that trusts the cluster's CA and presents no certificate.
pub(crate) async fn connect(ca: &str, address: SocketAddr) -> TlsStream<TcpStream> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(address.ip().to_string()).unwrap();
    let stream = TcpStream::connect(address).await.unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
}

async fn get(cluster: &Cluster, token: &str, path: &str) -> (StatusCode, String) {
    let stream = connect(&cluster.ca, cluster.endpoint.address).await;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let mut request = Request::get(path).header(header::HOST, "node");
    if !token.is_empty() {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    let response = sender.send_request(request.body(Empty::<Bytes>::new()).unwrap()).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (parts.status, String::from_utf8_lossy(&body).into_owned())
}

/// Creates a service account with only these permissions in the whole cluster. Returns its token.
pub(crate) async fn token_of(
    cluster: &Cluster,
    name: &str,
    resources: &[&str],
    verbs: &[&str],
) -> String {
    let admin = &cluster.admin;
    let account = json!({ "metadata": { "name": name, "namespace": "default" } });
    let account: ServiceAccount = crate::cluster::parse(account);
    let _: ServiceAccount = admin.create(&account).await.unwrap();
    let role = json!({ "metadata": { "name": name }, "rules": [
        { "apiGroups": [""], "resources": resources, "verbs": verbs },
    ]});
    let _: ClusterRole = admin.create(&crate::cluster::parse::<ClusterRole>(role)).await.unwrap();
    let binding = json!({
        "metadata": { "name": name },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name },
        "subjects": [{ "kind": "ServiceAccount", "name": name, "namespace": "default" }],
    });
    let binding: ClusterRoleBinding = crate::cluster::parse(binding);
    let _: ClusterRoleBinding = admin.create(&binding).await.unwrap();
    let body = json!({
        "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {},
    });
    let request = Request::post(format!("/api/v1/namespaces/default/serviceaccounts/{name}/token"))
        .header(header::CONTENT_TYPE, "application/json")
        .body(body.to_string().into_bytes());
    let response: TokenRequest = admin.kube().request(request.unwrap()).await.unwrap();
    response.status.unwrap().token.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn n_169_n_168_callers_are_authenticated_and_authorized() {
    let cluster = Cluster::start().await;
    let admin = cluster.token();
    assert_eq!(get(&cluster, &admin, "/healthz").await, (StatusCode::OK, "ok".into()));
    for token in ["", "wrong"] {
        let response = get(&cluster, token, "/healthz").await;
        assert_eq!(response, (StatusCode::UNAUTHORIZED, "Unauthorized".into()));
    }
    let token = token_of(&cluster, "scraper", &["nodes/metrics", "nodes/stats"], &["get"]).await;
    assert_eq!(get(&cluster, &token, "/metrics/resource").await.0, StatusCode::OK);
    let forbidden = "Forbidden (user=system:serviceaccount:default:scraper, verb=get, \
                     resource=nodes, subresource(s)=[pods proxy])";
    assert_eq!(get(&cluster, &token, "/pods").await, (StatusCode::FORBIDDEN, forbidden.into()));
}

/// Lists of pods (N-168), the summary (N-170) and resource metrics (N-171).
#[tokio::test(flavor = "multi_thread")]
async fn n_170_the_pages_contain_pods_and_their_usage() {
    let cluster = Cluster::start().await;
    cluster.pod("p", &["c"], "").await;
    let token = cluster.token();
    let page = |path: &'static str| {
        let (cluster, token) = (&cluster, &token);
        async move {
            let (code, text) = get(cluster, token, path).await;
            assert_eq!(code, StatusCode::OK, "{path}: {text}");
            text
        }
    };
    let json = |text: String| serde_json::from_str::<Value>(&text).unwrap();
    let pods = json(page("/pods").await);
    assert_eq!(
        (&pods["kind"], &pods["items"][0]["metadata"]["name"]),
        (&json!("PodList"), &json!("p"))
    );
    let running = json(page("/runningpods/").await);
    assert_eq!(running["items"][0]["spec"]["containers"][0]["name"], "c");
    assert_eq!(json(page("/configz").await), json!({ "kubeletconfig": { "maxPods": 110 } }));
    let summary = json(page("/stats/summary").await);
    assert_eq!(summary["node"]["nodeName"], NODE);
    assert!(summary["node"]["memory"]["workingSetBytes"].as_u64().unwrap() > 0);
    assert!(summary["node"]["fs"]["capacityBytes"].as_u64().unwrap() > 0);
    let pod = &summary["pods"][0];
    assert_eq!(pod["podRef"]["name"], "p");
    assert_eq!(pod["containers"][0]["memory"]["workingSetBytes"], 1 << 20);
    assert_eq!(pod["cpu"]["usageCoreNanoSeconds"], 1_500_000_000);
    let without_disks = json(page("/stats/summary?only_cpu_and_memory=true").await);
    assert_eq!(without_disks["node"].get("fs"), None);
    let resource = page("/metrics/resource").await;
    let line =
        "container_cpu_usage_seconds_total{container=\"c\",namespace=\"default\",pod=\"p\"} 1.5 ";
    assert!(resource.contains(line), "{resource}");
    assert!(resource.contains("\nnode_memory_working_set_bytes "), "{resource}");
    let main = page("/metrics").await;
    assert!(main.contains("kubelet_running_pods 1\n"), "{main}");
    assert!(main.contains("kubelet_node_name{node=\"n1\"} 1\n"), "{main}");
    assert!(main.contains("kubelet_http_requests_total{"), "{main}");
    assert!(page("/logs/").await.contains("<a href=\"./pods/\">pods/</a>"));
    for (path, code) in [("/checkpoint/a/b/c", 404), ("/nothing", 404), ("/logs/../data", 404)] {
        assert_eq!(get(&cluster, &token, path).await.0.as_u16(), code, "{path}");
    }
}

/// N-168: without credentials, on the machine itself.
#[tokio::test]
async fn n_168_the_health_endpoint_needs_no_credentials() {
    let health = endpoint::serve_health("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let stream = TcpStream::connect(health.address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get("/healthz").header(header::HOST, "node");
    let response = sender.send_request(request.body(Empty::<Bytes>::new()).unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "ok");
}
