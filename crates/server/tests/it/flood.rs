//! A denial-of-service attack of one account over the network while others work: bodies that never arrive, connections
//! without requests. `examples/flood.rs` does the same with larger numbers.

use crate::cluster::{Cluster, MAPS, MERGE, map};
use bytes::Bytes;
use futures::StreamExt as _;
use http::{Request, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

type RequestBody = UnsyncBoxBody<Bytes, Infallible>;

/// The size of an attack, and the requests of others during it.
pub(crate) struct Size {
    /// Requests whose body never arrives.
    pub(crate) bodies: usize,
    /// Connections without requests, half of them without a handshake.
    pub(crate) idle: usize,
    /// Requests of the administrator and of a node, one after the other.
    pub(crate) rounds: usize,
}

/// The effect of the attack on others.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) admin_p99: Duration,
    pub(crate) lease_max: Duration,
    /// Responses to administrator and node that were not 2xx.
    pub(crate) refused: usize,
    /// The attacker's requests that were refused immediately.
    pub(crate) attacker_refused: usize,
}

/// How to reach the server over TLS as a given user.
#[derive(Clone)]
struct Remote {
    address: SocketAddr,
    tls: Arc<rustls::ClientConfig>,
    token: Option<String>,
}

impl Remote {
    fn new(cluster: &Cluster, identity: Option<(&str, &str)>, token: Option<String>) -> Remote {
        let ca = std::fs::read(cluster.dir.path().join("pki/ca.crt")).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&ca).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_details(provider, Arc::new(tls::Clock))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut tls = match identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = CertificateDer::pem_slice_iter(certificate.as_bytes());
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
                builder
                    .with_client_auth_cert(chain.collect::<Result<_, _>>().unwrap(), key)
                    .unwrap()
            }
        };
        tls.alpn_protocols = vec![b"h2".to_vec()];
        Remote { address: cluster.running.address, tls: Arc::new(tls), token }
    }

    async fn connect(&self) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(self.tls.clone()).connect(name, stream).await
    }

    async fn session(&self) -> Option<http2::SendRequest<RequestBody>> {
        let stream = self.connect().await.ok()?;
        let made = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
        let (sender, connection) = made.ok()?;
        tokio::spawn(connection);
        Some(sender)
    }

    fn request(&self, method: &str, path: &str, body: RequestBody) -> Request<RequestBody> {
        let media = if method == "PATCH" { MERGE } else { "application/json" };
        let mut request = Request::builder()
            .method(method)
            .uri(format!("https://localhost{path}"))
            .header("content-type", media);
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        request.body(body).unwrap()
    }

    /// Over a new connection, as a command line client does. None: there was no response.
    async fn once(&self, method: &str, path: &str, body: Bytes) -> Option<(StatusCode, Value)> {
        let mut session = self.session().await?;
        let request = self.request(method, path, Full::new(body).boxed_unsync());
        let answer = session.send_request(request).await.ok()?;
        let code = answer.status();
        let bytes = answer.into_body().collect().await.ok()?.to_bytes();
        Some((code, serde_json::from_slice(&bytes).unwrap_or_default()))
    }
}

fn never() -> RequestBody {
    StreamBody::new(futures::stream::pending()).boxed_unsync()
}

