//! Forwards requests to a backend: a node's endpoint, a pod, or a service.
//!
//! One HTTP/1.1 connection per request; after an upgrade, bytes are copied in both directions. Not here: which backend, and
//! authorization (`log`, `stream`, `proxy`).

use crate::request::call::Call;
use crate::response::ApiResponse;
use crate::response::body::Body;
use crate::response::error::{ApiError, Result};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Upstream's timeout for connecting to a node.
const CONNECT_MAX: Duration = Duration::from_secs(30);
/// The timeout for resolving a name if there are other addresses.
const LOOKUP_MAX: Duration = Duration::from_secs(1);

pub(crate) struct Backend {
    /// None for a connection without TLS.
    pub(crate) tls: Option<Arc<ClientConfig>>,
    /// Names or addresses, the preferred one first. A later one is used if an earlier one cannot be resolved.
    pub(crate) hosts: Vec<String>,
    pub(crate) port: u16,
    pub(crate) reach: Reach,
}

/// Which addresses a backend may have. They come from API objects, and users who can write these must not be able to make
/// the server connect to services that listen only for their own machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// A pod, a service, or another port of a node. Upstream: `IsGlobalUnicast`.
    Proxied { own_port: u16 },
    /// The port of a node's agent, which may run on this machine.
    Agent { own_port: u16 },
}

/// Upstream's message.
pub(crate) const NOT_ALLOWED: &str = "address not allowed";

impl Reach {
    pub(crate) fn allows(self, address: SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        let link_local = match ip {
            IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        };
        let nowhere = link_local || ip.is_unspecified() || ip.is_multicast();
        let (own_port, loopback) = match self {
            Reach::Proxied { own_port } => (own_port, false),
            Reach::Agent { own_port } => (own_port, true),
        };
        // The server must not call itself: it would treat the request as one of its own components.
        let own = address.port() == own_port && is_local(ip);
        !nowhere && !own && (loopback || !ip.is_loopback())
    }
}

/// Whether it is an address of this machine.
fn is_local(ip: IpAddr) -> bool {
    // Only a local address can be bound.
    ip.is_loopback() || std::net::UdpSocket::bind((ip, 0)).is_ok()
}

impl Backend {
    /// `https://10.0.0.7:10250`, for error messages.
    pub(crate) fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", authority(self.host(), self.port))
    }

    fn host(&self) -> &str {
        self.hosts.first().map_or("", String::as_str)
    }

    /// Sends a request. Errors have the words of Go, which people search for.
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
        for (place, host) in self.hosts.iter().enumerate() {
            let address = authority(host, self.port);
            let longest = if place + 1 < self.hosts.len() { LOOKUP_MAX } else { CONNECT_MAX };
            let lookup = tokio::time::timeout(longest, tokio::net::lookup_host(&address)).await;
            let found: Vec<SocketAddr> = match lookup {
                Ok(Ok(found)) => found.collect(),
                // Another one may resolve.
                _ if place + 1 < self.hosts.len() => continue,
                Ok(Err(error)) => return Err(dial_error(&address, &error)),
                Err(_) => return Err(format!("dial tcp {address}: i/o timeout")),
            };
            if !found.iter().all(|address| self.reach.allows(*address)) {
                return Err(NOT_ALLOWED.to_owned());
            }
            // Connects to the checked addresses: the name could resolve to others the next time.
            let connecting = TcpStream::connect(&*found);
            return match tokio::time::timeout(CONNECT_MAX, connecting).await {
                Ok(Ok(stream)) => {
                    let _ = stream.set_nodelay(true);
                    Ok((host, stream))
                }
                Ok(Err(error)) => Err(dial_error(&address, &error)),
                Err(_) => Err(format!("dial tcp {address}: i/o timeout")),
            };
        }
        Err("no address to dial".to_owned())
    }
}

/// The message of Go's network library, because people know it and match on it.
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

pub(crate) fn authority(host: &str, port: u16) -> String {
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
            tracing::debug!(%error, "connection to a backend failed");
        }
    });
    sender.send_request(request).await.map_err(|error| error.to_string())
}

/// Hop-by-hop headers (RFC 9110, 7.6.1), and headers that we add ourselves.
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

