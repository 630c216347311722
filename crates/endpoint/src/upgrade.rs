//! Requests to upgrade the connection to WebSocket or SPDY.

use crate::response::{self, Rejection, Response};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, header};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

const SPDY: &str = "SPDY/3.1";
const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");
const ACCEPTED_PROTOCOLS: HeaderName =
    HeaderName::from_static("x-accepted-stream-protocol-versions");

pub(crate) type Io = TokioIo<Upgraded>;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    WebSocket,
    Spdy,
}

pub(crate) struct Upgrade {
    pub(crate) transport: Transport,
    /// Subprotocols that the client offers, in its order of preference.
    offered: Vec<String>,
    websocket_key: HeaderValue,
    connection: OnUpgrade,
}

impl Upgrade {
    /// None if the request does not ask for an upgrade to WebSocket or SPDY.
    pub(crate) fn from_request<B>(request: &mut Request<B>) -> Option<Upgrade> {
        let headers = request.headers();
        if !list(headers, &header::CONNECTION).any(|token| token.eq_ignore_ascii_case("upgrade")) {
            return None;
        }
        let transport = list(headers, &header::UPGRADE).find_map(|token| {
            match token.to_ascii_lowercase().as_str() {
                "websocket" => Some(Transport::WebSocket),
                "spdy/3.1" => Some(Transport::Spdy),
                _ => None,
            }
        })?;
        let protocols = match transport {
            Transport::WebSocket => header::SEC_WEBSOCKET_PROTOCOL,
            Transport::Spdy => STREAM_PROTOCOL,
        };
        let offered = list(headers, &protocols).map(str::to_owned).collect();
        let websocket_key = match (transport, headers.get(header::SEC_WEBSOCKET_KEY)) {
            (Transport::WebSocket, key) => key?.clone(),
            (Transport::Spdy, _) => HeaderValue::from_static(""),
        };
        let connection = request.extensions_mut().remove::<OnUpgrade>()?;
        Some(Upgrade { transport, offered, websocket_key, connection })
    }

    /// The first offered subprotocol that is among `known`. A WebSocket client may offer none, which is the
    /// subprotocol "".
    pub(crate) fn choose<'a>(&self, known: &[&'a str]) -> Result<&'a str, Rejection> {
        if self.offered.is_empty() && self.transport == Transport::WebSocket {
            return Ok("");
        }
        if self.offered.is_empty() {
            let why = "unable to upgrade: X-Stream-Protocol-Version header is required";
            return Err(Box::new(response::text(StatusCode::BAD_REQUEST, why)));
        }
        let chosen = self.offered.iter().find_map(|offered| {
            known.iter().find(|known| !known.is_empty() && **known == offered.as_str())
        });
        chosen.copied().ok_or_else(|| {
            let why = format!(
                "unable to upgrade: unable to negotiate protocol: client supports {:?}, server accepts {known:?}",
                self.offered
            );
            let mut response = response::text(StatusCode::FORBIDDEN, why);
            for known in known {
                if let Ok(value) = HeaderValue::from_str(known) {
                    response.headers_mut().append(ACCEPTED_PROTOCOLS, value);
                }
            }
            Box::new(response)
        })
    }

    /// Responds with 101, and calls `then` with the connection once that response is sent.
    pub(crate) fn accept<F>(
        self,
        protocol: &str,
        then: impl FnOnce(Io) -> F + Send + 'static,
    ) -> Response
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut response = response::empty(StatusCode::SWITCHING_PROTOCOLS);
        let headers = response.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        let upgrade = match self.transport {
            Transport::WebSocket => "websocket",
            Transport::Spdy => SPDY,
        };
        headers.insert(header::UPGRADE, HeaderValue::from_static(upgrade));
        let protocol_header = match self.transport {
            Transport::WebSocket => header::SEC_WEBSOCKET_PROTOCOL,
            Transport::Spdy => STREAM_PROTOCOL,
        };
        if let Ok(protocol) = HeaderValue::from_str(protocol)
            && !protocol.is_empty()
        {
            headers.insert(protocol_header, protocol);
        }
        if self.transport == Transport::WebSocket {
            let accept = websocket_accept(self.websocket_key.as_bytes());
            if let Ok(accept) = HeaderValue::from_str(&accept) {
                headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
            }
        }
        let connection = self.connection;
        tokio::spawn(async move {
            match connection.await {
                Ok(upgraded) => then(TokioIo::new(upgraded)).await,
                Err(error) => tracing::debug!(%error, "upgrading a connection failed"),
            }
        });
        response
    }
}

/// The comma-separated values of a header, which may be repeated.
fn list<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|value| !value.is_empty())
}

/// The response to a request for a stream without an upgrade.
pub(crate) fn required() -> Response {
    response::text(StatusCode::BAD_REQUEST, "Upgrade request required")
}

/// The value of Sec-WebSocket-Accept (RFC 6455, section 4.2.2). The handshake feature of
/// `tungstenite` is not used for it, because that needs further hash crates.
fn websocket_accept(key: &[u8]) -> String {
    let input = [key, b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"].concat();
    BASE64_STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, &input))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_accept_value_matches_the_example_of_the_standard() {
        let accept = websocket_accept(b"dGhlIHNhbXBsZSBub25jZQ==");
        assert_eq!(accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