/// An account that may write ConfigMaps, and nothing else.
async fn unprivileged(cluster: &Cluster) -> Remote {
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let account =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "mallory"}});
    cluster.make(accounts, account).await;
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let version = "rbac.authorization.k8s.io/v1";
    cluster
        .make(
            &format!("{rbac}/roles"),
            json!({"apiVersion": version, "kind": "Role", "metadata": {"name": "maps"},
                   "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["*"]}]}),
        )
        .await;
    cluster
        .make(
            &format!("{rbac}/rolebindings"),
            json!({"apiVersion": version, "kind": "RoleBinding", "metadata": {"name": "maps"},
                   "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "maps"},
                   "subjects": [{"kind": "ServiceAccount", "name": "mallory", "namespace": "default"}]}),
        )
        .await;
    let lifetime =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let token = cluster.post(&format!("{accounts}/mallory/token"), lifetime).await.ok();
    let token = token["status"]["token"].as_str().unwrap().to_owned();
    // Roles are compiled in the background.
    let mallory = Remote::new(cluster, None, Some(token));
    for _ in 0..1000 {
        if mallory.once("GET", MAPS, Bytes::new()).await.unwrap().0 == StatusCode::OK {
            return mallory;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the role does not take effect");
}

/// Streams on one HTTP/2 connection: fewer than the server allows.
const STREAMS: usize = 200;

/// Sends headers without bodies. Returns the status codes.
async fn bodies_that_never_arrive(
    mallory: Remote,
    count: usize,
) -> Vec<tokio::task::JoinHandle<u16>> {
    let mut waiting = Vec::new();
    for _ in 0..count.div_ceil(STREAMS) {
        let session = mallory.session().await.expect("the attacker connects first");
        for _ in 0..STREAMS.min(count - waiting.len()) {
            let (mut session, request) = (session.clone(), mallory.request("POST", MAPS, never()));
            waiting.push(tokio::spawn(async move {
                // The server may have closed its connection to make room.
                if session.ready().await.is_err() {
                    return 0;
                }
                session.send_request(request).await.map_or(0, |answer| answer.status().as_u16())
            }));
        }
    }
    waiting
}

/// Opens connections without requests. Some may be closed again.
async fn connections_that_ask_nothing(
    mallory: &Remote,
    count: usize,
) -> (Vec<TcpStream>, Vec<TlsStream<TcpStream>>) {
    let silent = futures::stream::iter(0..count / 2)
        .map(|_| TcpStream::connect(mallory.address))
        .buffer_unordered(32)
        .filter_map(|connected| async { connected.ok() });
    let shaken = futures::stream::iter(0..count - count / 2)
        .map(|_| mallory.connect())
        .buffer_unordered(32)
        .filter_map(|connected| async { connected.ok() });
    (silent.collect().await, shaken.collect().await)
}

pub(crate) async fn run(size: Size) -> Figures {
    let cluster = Cluster::start().await;
    let read =
        |name: &str| std::fs::read_to_string(cluster.dir.path().join("pki").join(name)).unwrap();
    let admin = Remote::new(&cluster, Some((&read("admin.crt"), &read("admin.key"))), None);
    let node = cluster.running.node_credentials("n1", &["127.0.0.1".into()]).unwrap().client;
    let node = Remote::new(&cluster, Some((&node.certificate, &node.key)), None);
    let node = node.session().await.map(|session| (session, node)).unwrap();
    // An agent always follows its pods, over the connection that it uses for everything.
    let pods = "/api/v1/pods?watch=1&fieldSelector=spec.nodeName=n1";
    let follow = node.1.request("GET", pods, Full::new(Bytes::new()).boxed_unsync());
    let _followed = node.0.clone().send_request(follow).await.unwrap();
    let mallory = unprivileged(&cluster).await;

    let attack = bodies_that_never_arrive(mallory.clone(), size.bodies).await;
    let _idle = connections_that_ask_nothing(&mallory, size.idle).await;

    let (mut admins, mut leases, mut refused) = (Vec::new(), Vec::new(), 0);
    for round in 0..size.rounds {
        let started = Instant::now();
        let made = map(&format!("m{round}")).to_string();
        let reply = match round % 2 {
            0 => admin.once("GET", "/api/v1/namespaces/default/pods", Bytes::new()).await,
            _ => admin.once("POST", MAPS, made.into()).await,
        };
        admins.push(started.elapsed());
        refused += usize::from(!reply.is_some_and(|(code, _)| code.is_success()));

        let started = Instant::now();
        let renewed = renew_lease(&node, round).await;
        leases.push(started.elapsed());
        refused += usize::from(!renewed.is_success());
    }
    admins.sort();
    let mut attacker_refused = 0;
    for one in attack {
        match one.is_finished() {
            // 0: the server closed the connection to make room.
            true => attacker_refused += usize::from(matches!(one.await.unwrap(), 429 | 0)),
            false => one.abort(),
        }
    }
    Figures {
        admin_p99: admins[(admins.len() * 99).div_ceil(100) - 1],
        lease_max: leases.into_iter().max().unwrap(),
        refused,
        attacker_refused,
    }
}

/// Over an existing connection, as an agent does.
async fn renew_lease(
    (session, node): &(http2::SendRequest<RequestBody>, Remote),
    round: usize,
) -> StatusCode {
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                       "metadata": {"name": "n1", "namespace": "kube-node-lease"},
                       "spec": {"holderIdentity": "n1", "leaseDurationSeconds": 40 + round}});
    let (method, path) = match round {
        0 => ("POST", leases.to_owned()),
        _ => ("PATCH", format!("{leases}/n1")),
    };
    let body = Full::new(Bytes::from(lease.to_string())).boxed_unsync();
    let sent = session.clone().send_request(node.request(method, &path, body)).await;
    sent.map_or(StatusCode::BAD_GATEWAY, |answer| answer.status())
}

/// with few descriptors, too many connections and too many bodies at the same time.
#[cfg(test)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unprivileged_account_cannot_stop_administrators_and_nodes() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    // Enough for the clients here and half as many for the server, which is the limit it derives from it.
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 600.min(hard), hard).unwrap();
    let figures = run(Size { bodies: 440, idle: 360, rounds: 50 }).await;
    assert_eq!(figures.refused, 0, "{figures:?}");
    assert!(figures.attacker_refused >= 240, "{figures:?}");
    assert!(figures.admin_p99 < Duration::from_secs(1), "{figures:?}");
    assert!(figures.lease_max < Duration::from_secs(1), "{figures:?}");
}

