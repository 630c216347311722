//! Somebody behind us who answers instead: a node's endpoint, a pod, a service.
//!
//! One connection per request, HTTP/1.1, and after an upgrade the connection itself in both
//! directions. Not here: who that is and whether the caller may (`log`, `stream`, `proxy`).

use crate::answer::Answer;
use crate::body::Body;
use crate::call::Call;
use crate::error::{ApiError, Result};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Upstream's limit for reaching a node.
const CONNECT_MAX: Duration = Duration::from_secs(30);
/// A name that is not the only way to somebody is not looked up for longer.
const LOOKUP_MAX: Duration = Duration::from_secs(1);

pub(crate) struct Backend {
    /// None: without TLS.
    pub(crate) tls: Option<Arc<ClientConfig>>,
    /// Names or addresses, the preferred one first. A later one is used when an earlier one means
    /// nothing here.
    pub(crate) hosts: Vec<String>,
    pub(crate) port: u16,
}

impl Backend {
    /// `https://10.0.0.7:10250`, as errors name it.
    pub(crate) fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", authority(self.host(), self.port))
    }

    fn host(&self) -> &str {
        self.hosts.first().map_or("", String::as_str)
    }

    /// Sends a request there. An error is in the words that people search for.
    pub(crate) async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> std::result::Result<Response<Incoming>, String> {
        let (host, stream) = self.dial().await?;
        if let Ok(name) = HeaderValue::from_str(&authority(host, self.port)) {
            request.headers_mut().insert(header::HOST, name);
        }
        let Some(config) = &self.tls else { return exchange(TokioIo::new(stream), request).await };
        let name = ServerName::try_from(host.to_owned()).map_err(|error| error.to_string())?;
        let connected = TlsConnector::from(config.clone()).connect(name, stream);
        let stream = match tokio::time::timeout(CONNECT_MAX, connected).await {
            Err(_) => return Err("net/http: TLS handshake timeout".to_owned()),
            Ok(Err(error)) => {
                return Err(format!("tls: failed to verify certificate: {error}"));
            }
            Ok(Ok(stream)) => stream,
        };
        exchange(TokioIo::new(stream), request).await
    }

    async fn dial(&self) -> std::result::Result<(&str, TcpStream), String> {
        let mut failed = "no address to dial".to_owned();
        for (place, host) in self.hosts.iter().enumerate() {
            let address = authority(host, self.port);
            if host.parse::<std::net::IpAddr>().is_err() && place + 1 < self.hosts.len() {
                let lookup = tokio::net::lookup_host(&address);
                let known = tokio::time::timeout(LOOKUP_MAX, lookup).await;
                if !matches!(known, Ok(Ok(_))) {
                    continue;
                }
            }
            let connecting = TcpStream::connect(&address);
            match tokio::time::timeout(CONNECT_MAX, connecting).await {
                Ok(Ok(stream)) => {
                    let _ = stream.set_nodelay(true);
                    return Ok((host, stream));
                }
                Ok(Err(error)) => failed = dial_error(&address, &error),
                Err(_) => failed = format!("dial tcp {address}: i/o timeout"),
            }
            break;
        }
        Err(failed)
    }
}

/// As Go's network library puts it, because that is what people know and match on.
fn dial_error(address: &str, error: &std::io::Error) -> String {
    let why = match error.kind() {
        std::io::ErrorKind::ConnectionRefused => "connect: connection refused".to_owned(),
        std::io::ErrorKind::HostUnreachable => "connect: no route to host".to_owned(),
        std::io::ErrorKind::NetworkUnreachable => "connect: network is unreachable".to_owned(),
        std::io::ErrorKind::TimedOut => "connect: connection timed out".to_owned(),
        _ if error.raw_os_error().is_none() => {
            let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
            return format!("dial tcp: lookup {host}: no such host");
        }
        _ => error.to_string(),
    };
    format!("dial tcp {address}: {why}")
}

