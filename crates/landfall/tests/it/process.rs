//! Starts the real binary, sends HTTPS requests to it, and stops or kills it.
//!
//! The client is small on purpose: one connection, one request at a time, and every failure is an error that the test
//! can inspect.

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// A start takes a tenth of a second; on a busy machine it may take longer.
const START_MAX: Duration = Duration::from_secs(60);
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(30);

pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;

/// A running `landfall up`.
pub(crate) struct Landfall {
    child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) dir: PathBuf,
}

impl Landfall {
    /// Starts it and waits for the line with `ready`.
    pub(crate) async fn start(dir: &Path) -> Landfall {
        Landfall::start_with(dir, &[]).await
    }

    /// The same, with further arguments.
    pub(crate) async fn start_with(dir: &Path, args: &[&str]) -> Landfall {
        Landfall::ready(spawn_with(dir, args), dir).await
    }

    /// The same, with a node and a scheduler.
    pub(crate) async fn start_with_node(dir: &Path) -> Landfall {
        let args = crate::harness::node_args();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        Landfall::ready(spawn_exactly(dir, &args), dir).await
    }

    async fn ready(mut child: Child, dir: &Path) -> Landfall {
        let stdout = child.stdout.take().expect("stdout is piped");
        let reading = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            BufReader::new(stdout).read_line(&mut line).map(|_| line)
        });
        let line = tokio::time::timeout(START_MAX, reading).await;
        let line = line.unwrap_or_else(|_| {
            // The thread that reads ends with the process.
            let _ = child.kill();
            remove_leftovers(dir);
            panic!("landfall is not ready after {START_MAX:?}: {}", stderr(dir));
        });
        let line = line.unwrap().unwrap();
        let address = line.strip_prefix("ready: https://").and_then(|rest| rest.split(' ').next());
        let Some(address) = address else {
            let _ = child.kill();
            remove_leftovers(dir);
            panic!("landfall did not start: {line:?}, {}", stderr(dir));
        };
        Landfall { child, address: address.parse().unwrap(), dir: dir.to_owned() }
    }

    /// Kills it with SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Stops it with SIGTERM.
    pub(crate) async fn stop(mut self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        for _ in 0..300 {
            if self.child.try_wait().unwrap().is_some() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("landfall did not stop within 15 seconds of SIGTERM");
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// A line of /proc/PID/status in KiB, such as `VmHWM`.
    pub(crate) fn memory(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with(field)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    pub(crate) fn reach(&self) -> Reach {
        let token = std::fs::read_to_string(self.dir.join("admin.token")).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.dir.join("pki/ca.crt")).unwrap()).unwrap();
        Reach {
            address: self.address,
            roots: Arc::new(roots),
            identity: None,
            token: Some(token.trim().to_owned()),
            h2: false,
        }
    }

    pub(crate) async fn client(&self) -> Client {
        self.reach().connect().await.expect("landfall accepts connections")
    }
}

impl Drop for Landfall {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            remove_leftovers(&self.dir);
        }
    }
}

/// Removes what the node of a failed test has in the kernel, if it had a node.
fn remove_leftovers(dir: &Path) {
    if dir.join("kernel_state.json").exists() {
        let mut command = Command::new(env!("CARGO_BIN_EXE_landfall"));
        let _ = command.arg("down").arg("--data-dir").arg(dir).output();
    }
}

/// Starts it without waiting. Its stderr is appended to [`stderr_file`].
pub(crate) fn spawn(dir: &Path) -> Child {
    spawn_with(dir, &[])
}

fn spawn_with(dir: &Path, args: &[&str]) -> Child {
    spawn_exactly(dir, &[&["--no-node", "--no-scheduler"], args].concat())
}

fn spawn_exactly(dir: &Path, args: &[&str]) -> Child {
    let log = std::fs::OpenOptions::new().create(true).append(true).open(stderr_file(dir)).unwrap();
    Command::new(env!("CARGO_BIN_EXE_landfall"))
        .args(["up", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(dir)
        .args(args)
        .env_remove("LANDFALL_LOG")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .unwrap()
}

/// Not in the data directory, so that it can be written when that disk is full.
pub(crate) fn stderr_file(dir: &Path) -> PathBuf {
    dir.with_extension("stderr")
}

pub(crate) fn stderr(dir: &Path) -> String {
    std::fs::read_to_string(stderr_file(dir)).unwrap_or_default()
}

pub(crate) fn assert_no_panic(dir: &Path) {
    let output = stderr(dir);
    assert!(!output.contains("panicked"), "landfall panicked:\n{output}");
}

/// The address of a server and the credentials for it.
#[derive(Clone)]
pub(crate) struct Reach {
    pub(crate) address: SocketAddr,
    roots: Arc<RootCertStore>,
    /// A client certificate and its key, in PEM.
    pub(crate) identity: Option<(String, String)>,
    pub(crate) token: Option<String>,
    pub(crate) h2: bool,
}

impl Reach {
    pub(crate) fn anonymous(&self) -> Reach {
        Reach { token: None, identity: None, ..self.clone() }
    }

    pub(crate) fn with_token(&self, token: &str) -> Reach {
        Reach { token: Some(token.to_owned()), identity: None, ..self.clone() }
    }

    pub(crate) fn with_h2(&self) -> Reach {
        Reach { h2: true, ..self.clone() }
    }

    pub(crate) fn with_identity(&self, certificate: &str, key: &str) -> Reach {
        let identity = Some((certificate.to_owned(), key.to_owned()));
        Reach { token: None, identity, ..self.clone() }
    }

    /// Opens a TLS connection without sending anything.
    pub(crate) async fn tls(&self) -> Result<TlsStream<TcpStream>, Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(self.roots.clone());
        let mut config = match &self.identity {
            None => config.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = CertificateDer::pem_slice_iter(certificate.as_bytes());
                let chain = chain.collect::<Result<Vec<_>, _>>()?;
                config
                    .with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes())?)?
            }
        };
        config.alpn_protocols = vec![if self.h2 { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from("localhost")?;
        Ok(TlsConnector::from(Arc::new(config)).connect(name, stream).await?)
    }

    pub(crate) async fn connect(&self) -> Result<Client, Error> {
        let stream = TokioIo::new(self.tls().await?);
        let sender = if self.h2 {
            let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await?;
            tokio::spawn(async move { drop(connection.await) });
            Sender::Two(sender)
        } else {
            let (sender, connection) = http1::handshake(stream).await?;
            tokio::spawn(async move { drop(connection.await) });
            Sender::One(sender)
        };
        Ok(Client { sender, token: self.token.clone() })
    }
}

