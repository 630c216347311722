//! httpGet: one GET, followed where it is sent within the same host (N-99).
//!
//! Nothing is verified: a probe asks whether somebody answers, not who.

use super::dial::{dial, errno_text};
use super::handler::Outcome;
use super::http_request::Request;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// Of an answer, as much as is read.
const BODY_MAX: usize = 10 * 1024;
const REDIRECTS_MAX: usize = 10;

/// What Go says when TLS meets plain HTTP; hooks try again without TLS then.
pub(super) const PLAIN_ANSWER: &str = "http: server gave HTTP response to HTTPS client";

pub(super) struct Answer {
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
        Ok(Ok(answer)) => judge(&answer),
        Ok(Err(why)) => Outcome::Failure(why),
        Err(_) => Outcome::Failure(format!(
            "Get {url:?}: context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
        )),
    }
}

fn judge(answer: &Answer) -> Outcome {
    match answer.status {
        200..=299 => Outcome::Success,
        300..=399 => Outcome::Warning(format!(
            "Probe terminated redirects, Response body: {}",
            String::from_utf8_lossy(&answer.body)
        )),
        status => Outcome::Failure(format!("HTTP probe failed with statuscode: {status}")),
    }
}

/// The error is a text for people, complete.
pub(super) async fn get(request: Request, follow: Follow) -> Result<Answer, String> {
    let first_host = request.host.clone();
    let mut request = request;
    for _ in 0..=REDIRECTS_MAX {
        let answer = match once(&request).await {
            Ok(answer) => answer,
            Err(why) => return Err(format!("Get {:?}: {why}", request.url())),
        };
        let redirect = matches!(answer.status, 301 | 302 | 303 | 307 | 308);
        let next = answer.location.as_deref().filter(|_| redirect);
        match next.and_then(|location| request.redirected(location)) {
            Some(next) if follow == Follow::Anywhere || next.host == first_host => request = next,
            _ => return Ok(answer),
        }
    }
    Err(format!("Get {:?}: stopped after {REDIRECTS_MAX} redirects", request.url()))
}

async fn once(request: &Request) -> Result<Answer, String> {
    let stream = dial(&request.host, request.port).await?;
    if !request.tls {
        return exchange(stream, request).await;
    }
    let name = ServerName::try_from(request.host.clone())
        .map_err(|_| format!("tls: {:?} is no name of a server", request.host))?;
    let tls = tokio_rustls::TlsConnector::from(trusting()).connect(name, stream).await;
    exchange(tls.map_err(|error| tls_text(&error))?, request).await
}

async fn exchange<S>(stream: S, request: &Request) -> Result<Answer, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
        .title_case_headers(true)
        .handshake::<_, Empty<Bytes>>(TokioIo::new(stream))
        .await
        .map_err(|error| text(&error))?;
    // Dropped with this future, so that a timeout closes the socket.
    let mut driver = tokio::task::JoinSet::new();
    driver.spawn(connection);
    let mut asked = ::http::Request::get(&request.path)
        .header(::http::header::HOST, request.host_sent())
        .header(::http::header::CONNECTION, "close");
    for (name, value) in &request.headers {
        asked = asked.header(name, value);
    }
    let asked = asked.body(Empty::new()).map_err(|error| error.to_string())?;
    let answer = sender.send_request(asked).await.map_err(|error| text(&error))?;
    let location = answer.headers().get(::http::header::LOCATION);
    let location = location.and_then(|value| value.to_str().ok()).map(str::to_owned);
    let status = answer.status().as_u16();
    Ok(Answer { status, location, body: beginning(answer.into_body()).await? })
}

/// At most [`BODY_MAX`] bytes; the rest is not waited for.
async fn beginning(mut body: Incoming) -> Result<Vec<u8>, String> {
    let mut read = Vec::new();
    while read.len() < BODY_MAX {
        let Some(frame) = body.frame().await else { break };
        if let Ok(data) = frame.map_err(|error| text(&error))?.into_data() {
            let room = (BODY_MAX - read.len()).min(data.len());
            read.extend_from_slice(&data[..room]);
        }
    }
    Ok(read)
}

/// Go's words for what hyper met.
fn text(error: &hyper::Error) -> String {
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
            PLAIN_ANSWER.to_owned()
        }
        Some(tls) => format!("tls: {tls}"),
        None if error.kind() == std::io::ErrorKind::UnexpectedEof => "EOF".to_owned(),
        None => errno_text(error),
    }
}

/// Believes every certificate (N-98).
fn trusting() -> Arc<rustls::ClientConfig> {
    static CONFIG: OnceLock<Arc<rustls::ClientConfig>> = OnceLock::new();
    let make = || Arc::new(tls::trusting_anyone().expect("ring offers the default versions"));
    CONFIG.get_or_init(make).clone()
}
