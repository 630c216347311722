//! Reads the bearer token of a request, and removes credentials from its headers.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::header::{AUTHORIZATION, CONNECTION, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use http::{HeaderMap, HeaderValue};

/// Browsers cannot set `Authorization` on a WebSocket, so the token may come as a subprotocol.
const TOKEN_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// The token of the request, if it has one; an error if it is malformed.
pub fn token(headers: &HeaderMap) -> Result<Option<String>, &'static str> {
    match authorization(headers) {
        Some(token) => Ok(Some(token)),
        None if is_websocket(headers) => websocket_token(headers),
        None => Ok(None),
    }
}

/// Removes the credentials, so that they do not leak to backends: the header, and the token among the WebSocket
/// subprotocols, which the response must not repeat.
pub fn strip_credentials(headers: &mut HeaderMap) {
    headers.remove(AUTHORIZATION);
    let carries = protocols(headers).any(|protocol| protocol.starts_with(TOKEN_PROTOCOL));
    if carries {
        let rest: Vec<&str> =
            protocols(headers).filter(|protocol| !protocol.starts_with(TOKEN_PROTOCOL)).collect();
        let rest = HeaderValue::from_str(&rest.join(", "));
        headers.remove(SEC_WEBSOCKET_PROTOCOL);
        if let Ok(rest) = rest
            && !rest.is_empty()
        {
            headers.insert(SEC_WEBSOCKET_PROTOCOL, rest);
        }
    }
}

/// Schemes other than Bearer are ignored, as upstream does. A token that is not UTF-8 is kept, and will be refused.
fn authorization(headers: &HeaderMap) -> Option<String> {
    let value = String::from_utf8_lossy(headers.get(AUTHORIZATION)?.as_bytes());
    let (scheme, rest) = value.trim().split_once(' ')?;
    let token = rest.split(' ').next().unwrap_or_default();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then(|| token.to_owned())
}

fn websocket_token(headers: &HeaderMap) -> Result<Option<String>, &'static str> {
    let mut tokens = protocols(headers).filter_map(|name| name.strip_prefix(TOKEN_PROTOCOL));
    let Some(encoded) = tokens.next() else { return Ok(None) };
    if tokens.next().is_some() {
        return Err("multiple base64.bearer.authorization tokens specified");
    }
    if !protocols(headers).any(|name| !name.starts_with(TOKEN_PROTOCOL)) {
        return Err("missing additional subprotocol");
    }
    let bytes = BASE64_URL_SAFE_NO_PAD
        .decode(encoded)
        .map_err(|_| "invalid base64.bearer.authorization token encoding")?;
    let token = String::from_utf8(bytes).map_err(
        |_| "invalid base64.bearer.authorization token, contains non UTF-8-encoded runes",
    )?;
    Ok((!token.is_empty()).then_some(token))
}

fn protocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    tokens_of(headers, SEC_WEBSOCKET_PROTOCOL)
}

fn is_websocket(headers: &HeaderMap) -> bool {
    tokens_of(headers, UPGRADE).any(|name| name.eq_ignore_ascii_case("websocket"))
        && tokens_of(headers, CONNECTION).any(|name| name.eq_ignore_ascii_case("upgrade"))
}

fn tokens_of(headers: &HeaderMap, name: http::HeaderName) -> impl Iterator<Item = &str> {
    let lines = headers.get_all(name).into_iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(str::trim).filter(|token| !token.is_empty())
}
