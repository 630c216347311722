//! Requests that the server forwards to pods, Services and nodes (NET-113 to NET-119), with a real backend.
//!
//! The server does not connect to loopback addresses, so each test has a network namespace of its own, in which the
//! backend has another address.

use crate::cluster::{Cluster, PODS, Reply};
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::ServerName;
use rustls_pki_types::pem::PemObject as _;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::process::Command;
use std::sync::Arc;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// The address of the backend.
const BACKEND: &str = "10.99.0.7";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const ENDPOINTS: &str = "/api/v1/namespaces/default/endpoints";

/// Runs the test in a thread with its own network namespace.
fn isolated<T: Future<Output = ()>>(test: impl FnOnce() -> T + Send + 'static) {
    let run = || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)
            .expect("a network namespace: run this test as root");
        for words in ["link set lo up", "address add 10.99.0.7/32 dev lo"] {
            let done = Command::new("ip").args(words.split(' ')).status();
            assert!(done.is_ok_and(|done| done.success()), "ip {words}: install iproute2");
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(test());
    };
    std::thread::spawn(run).join().unwrap();
}

/// Answers every request with what it got; `/page`, `/moved` and an upgrade have their own answers.
async fn backend(listener: TcpListener) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let service = service_fn(|request| async { Ok::<_, Infallible>(answer(request).await) });
        let connection = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service);
        tokio::spawn(connection.with_upgrades());
    }
}

async fn answer(mut request: Request<Incoming>) -> http::Response<Full<bytes::Bytes>> {
    let headers: serde_json::Map<String, Value> = request
        .headers()
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap().into()))
        .collect();
    let shown = json!({"method": request.method().as_str(), "uri": request.uri().to_string(), "headers": headers});
    let answer = http::Response::builder().header("access-control-allow-origin", "*");
    if request.headers().contains_key("upgrade") {
        let upgrading = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let mut stream = TokioIo::new(upgrading.await.unwrap());
            stream.write_all(shown.to_string().as_bytes()).await.unwrap();
            stream.write_all(b"\n").await.unwrap();
            let (mut read, mut write) = tokio::io::split(stream);
            let _ = tokio::io::copy(&mut read, &mut write).await;
        });
        return answer
            .status(101)
            .header("connection", "upgrade")
            .header("upgrade", "websocket")
            .body(Full::default())
            .unwrap();
    }
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let answer = answer.header("x-body", body.len().to_string());
    match path.as_str() {
        "/page" => answer
            .header("content-type", "text/html; charset=utf-8")
            .body("<a href=\"/rewriteme\">test</a>".into()),
        "/moved" => answer.status(302).header("location", "/there").body(Full::default()),
        _ => answer.header("content-type", "application/json").body(shown.to_string().into()),
    }
    .unwrap()
}