enum Sender {
    One(http1::SendRequest<Full<Bytes>>),
    Two(http2::SendRequest<Full<Bytes>>),
}

/// One connection.
pub(crate) struct Client {
    sender: Sender,
    pub(crate) token: Option<String>,
}

/// A complete response.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
}

impl Reply {
    pub(crate) fn code(&self) -> u16 {
        self.status.as_u16()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The reason of a Status.
    pub(crate) fn reason(&self) -> String {
        self.json()["reason"].as_str().unwrap_or_default().to_owned()
    }
}

impl Client {
    pub(crate) async fn get(&mut self, path: &str) -> Result<Reply, Error> {
        self.call(Method::GET, path, "", Bytes::new()).await
    }

    pub(crate) async fn post(&mut self, path: &str, body: &Value) -> Result<Reply, Error> {
        self.call(Method::POST, path, "application/json", body.to_string().into()).await
    }

    pub(crate) async fn merge(&mut self, path: &str, patch: &Value) -> Result<Reply, Error> {
        let content_type = "application/merge-patch+json";
        self.call(Method::PATCH, path, content_type, patch.to_string().into()).await
    }

    pub(crate) async fn delete(&mut self, path: &str) -> Result<Reply, Error> {
        self.call(Method::DELETE, path, "", Bytes::new()).await
    }

    pub(crate) async fn call(
        &mut self,
        method: Method,
        path: &str,
        content_type: &str,
        body: Bytes,
    ) -> Result<Reply, Error> {
        let mut request = Request::builder().method(method).uri(path);
        if !content_type.is_empty() {
            request = request.header(header::CONTENT_TYPE, content_type);
        }
        self.send(request.body(Full::new(body))?).await
    }

    /// Adds the token, sends the request, and reads the complete response.
    pub(crate) async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Reply, Error> {
        let whole = async {
            let (parts, body) = self.open(request).await?.into_parts();
            let body = body.collect().await?.to_bytes();
            Ok(Reply { status: parts.status, body })
        };
        tokio::time::timeout(ANSWER_MAX, whole).await?
    }

    /// Sends the request and returns the body of the response as a stream: a watch.
    pub(crate) async fn open(
        &mut self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, Error> {
        if let Some(token) = &self.token
            && !request.headers().contains_key(header::AUTHORIZATION)
        {
            let value = format!("Bearer {token}").parse()?;
            request.headers_mut().insert(header::AUTHORIZATION, value);
        }
        match &mut self.sender {
            Sender::One(sender) => {
                request.headers_mut().insert(header::HOST, "localhost".parse()?);
                sender.ready().await?;
                Ok(sender.send_request(request).await?)
            }
            Sender::Two(sender) => {
                let uri = format!("https://localhost{}", request.uri());
                *request.uri_mut() = uri.parse()?;
                sender.ready().await?;
                Ok(sender.send_request(request).await?)
            }
        }
    }
}

/// Random numbers that can be repeated: xorshift with a printed seed.
pub(crate) struct Random(u64);

impl Random {
    /// `LANDFALL_SEED` repeats a printed seed. `make test` sets it from `SEED`.
    pub(crate) fn seeded() -> Random {
        let given = |name| std::env::var(name).ok().and_then(|seed| seed.parse().ok());
        let given = given("LANDFALL_SEED").or_else(|| given("PROPTEST_RNG_SEED"));
        let seed = given.unwrap_or_else(clock::random_u64);
        println!("LANDFALL_SEED={seed}");
        Random::from_seed(seed)
    }

    /// Mixes the seed, so that similar seeds give different numbers.
    pub(crate) fn from_seed(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).max(1))
    }

    pub(crate) fn fork(&mut self) -> Random {
        Random(self.next().max(1))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}