/// The request's headers for a backend: without credentials and hop-by-hop headers.
pub(crate) fn passed_headers(call: &Call) -> HeaderMap {
    let mut headers = call.headers.clone();
    access::authn::bearer::strip_credentials(&mut headers);
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

/// Whether the request is an upgrade to WebSocket or SPDY.
pub(crate) fn wants_upgrade(call: &Call) -> bool {
    let connection = call.headers.get_all(header::CONNECTION).iter();
    connection
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|token| token.trim().eq_ignore_ascii_case("upgrade"))
        && call.headers.contains_key(header::UPGRADE)
}

/// Returns the backend's response: an error, a stream, or an upgraded connection.
pub(crate) fn pass_on(call: &Call, response: Response<Incoming>) -> Result<ApiResponse> {
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return tunnel(call, response);
    }
    let (mut parts, body) = response.into_parts();
    for name in [header::CONNECTION, header::TRANSFER_ENCODING, header::UPGRADE] {
        parts.headers.remove(name);
    }
    Ok(Response::from_parts(parts, stream(call, body)))
}

/// Streams the backend's body unchanged, until it or the server ends.
pub(crate) fn stream(call: &Call, body: Incoming) -> Body {
    Body::stream(pieces(call, body))
}

pub(crate) fn pieces(
    call: &Call,
    body: Incoming,
) -> impl futures::Stream<Item = Bytes> + Send + use<> {
    let kept = (call.server.closing(), call.held.clone());
    futures::stream::unfold((body, kept), |(mut body, mut kept)| async move {
        loop {
            let frame = tokio::select! {
                frame = body.frame() => frame?,
                _ = kept.0.wait_for(|closing| *closing) => return None,
            };
            match frame.map(http_body::Frame::into_data) {
                Ok(Ok(bytes)) => return Some((bytes, (body, kept))),
                // Trailers are ignored.
                Ok(Err(_)) => {}
                Err(error) => {
                    tracing::debug!(%error, "backend stopped in the middle of its response");
                    return None;
                }
            }
        }
    })
}

/// Responds with 101 as well, and copies bytes in both directions.
fn tunnel(call: &Call, response: Response<Incoming>) -> Result<ApiResponse> {
    let client = call.wire.upgrade.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
    let Some(client) = client else {
        return Err(ApiError::bad_request("this connection cannot be upgraded"));
    };
    let headers = response.headers().clone();
    let (mut closing, held) = (call.server.closing(), call.held.clone());
    tokio::spawn(async move {
        let _held = held;
        let (client, backend) = match tokio::try_join!(client, hyper::upgrade::on(response)) {
            Ok(both) => both,
            Err(error) => {
                tracing::debug!(%error, "upgrading a connection failed");
                return;
            }
        };
        let (mut client, mut backend) = (TokioIo::new(client), TokioIo::new(backend));
        let copied = tokio::select! {
            copied = tokio::io::copy_bidirectional(&mut client, &mut backend) => copied,
            _ = closing.wait_for(|closing| *closing) => return,
        };
        if let Err(error) = copied {
            tracing::debug!(%error, "upgraded connection failed");
        }
    });
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *answer.headers_mut() = headers;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// the proxy connects to pods, services and nodes only.
    #[test]
    fn a_backend_must_not_be_on_the_servers_own_machine() {
        const OWN: u16 = 6443;
        let (proxied, agent) = (Reach::Proxied { own_port: OWN }, Reach::Agent { own_port: OWN });
        for (address, by_proxy, by_agent) in [
            ("10.244.0.5:80", true, true),
            ("[fd00::5]:80", true, true),
            ("127.0.0.1:10250", false, true),
            ("[::1]:10250", false, true),
            ("[::ffff:127.0.0.1]:80", false, true),
            ("127.0.0.1:6443", false, false),
            ("192.0.2.1:6443", true, true),
            ("0.0.0.0:80", false, false),
            ("[::]:80", false, false),
            ("169.254.169.254:80", false, false),
            ("[::ffff:169.254.169.254]:80", false, false),
            ("[fe80::1]:80", false, false),
            ("224.0.0.1:80", false, false),
            ("255.255.255.255:80", false, false),
        ] {
            let parsed: SocketAddr = address.parse().unwrap();
            assert_eq!(proxied.allows(parsed), by_proxy, "{address} by proxy");
            assert_eq!(agent.allows(parsed), by_agent, "{address} by the agent's port");
        }
    }
}