/// Reads until the server closes the connection. How many seconds that took.
#[cfg(test)]
async fn seconds_until_closed(mut stream: impl tokio::io::AsyncRead + Unpin) -> u64 {
    use tokio::io::AsyncReadExt as _;
    let started = Instant::now();
    let mut read = [0; 4096];
    let closed = async { while stream.read(&mut read).await.is_ok_and(|count| count > 0) {} };
    let closed = tokio::time::timeout(Duration::from_secs(3600), closed).await;
    closed.expect("the server closes the connection within an hour");
    started.elapsed().as_secs()
}

/// idle connections are closed.
#[cfg(test)]
#[tokio::test(start_paused = true)]
async fn connections_without_requests_are_closed() {
    use tokio::io::AsyncWriteExt as _;
    let cluster = Cluster::on_simulated_time().await;
    let somebody = Remote::new(&cluster, None, None);
    let silent = TcpStream::connect(somebody.address).await.unwrap();
    let took = seconds_until_closed(silent).await;
    assert!(took <= 15, "{took} s without a handshake");
    let took = seconds_until_closed(somebody.connect().await.unwrap()).await;
    assert!(took <= 15, "{took} s without a request");

    let mut tls = (*somebody.tls).clone();
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    let http1 = Remote { tls: Arc::new(tls), ..somebody.clone() };
    let mut half = http1.connect().await.unwrap();
    half.write_all(b"GET /version HTTP/1.1\r\nHost:").await.unwrap();
    let took = seconds_until_closed(half).await;
    assert!(took <= 16, "{took} s with half a request");
    let mut idle = http1.connect().await.unwrap();
    idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let took = seconds_until_closed(idle).await;
    assert!((80..=95).contains(&took), "{took} s after a request");
}

/// A client whose request is refused before it has sent the body can send the rest and read the response: the connection
/// is not reset, and stays usable.
#[cfg(test)]
#[tokio::test(start_paused = true)]
async fn a_refused_client_can_send_the_rest_of_its_body() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let cluster = Cluster::on_simulated_time().await;
    let mut remote = Remote::new(&cluster, None, None);
    Arc::make_mut(&mut remote.tls).alpn_protocols = vec![b"http/1.1".to_vec()];
    let mut client = remote.connect().await.unwrap();
    let head = "POST /api/v1/namespaces HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer wrong\r\n\
                Content-Type: application/json\r\nContent-Length: 9000\r\n\r\n";
    client.write_all(head.as_bytes()).await.unwrap();
    // Time passes when the server has nothing left to do.
    tokio::time::sleep(Duration::from_millis(100)).await;
    client.write_all(&[b' '; 9000]).await.unwrap();
    client.write_all(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut answers = String::new();
    client.read_to_string(&mut answers).await.unwrap();
    let lines: Vec<&str> = answers.lines().filter(|line| line.contains("HTTP/1.1 ")).collect();
    assert_eq!(lines, ["HTTP/1.1 401 Unauthorized", "HTTP/1.1 200 OK"], "{answers}");
}