/// A cluster with a backend, a pod `p` that is the backend, and its port.
async fn started() -> (Cluster, u16) {
    let cluster = Cluster::start().await;
    let listener = TcpListener::bind((BACKEND, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(backend(listener));
    let ports = json!([{"name": "main", "containerPort": port}]);
    pod(&cluster, "p", ports, BACKEND).await;
    (cluster, port)
}

async fn pod(cluster: &Cluster, name: &str, ports: Value, ip: &str) {
    let pod = json!({"metadata": {"name": name}, "spec": {"containers": [
        {"name": "none", "image": "i"}, {"name": "c", "image": "i", "ports": ports}]}});
    cluster.make(PODS, pod).await;
    let status = json!({"status": {"podIP": ip, "podIPs": [{"ip": ip}]}});
    cluster.patch(&format!("{PODS}/{name}/status"), status).await.ok();
}

async fn service(cluster: &Cluster, name: &str, ports: Value, subsets: Value) {
    cluster.make(SERVICES, json!({"metadata": {"name": name}, "spec": {"ports": ports}})).await;
    cluster.make(ENDPOINTS, json!({"metadata": {"name": name}, "subsets": subsets})).await;
}

#[track_caller]
fn is_unavailable(reply: &Reply, message: &str) {
    assert_eq!(reply.refused(503, "ServiceUnavailable"), message);
}

/// NET-117: every method and body is passed on; a path keeps its slash and its query; GET and HEAD without a path are
/// redirected.
#[test]
fn net_117_methods_paths_and_queries_are_passed_on() {
    isolated(async || {
        let (cluster, _) = started().await;
        let proxy = format!("{PODS}/p/proxy");
        for method in ["DELETE", "GET", "OPTIONS", "PATCH", "POST", "PUT"] {
            for (path, uri) in [
                ("/", "/"),
                ("/a/b", "/a/b"),
                ("/a/b/", "/a/b/"),
                ("/a%2Fb?x=%2F&y", "/a%2Fb?x=%2F&y"),
            ] {
                let reply = cluster.send(method, &format!("{proxy}{path}"), &[], "body").await;
                assert_eq!(reply.header("x-body"), "4");
                let got = reply.ok();
                assert_eq!((&got["method"], &got["uri"]), (&json!(method), &json!(uri)));
            }
        }
        let head = cluster.send("HEAD", &format!("{proxy}/a"), &[], "").await;
        assert_eq!((head.code, head.bytes.len()), (200, 0));
        for method in ["GET", "HEAD"] {
            let reply = cluster.send(method, &format!("{proxy}?a=b"), &[], "").await;
            assert_eq!((reply.code, reply.header("location")), (301, &*format!("{proxy}/?a=b")));
        }
        for method in ["DELETE", "OPTIONS", "PATCH", "POST", "PUT"] {
            assert_eq!(cluster.send(method, &proxy, &[], "").await.ok()["uri"], "/");
        }
    });
}

/// NET-113, NET-114: the port of a pod is a number; without one, the first that a container declares.
#[test]
fn net_114_the_port_of_a_pod_is_a_number_or_the_first_declared_one() {
    isolated(async || {
        let (cluster, port) = started().await;
        for target in
            ["p", &format!("p:{port}"), &format!("http:p:{port}"), &format!(":p:{port}"), "http:p:"]
        {
            cluster.get(&format!("{PODS}/{target}/proxy/")).await.ok();
        }
        let get = async |target: &str| cluster.get(&format!("{PODS}/{target}/proxy/")).await;
        let unknown = "error trying to reach service: dial tcp: lookup tcp/main: unknown port";
        is_unavailable(&get("p:main").await, unknown);
        let refused = get("p:1").await;
        let closed =
            "error trying to reach service: dial tcp 10.99.0.7:1: connect: connection refused";
        is_unavailable(&refused, closed);
        for target in ["ftp:p:1", "a:b:c:d", ":80"] {
            get(target).await.refused(400, "BadRequest");
        }
        get("none").await.refused(404, "NotFound");
        // Without a declared port, the scheme's default.
        pod(&cluster, "bare", json!([]), BACKEND).await;
        let closed =
            "error trying to reach service: dial tcp 10.99.0.7:80: connect: connection refused";
        is_unavailable(&get("bare").await, closed);
        let closed = closed.replace(":80", ":443");
        is_unavailable(&get("https:bare:").await, &closed);
        for (name, ip) in [("lo", "127.0.0.1"), ("link", "169.254.1.1"), ("any", "0.0.0.0")] {
            pod(&cluster, name, json!([]), ip).await;
            assert_eq!(get(name).await.refused(400, "BadRequest"), "address not allowed");
        }
        let waiting = json!({"metadata": {"name": "waiting"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        cluster.make(PODS, waiting).await;
        assert_eq!(get("waiting").await.refused(400, "BadRequest"), "address not allowed");
    });
}

/// NET-115: the Endpoints object and the name of the port decide; only addresses of pods are used.
#[test]
fn net_115_a_service_is_reached_by_the_name_of_its_port() {
    isolated(async || {
        let (cluster, port) = started().await;
        let target = json!({"kind": "Pod", "namespace": "default", "name": "p"});
        let subset = |name: Value, address: Value| json!([{"addresses": [address], "ports": [{"name": name, "port": port}]}]);
        let address = json!({"ip": BACKEND, "targetRef": target});
        let ports = json!([{"name": "web", "port": 80, "targetPort": port}]);
        service(&cluster, "named", ports.clone(), subset(json!("web"), address.clone())).await;
        service(&cluster, "unnamed", json!([{"port": 80}]), subset(json!(""), address)).await;
        let get = async |target: &str| cluster.get(&format!("{SERVICES}/{target}/proxy/")).await;
        for target in
            ["named:web", "named:80", "http:named:80", "unnamed", "unnamed:80", "unnamed:"]
        {
            assert_eq!(get(target).await.ok()["uri"], "/", "{target}");
        }
        is_unavailable(&get("named").await, "no endpoints available for service \"named\"");
        is_unavailable(
            &get("named:other").await,
            "no endpoints available for service \"named:other\"",
        );
        is_unavailable(&get("named:81").await, "no service port 81 found for service \"named\"");
        get("none").await.refused(404, "NotFound");
        // Addresses that are not those of a pod, or of a pod that is not ready, are not used.
        let foreign =
            json!({"ip": BACKEND, "targetRef": {"kind": "Pod", "namespace": "other", "name": "p"}});
        service(&cluster, "foreign", ports.clone(), subset(json!("web"), foreign)).await;
        service(&cluster, "bare", ports.clone(), subset(json!("web"), json!({"ip": BACKEND})))
            .await;
        let waiting = json!([{"notReadyAddresses": [{"ip": BACKEND}], "ports": [{"name": "web", "port": port}]}]);
        service(&cluster, "waiting", ports.clone(), waiting).await;
        service(&cluster, "empty", ports.clone(), json!([])).await;
        for name in ["foreign", "bare", "waiting", "empty"] {
            let target = format!("{name}:web");
            let message = format!("no endpoints available for service {target:?}");
            is_unavailable(&get(&target).await, &message);
        }
        cluster
            .make(SERVICES, json!({"metadata": {"name": "alone"}, "spec": {"ports": ports}}))
            .await;
        let message = get("alone:web").await.refused(404, "NotFound").to_owned();
        assert_eq!(message, "endpoints \"alone\" not found");
    });
}

/// NET-116: another port of a node is called as asked; a name is no port.
#[test]
fn net_116_another_port_of_a_node_is_called_without_credentials() {
    isolated(async || {
        let (cluster, port) = started().await;
        let node = json!({"metadata": {"name": "n1"}, "status": {"addresses": [
            {"type": "InternalIP", "address": BACKEND}]}});
        cluster.make("/api/v1/nodes", node).await;
        let got = cluster.get(&format!("/api/v1/nodes/n1:{port}/proxy/x")).await.ok();
        assert_eq!((&got["uri"], &got["headers"]["authorization"]), (&json!("/x"), &Value::Null));
        let unknown = "error trying to reach service: dial tcp: lookup tcp/main: unknown port";
        is_unavailable(&cluster.get("/api/v1/nodes/n1:main/proxy/x").await, unknown);
        let refused = cluster.get("/api/v1/nodes/n1/proxy/x").await;
        let closed =
            "error trying to reach service: dial tcp 10.99.0.7:10250: connect: connection refused";
        is_unavailable(&refused, closed);
    });
}

/// NET-118, NET-119: links and redirects go through the proxy; CORS headers of the backend are removed.
#[test]
fn net_118_links_and_redirects_get_the_prefix_that_the_client_used() {
    isolated(async || {
        let (cluster, port) = started().await;
        for target in ["p".to_owned(), format!("http:p:{port}")] {
            let proxy = format!("{PODS}/{target}/proxy");
            let page = cluster.get(&format!("{proxy}/page")).await;
            assert_eq!(page.text(), format!("<a href=\"{proxy}/rewriteme\">test</a>"));
            assert_eq!(page.header("access-control-allow-origin"), "");
            let moved = cluster.get(&format!("{proxy}/moved")).await;
            assert_eq!((moved.code, moved.header("location")), (302, &*format!("{proxy}/there")));
        }
    });
}

/// NET-119: the backend gets the path, host and address that the client used, and none of its credentials. An upgraded
/// connection carries bytes as they are.
#[test]
fn net_119_forwarded_headers_and_upgrades_reach_the_backend() {
    isolated(async || {
        let (cluster, _) = started().await;
        let token = std::fs::read_to_string(cluster.dir.path().join("admin.token")).unwrap();
        let path = format!("{PODS}/p/proxy/socket");
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: api.example:6443\r\nAuthorization: Bearer {}\r\nX-Forwarded-For: 192.0.2.9\r\n",
            token.trim()
        );
        let forwarded = |got: &Value| {
            assert_eq!(got["uri"], "/socket");
            let headers = &got["headers"];
            assert_eq!(headers["x-forwarded-uri"], json!(path));
            assert_eq!(headers["x-forwarded-host"], "api.example:6443");
            assert_eq!(headers["x-forwarded-proto"], "https");
            assert_eq!(headers["x-forwarded-for"], "192.0.2.9, 127.0.0.1");
            assert_eq!(headers.get("authorization"), None);
        };
        let mut plain = connect(&cluster).await;
        plain.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes()).await.unwrap();
        let mut reply = String::new();
        plain.read_to_string(&mut reply).await.unwrap();
        assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
        let (_, body) = reply.split_once("\r\n\r\n").unwrap();
        let json = &body[body.find('{').unwrap()..=body.rfind('}').unwrap()];
        forwarded(&serde_json::from_str(json).unwrap());

        let mut socket = connect(&cluster).await;
        let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n";
        socket.write_all(format!("{head}{upgrade}").as_bytes()).await.unwrap();
        let mut read = Vec::new();
        let end_of = |read: &[u8]| read.windows(4).position(|four| four == b"\r\n\r\n");
        while end_of(&read).is_none_or(|end| !read[end..].contains(&b'}')) || !read.ends_with(b"\n")
        {
            assert_ne!(
                socket.read_buf(&mut read).await.unwrap(),
                0,
                "{}",
                String::from_utf8_lossy(&read)
            );
        }
        let end = end_of(&read).unwrap();
        let (head, body) = (String::from_utf8_lossy(&read[..end]), &read[end + 4..]);
        assert!(head.starts_with("HTTP/1.1 101"), "{head}");
        let got: Value = serde_json::from_slice(body).unwrap();
        forwarded(&got);
        assert_eq!(got["headers"]["sec-websocket-key"], "x");
        socket.write_all(b"\x00\xff raw").await.unwrap();
        let mut echoed = [0; 6];
        socket.read_exact(&mut echoed).await.unwrap();
        assert_eq!(&echoed, b"\x00\xff raw");
    });
}

/// A connection to the server over TLS, for HTTP/1.1.
async fn connect(cluster: &Cluster) -> tokio_rustls::client::TlsStream<TcpStream> {
    let ca = std::fs::read(cluster.dir.path().join("pki/ca.crt")).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&ca).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_details(provider, Arc::new(tls::Clock))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(cluster.running.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    tokio_rustls::TlsConnector::from(Arc::new(tls)).connect(name, stream).await.unwrap()
}