fn authority(host: &str, port: u16) -> String {
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

async fn exchange<I>(
    io: I,
    request: Request<Full<Bytes>>,
) -> std::result::Result<Response<Incoming>, String>
where
    I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(io).await.map_err(|error| error.to_string())?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "a connection to a backend ended badly");
        }
    });
    sender.send_request(request).await.map_err(|error| error.to_string())
}

/// What concerns one connection and not the request (RFC 9110, 7.6.1), and what we add ourselves.
const NOT_PASSED: &[HeaderName] = &[
    header::CONNECTION,
    header::TRANSFER_ENCODING,
    header::TE,
    header::TRAILER,
    header::UPGRADE,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::CONTENT_LENGTH,
    header::HOST,
];

/// The request's headers as somebody behind us may see them: no credentials, nothing of the hop.
pub(crate) fn passed_headers(call: &Call) -> HeaderMap {
    let mut headers = call.headers.clone();
    crate::authn::bearer::strip_credentials(&mut headers);
    let impersonation: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with("impersonate-")).cloned().collect();
    for name in NOT_PASSED.iter().chain(&impersonation) {
        headers.remove(name);
    }
    if wants_upgrade(call) {
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        if let Some(to) = call.headers.get(header::UPGRADE) {
            headers.insert(header::UPGRADE, to.clone());
        }
    }
    headers
}

///
pub(crate) fn wants_upgrade(call: &Call) -> bool {
    let connection = call.headers.get_all(header::CONNECTION).iter();
    connection
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|token| token.trim().eq_ignore_ascii_case("upgrade"))
        && call.headers.contains_key(header::UPGRADE)
}

/// The backend's answer, whatever it is: a refusal, a stream, or another protocol from here on.
pub(crate) fn pass_on(call: &Call, response: Response<Incoming>) -> Result<Answer> {
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return tunnel(call, response);
    }
    let (mut parts, body) = response.into_parts();
    for name in [header::CONNECTION, header::TRANSFER_ENCODING, header::UPGRADE] {
        parts.headers.remove(name);
    }
    Ok(Response::from_parts(parts, stream(call, body)))
}

/// Everything the backend says, as it says it, until it ends or we do.
pub(crate) fn stream(call: &Call, body: Incoming) -> Body {
    let closing = call.server.closing();
    Body::stream(futures::stream::unfold((body, closing), |(mut body, mut closing)| async move {
        loop {
            let frame = tokio::select! {
                frame = body.frame() => frame?,
                _ = closing.wait_for(|closing| *closing) => return None,
            };
            match frame.map(http_body::Frame::into_data) {
                Ok(Ok(bytes)) => return Some((bytes, (body, closing))),
                // Trailers say nothing here.
                Ok(Err(_)) => {}
                Err(error) => {
                    tracing::debug!(%error, "a backend stopped in the middle of its answer");
                    return None;
                }
            }
        }
    }))
}

/// Answers 101 too, and from then on copies bytes both ways.
fn tunnel(call: &Call, response: Response<Incoming>) -> Result<Answer> {
    let client = call.wire.upgrade.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
    let Some(client) = client else {
        return Err(ApiError::bad_request("this connection cannot be upgraded"));
    };
    let headers = response.headers().clone();
    let mut closing = call.server.closing();
    tokio::spawn(async move {
        let (client, backend) = match tokio::try_join!(client, hyper::upgrade::on(response)) {
            Ok(both) => both,
            Err(error) => {
                tracing::debug!(%error, "a connection was not upgraded after all");
                return;
            }
        };
        let (mut client, mut backend) = (TokioIo::new(client), TokioIo::new(backend));
        let copied = tokio::select! {
            copied = tokio::io::copy_bidirectional(&mut client, &mut backend) => copied,
            _ = closing.wait_for(|closing| *closing) => return,
        };
        if let Err(error) = copied {
            tracing::debug!(%error, "an upgraded connection ended badly");
        }
    });
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *answer.headers_mut() = headers;
    Ok(answer)
}
