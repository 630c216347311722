//! A request to speak something else on the connection from here on.

use super::answer::{self, Answer, Refused};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, header};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

const SPDY: &str = "SPDY/3.1";
const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");
const ACCEPTED_PROTOCOLS: HeaderName =
    HeaderName::from_static("x-accepted-stream-protocol-versions");

pub(super) type Io = TokioIo<Upgraded>;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    WebSocket,
    Spdy,
}

pub(super) struct Upgrade {
    pub(super) manner: Manner,
    /// Subprotocols the client offers, its favourite first.
    offered: Vec<String>,
    websocket_key: HeaderValue,
    connection: OnUpgrade,
}

impl Upgrade {
    pub(super) fn wanted<B>(request: &mut Request<B>) -> Option<Upgrade> {
        let headers = request.headers();
        if !list(headers, &header::CONNECTION).any(|token| token.eq_ignore_ascii_case("upgrade")) {
            return None;
        }
        let manner = list(headers, &header::UPGRADE).find_map(|token| {
            match token.to_ascii_lowercase().as_str() {
                "websocket" => Some(Manner::WebSocket),
                "spdy/3.1" => Some(Manner::Spdy),
                _ => None,
            }
        })?;
        let protocols = match manner {
            Manner::WebSocket => header::SEC_WEBSOCKET_PROTOCOL,
            Manner::Spdy => STREAM_PROTOCOL,
        };
        let offered = list(headers, &protocols).map(str::to_owned).collect();
        let websocket_key = match (manner, headers.get(header::SEC_WEBSOCKET_KEY)) {
            (Manner::WebSocket, key) => key?.clone(),
            (Manner::Spdy, _) => HeaderValue::from_static(""),
        };
        let connection = request.extensions_mut().remove::<OnUpgrade>()?;
        Some(Upgrade { manner, offered, websocket_key, connection })
    }

    /// The first offered protocol that is among those known. A WebSocket client may offer none,
    /// which is the protocol "".
    pub(super) fn choose<'a>(&self, known: &[&'a str]) -> Result<&'a str, Refused> {
        if self.offered.is_empty() && self.manner == Manner::WebSocket {
            return Ok("");
        }
        if self.offered.is_empty() {
            let why = "unable to upgrade: X-Stream-Protocol-Version header is required";
            return Err(Box::new(answer::text(StatusCode::BAD_REQUEST, why)));
        }
        let chosen = self.offered.iter().find_map(|offered| {
            known.iter().find(|known| !known.is_empty() && **known == offered.as_str())
        });
        chosen.copied().ok_or_else(|| {
            let why = format!(
                "unable to upgrade: unable to negotiate protocol: client supports {:?}, server accepts {known:?}",
                self.offered
            );
            let mut answer = answer::text(StatusCode::FORBIDDEN, why);
            for known in known {
                if let Ok(value) = HeaderValue::from_str(known) {
                    answer.headers_mut().append(ACCEPTED_PROTOCOLS, value);
                }
            }
            Box::new(answer)
        })
    }

    /// Answers 101, and hands the connection over once that answer is sent.
    pub(super) fn accept<F>(
        self,
        protocol: &str,
        then: impl FnOnce(Io) -> F + Send + 'static,
    ) -> Answer
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut answer = answer::empty(StatusCode::SWITCHING_PROTOCOLS);
        let headers = answer.headers_mut();
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        let upgrade = match self.manner {
            Manner::WebSocket => "websocket",
            Manner::Spdy => SPDY,
        };
        headers.insert(header::UPGRADE, HeaderValue::from_static(upgrade));
        let named = match self.manner {
            Manner::WebSocket => header::SEC_WEBSOCKET_PROTOCOL,
            Manner::Spdy => STREAM_PROTOCOL,
        };
        if let Ok(protocol) = HeaderValue::from_str(protocol)
            && !protocol.is_empty()
        {
            headers.insert(named, protocol);
        }
        if self.manner == Manner::WebSocket {
            let accept = websocket_accept(self.websocket_key.as_bytes());
            if let Ok(accept) = HeaderValue::from_str(&accept) {
                headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
            }
        }
        let connection = self.connection;
        tokio::spawn(async move {
            match connection.await {
                Ok(upgraded) => then(TokioIo::new(upgraded)).await,
                Err(error) => tracing::debug!(%error, "a connection was not upgraded after all"),
            }
        });
        answer
    }
}

/// The comma-separated words of a header, however often it is repeated.
fn list<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|word| !word.is_empty())
}

/// What a caller is told who wants a stream but no upgrade.
pub(super) fn required() -> Answer {
    answer::text(StatusCode::BAD_REQUEST, "Upgrade request required")
}

/// Shows a client that its key was read (RFC 6455, section 4.2.2). Written here, because it is all that
/// the handshake of `tungstenite` would be needed for, and that brings hashes of its own.
fn websocket_accept(key: &[u8]) -> String {
    let spoken = [key, b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"].concat();
    BASE64_STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, &spoken))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_accepted_key_is_that_of_the_standards_example() {
        let accept = websocket_accept(b"dGhlIHNhbXBsZSBub25jZQ==");
        assert_eq!(accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
