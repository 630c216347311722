//! One HTTP/1.1 connection over TLS, as a client holds it. There is no pool.

use crate::load::Ask;
use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Timeout of one request; the measurement fails then.
const ANSWER_MAX: Duration = Duration::from_secs(120);

/// How much of an error answer is printed.
const REFUSAL_SHOWN: usize = 400;

/// The server, and the credentials for it.
pub(crate) struct Target {
    /// `host:port`
    authority: String,
    name: ServerName<'static>,
    tls: TlsConnector,
    authorization: HeaderValue,
    namespace: String,
}

impl Target {
    pub(crate) fn new(url: &str, token: &str, ca: Option<&Path>, namespace: &str) -> Result<Self> {
        let uri: Uri = url.parse().with_context(|| format!("{url:?} is not a URL"))?;
        if uri.scheme_str() != Some("https") {
            bail!("{url:?} does not start with https://");
        }
        let host = uri.host().context("the URL names no host")?;
        let authority = format!("{host}:{}", uri.port_u16().unwrap_or(443));
        let name = host.trim_matches(['[', ']']).to_owned();
        let mut authorization = HeaderValue::from_str(&format!("Bearer {token}"))?;
        authorization.set_sensitive(true);
        Ok(Target {
            authority,
            name: ServerName::try_from(name)?,
            tls: TlsConnector::from(Arc::new(tls(ca)?)),
            authorization,
            namespace: namespace.to_owned(),
        })
    }

    /// The path of a core resource in the namespace of the benchmark.
    pub(crate) fn path(&self, resource: &str) -> String {
        format!("/api/v1/namespaces/{}/{resource}", self.namespace)
    }
}

pub(crate) struct Link {
    target: Arc<Target>,
    sender: SendRequest<Full<Bytes>>,
}

impl Link {
    pub(crate) async fn open(target: &Arc<Target>) -> Result<Self> {
        let sender = connect(target).await?;
        Ok(Link { target: target.clone(), sender })
    }

    /// Sends a request and returns when the head of the answer has arrived, whatever its status.
    pub(crate) async fn ask(&mut self, ask: &Ask) -> Result<Response<Incoming>> {
        if self.sender.is_closed() {
            self.sender = connect(&self.target).await?;
        }
        let request = Request::builder()
            .method(ask.method.clone())
            .uri(&ask.path)
            .header(HOST, &self.target.authority)
            .header(ACCEPT, "*/*")
            .header(AUTHORIZATION, &self.target.authorization)
            .header(CONTENT_TYPE, ask.content_type)
            .body(Full::new(ask.body.clone()))?;
        let answer = async {
            self.sender.ready().await?;
            self.sender.send_request(request).await
        };
        in_time(answer).await?.with_context(|| format!("{} {}", ask.method, ask.path))
    }

    /// Sends a request and reads the whole answer, which must be a success.
    pub(crate) async fn call(&mut self, ask: &Ask) -> Result<Bytes> {
        let answer = self.ask(ask).await?;
        let status = answer.status();
        let body = in_time(answer.into_body().collect()).await??.to_bytes();
        if !status.is_success() {
            let shown = String::from_utf8_lossy(&body[..body.len().min(REFUSAL_SHOWN)]);
            bail!("{} {}: {status}: {shown}", ask.method, ask.path);
        }
        Ok(body)
    }
}

async fn connect(target: &Target) -> Result<SendRequest<Full<Bytes>>> {
    let opened = async {
        let tcp = TcpStream::connect(&target.authority).await?;
        tcp.set_nodelay(true)?;
        let tls = target.tls.connect(target.name.clone(), tcp).await?;
        let (sender, connection) = handshake(TokioIo::new(tls)).await?;
        // The next request on this connection reports an error.
        tokio::spawn(async move { drop(connection.await) });
        anyhow::Ok(sender)
    };
    in_time(opened).await?.with_context(|| format!("cannot connect to {}", target.authority))
}

pub(crate) async fn in_time<T>(work: impl Future<Output = T>) -> Result<T> {
    let limited = tokio::time::timeout(ANSWER_MAX, work).await;
    limited.with_context(|| format!("no answer within {} s", ANSWER_MAX.as_secs()))
}

fn tls(ca: Option<&Path>) -> Result<ClientConfig> {
    let mut config = if let Some(path) = ca {
        let certificate = CertificateDer::from_pem_file(path)
            .with_context(|| format!("no certificate in {}", path.display()))?;
        let mut roots = RootCertStore::empty();
        roots.add(certificate)?;
        ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth()
    } else {
        // For `--server` without `--ca`.
        ::tls::insecure_client_config()?
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
