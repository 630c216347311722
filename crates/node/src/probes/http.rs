//! httpGet probes: one GET that follows redirects within the same host (N-99). Certificates are not
//! verified (N-98).

use super::handler::Outcome;
use super::http_request::Request;
use super::tcp::{dial, errno_text};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// Bytes of a response that are read.
const BODY_MAX: usize = 10 * 1024;
const REDIRECTS_MAX: usize = 10;

/// Go's error when the server of an HTTPS request answers in plain HTTP. Hooks then try again without TLS.
pub(super) const PLAIN_RESPONSE: &str = "http: server gave HTTP response to HTTPS client";

pub(super) struct Response {
    pub(super) status: u16,
    pub(super) location: Option<String>,
    pub(super) body: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Follow {
    SameHost,
    Anywhere,
}

pub(super) async fn probe(request: Request, timeout: Duration) -> Outcome {
    let url = request.url();
    match tokio::time::timeout(timeout, get(request, Follow::SameHost)).await {
        Ok(Ok(response)) => judge(&response),
        Ok(Err(why)) => Outcome::Failure(why),
        Err(_) => Outcome::Failure(format!(
            "Get {url:?}: context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
        )),
    }
}

fn judge(response: &Response) -> Outcome {
    match response.status {
        200..=299 => Outcome::Success,
        300..=399 => Outcome::Warning(format!(
            "Probe terminated redirects, Response body: {}",
            String::from_utf8_lossy(&response.body)
        )),
        status => Outcome::Failure(format!("HTTP probe failed with statuscode: {status}")),
    }
}

/// The error is the complete message.
pub(super) async fn get(request: Request, follow: Follow) -> Result<Response, String> {
    let first_host = request.host.clone();
    let mut request = request;
    for _ in 0..=REDIRECTS_MAX {
        let response = match get_once(&request).await {
            Ok(response) => response,
            Err(why) => return Err(format!("Get {:?}: {why}", request.url())),
        };
        let redirect = matches!(response.status, 301 | 302 | 303 | 307 | 308);
        let next = response.location.as_deref().filter(|_| redirect);
        match next.and_then(|location| request.redirected(location)) {
            Some(next) if follow == Follow::Anywhere || next.host == first_host => request = next,
            _ => return Ok(response),
        }
    }
    Err(format!("Get {:?}: stopped after {REDIRECTS_MAX} redirects", request.url()))
}

async fn get_once(request: &Request) -> Result<Response, String> {
    let stream = dial(&request.host, request.port).await?;
    if !request.tls {
        return exchange(stream, request).await;
    }
    let name = ServerName::try_from(request.host.clone())
        .map_err(|_| format!("tls: {:?} is not a server name", request.host))?;
    let tls = tokio_rustls::TlsConnector::from(trust_all()).connect(name, stream).await;
    exchange(tls.map_err(|error| tls_text(&error))?, request).await
}

async fn exchange<S>(stream: S, request: &Request) -> Result<Response, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
        .title_case_headers(true)
        .handshake::<_, Empty<Bytes>>(TokioIo::new(stream))
        .await
        .map_err(|error| go_text(&error))?;
    // Dropped with this future, so that a timeout closes the connection.
    let mut driver = tokio::task::JoinSet::new();
    driver.spawn(connection);
    let mut get = ::http::Request::get(&request.path)
        .header(::http::header::HOST, request.host_header_value())
        .header(::http::header::CONNECTION, "close");
    for (name, value) in &request.headers {
        get = get.header(name, value);
    }
    let get = get.body(Empty::new()).map_err(|error| error.to_string())?;
    let response = sender.send_request(get).await.map_err(|error| go_text(&error))?;
    let location = response.headers().get(::http::header::LOCATION);
    let location = location.and_then(|value| value.to_str().ok()).map(str::to_owned);
    let status = response.status().as_u16();
    Ok(Response { status, location, body: read_start(response.into_body()).await? })
}

/// Reads at most [`BODY_MAX`] bytes and does not wait for the rest.
async fn read_start(mut body: Incoming) -> Result<Vec<u8>, String> {
    let mut read = Vec::new();
    while read.len() < BODY_MAX {
        let Some(frame) = body.frame().await else { break };
        if let Ok(data) = frame.map_err(|error| go_text(&error))?.into_data() {
            let room = (BODY_MAX - read.len()).min(data.len());
            read.extend_from_slice(&data[..room]);
        }
    }
    Ok(read)
}

/// The error in Go's words.
fn go_text(error: &hyper::Error) -> String {
    if error.is_incomplete_message() {
        return "EOF".to_owned();
    }
    let source = std::error::Error::source(error);
    match source.and_then(|source| source.downcast_ref::<std::io::Error>()) {
        Some(io) => format!("read tcp: {}", errno_text(io)),
        None if error.is_parse() => {
            format!("net/http: HTTP/1.x transport connection broken: {error}")
        }
        None => error.to_string(),
    }
}

fn tls_text(error: &std::io::Error) -> String {
    use rustls::InvalidMessage::{InvalidContentType, UnknownProtocolVersion};
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(rustls::Error::InvalidMessage(InvalidContentType | UnknownProtocolVersion)) => {
            PLAIN_RESPONSE.to_owned()
        }
        Some(tls) => format!("tls: {tls}"),
        None if error.kind() == std::io::ErrorKind::UnexpectedEof => "EOF".to_owned(),
        None => errno_text(error),
    }
}

/// A TLS configuration that accepts every certificate (N-98).
fn trust_all() -> Arc<rustls::ClientConfig> {
    static CONFIG: OnceLock<Arc<rustls::ClientConfig>> = OnceLock::new();
    let new = || Arc::new(tls::insecure_client_config().expect("ring offers the default versions"));
    CONFIG.get_or_init(new).clone()
}
