//! `pods|services|nodes/{name}/proxy/…`: forwards HTTP to pods, services and nodes.
//!
//! Request bodies have the usual size limit. Links in HTML are rewritten to go through the proxy.

use super::backend::{self, Backend, Reach};
use super::links::Links;
use super::node;
use super::service_endpoint;
use super::stream;
use crate::object::{Stored as _, store_name};
use crate::request::call::Call;
use crate::response::ApiResponse;
use crate::response::body::Body;
use crate::response::error::{ApiError, Result};
use api::Status;
use api::value::ValueExt as _;
use flate2::Compression;
use flate2::read::{DeflateDecoder, DeflateEncoder, GzDecoder, GzEncoder};
use futures::StreamExt as _;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use serde_json::Value;
use std::io::Read as _;
use std::net::SocketAddr;
use std::sync::Arc;

pub(crate) async fn pass(call: &Call) -> Result<ApiResponse> {
    let rest = call.target.rest.as_deref().unwrap_or_default();
    if rest.is_empty() && matches!(call.wire.method, Method::GET | Method::HEAD) {
        return Ok(with_slash(call));
    }
    let wanted = Wanted::parse(&call.target.name)?;
    let backend = match call.kind.plural.as_str() {
        "pods" => pod(call, &wanted)?,
        "services" => service(call, &wanted)?,
        "nodes" => agent(call, &wanted)?,
        _ => return Err(ApiError::NoSuchPath),
    };
    let path = if rest.is_empty() { "/" } else { rest };
    let path = match call.wire.uri.query() {
        None => path.to_owned(),
        Some(query) => format!("{path}?{query}"),
    };
    let headers = forwarded_headers(call);
    if backend::wants_upgrade(call) {
        return stream::upgrade_with(call, &backend, &path, headers).await;
    }
    let mut request = Request::new(Full::new(call.body.clone()));
    *request.method_mut() = call.wire.method.clone();
    *request.uri_mut() =
        path.parse().map_err(|_| ApiError::bad_request("the path cannot be passed on"))?;
    *request.headers_mut() = headers;
    let links = links(call, &backend);
    let mut response = backend.send(request).await.map_err(|why| match why.as_str() {
        backend::NOT_ALLOWED => ApiError::BadRequest(why),
        _ => unavailable(format!("error trying to reach service: {why}")),
    })?;
    // The backend must not set CORS headers for this server.
    CORS.iter().for_each(|name| drop(response.headers_mut().remove(name)));
    if response.headers().contains_key(header::LOCATION) {
        relocate(&links, &mut response);
    } else if is_html(response.headers()) {
        return rewrite(call, &links, response).await;
    }
    backend::pass_on(call, response)
}

const FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The request's headers for the backend, with those that say where the request comes from (NET-119).
fn forwarded_headers(call: &Call) -> HeaderMap {
    let mut headers = backend::passed_headers(call);
    let before: Vec<&str> =
        headers.get_all(FORWARDED_FOR).iter().filter_map(|one| one.to_str().ok()).collect();
    // As Go's proxy: the client is added to the proxies that the request passed before.
    let client = Some(call.wire.client.as_str()).filter(|client| !client.is_empty());
    let passed = before.into_iter().chain(client).collect::<Vec<_>>().join(", ");
    let host = asked_host(call);
    let proto = if host.is_some() { "https" } else { "" };
    for (name, value) in [
        (FORWARDED_URI, call.wire.uri.path()),
        (FORWARDED_HOST, host.unwrap_or_default()),
        (FORWARDED_PROTO, proto),
        (FORWARDED_FOR, passed.as_str()),
    ] {
        headers.remove(&name);
        if let (false, Ok(value)) = (value.is_empty(), HeaderValue::from_str(value)) {
            headers.insert(name, value);
        }
    }
    headers
}

/// The host that the client asked for.
fn asked_host(call: &Call) -> Option<&str> {
    let host = call.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    host.or_else(|| call.wire.uri.authority().map(|authority| authority.as_str()))
}

const CORS: &[HeaderName] = &[
    header::ACCESS_CONTROL_ALLOW_CREDENTIALS,
    header::ACCESS_CONTROL_ALLOW_HEADERS,
    header::ACCESS_CONTROL_ALLOW_METHODS,
    header::ACCESS_CONTROL_ALLOW_ORIGIN,
];

/// Links are rewritten in pages up to this size; larger pages are not changed.
const PAGE_MAX: usize = 8 * 1024 * 1024;

fn links(call: &Call, backend: &Backend) -> Links {
    let own = call.wire.uri.path();
    let rest = call.target.rest.as_deref().unwrap_or_default();
    let prefix = own.strip_suffix(rest).unwrap_or(own).trim_end_matches('/');
    let host = asked_host(call);
    let backends = backend.hosts.iter().map(|host| backend::authority(host, backend.port));
    let mut backends: Vec<String> = backends.collect();
    let default_port = if backend.tls.is_some() { 443 } else { 80 };
    if backend.port == default_port {
        backends.extend(backend.hosts.iter().cloned());
    }
    Links { prefix: prefix.to_owned(), backends, host: host.unwrap_or_default().to_owned() }
}

fn is_html(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.split(';').next().unwrap_or_default().trim() == "text/html")
}

/// The backend's page with rewritten links.
async fn rewrite(call: &Call, links: &Links, response: Response<Incoming>) -> Result<ApiResponse> {
    let Some(coding) = Coding::of(response.headers()) else {
        return backend::pass_on(call, response);
    };
    let (mut parts, mut body) = response.into_parts();
    let mut closing = call.server.closing();
    let mut page = Vec::new();
    while page.len() <= PAGE_MAX {
        let frame = tokio::select! {
            biased;
            frame = body.frame() => frame,
            _ = closing.wait_for(|closing| *closing) => None,
        };
        match frame.map(|frame| frame.map(http_body::Frame::into_data)) {
            Some(Ok(Ok(bytes))) => page.extend_from_slice(&bytes),
            // Trailers are ignored.
            Some(Ok(Err(_))) => {}
            Some(Err(error)) => {
                tracing::debug!(%error, "backend stopped in the middle of a page");
                break;
            }
            None => break,
        }
    }
    for name in [header::CONNECTION, header::TRANSFER_ENCODING, header::UPGRADE] {
        parts.headers.remove(name);
    }
    if page.len() > PAGE_MAX {
        let rest = backend::pieces(call, body);
        let whole = futures::stream::once(std::future::ready(page.into())).chain(rest);
        return Ok(Response::from_parts(parts, Body::stream(whole)));
    }
    if let Some(plain) = coding.decoded(&page) {
        page = coding.encoded(links.page(&plain));
        // A response to HEAD has a length but no page.
        if !plain.is_empty() {
            parts.headers.remove(header::CONTENT_LENGTH);
        }
    }
    Ok(Response::from_parts(parts, page.into()))
}

/// The compression of a page.
#[derive(Clone, Copy)]
enum Coding {
    Identity,
    Gzip,
    Deflate,
}

impl Coding {
    /// None if it is unknown.
    fn of(headers: &HeaderMap) -> Option<Coding> {
        match headers.get(header::CONTENT_ENCODING).map(HeaderValue::as_bytes) {
            None | Some(b"") => Some(Coding::Identity),
            Some(b"gzip") => Some(Coding::Gzip),
            Some(b"deflate") => Some(Coding::Deflate),
            Some(_) => None,
        }
    }

    /// None if the page is damaged or too large.
    fn decoded(self, page: &[u8]) -> Option<Vec<u8>> {
        let mut plain = Vec::new();
        let limit = PAGE_MAX as u64 + 1;
        match self {
            _ if page.is_empty() => {}
            Coding::Identity => plain.extend_from_slice(page),
            Coding::Gzip => {
                GzDecoder::new(page).take(limit).read_to_end(&mut plain).ok()?;
            }
            Coding::Deflate => {
                DeflateDecoder::new(page).take(limit).read_to_end(&mut plain).ok()?;
            }
        }
        (plain.len() <= PAGE_MAX).then_some(plain)
    }

    fn encoded(self, page: Vec<u8>) -> Vec<u8> {
        let mut packed = Vec::new();
        // Writing to memory does not fail.
        let _ = match self {
            _ if page.is_empty() => return page,
            Coding::Identity => return page,
            Coding::Gzip => {
                let mut encoder = GzEncoder::new(page.as_slice(), Compression::fast());
                encoder.read_to_end(&mut packed)
            }
            Coding::Deflate => {
                let mut encoder = DeflateEncoder::new(page.as_slice(), Compression::fast());
                encoder.read_to_end(&mut packed)
            }
        };
        packed
    }
}

fn unavailable(why: String) -> ApiError {
    ApiError::Status(Box::new(Status::failure(503, "ServiceUnavailable", why)))
}

/// `name`, `name:port` or `scheme:name:port`.
#[derive(Debug, PartialEq, Eq)]
struct Wanted<'a> {
    https: bool,
    name: &'a str,
    port: &'a str,
}

impl<'a> Wanted<'a> {
    fn parse(text: &'a str) -> Result<Wanted<'a>> {
        let parts: Vec<&str> = text.split(':').collect();
        let wanted = match parts.as_slice() {
            [name] => Wanted { https: false, name, port: "" },
            [name, port] => Wanted { https: false, name, port },
            ["http" | "", name, port] => Wanted { https: false, name, port },
            ["https", name, port] => Wanted { https: true, name, port },
            _ => Wanted { https: false, name: "", port: "" },
        };
        match wanted.name {
            "" => Err(ApiError::bad_request(format!("invalid request {text:?}"))),
            _ => Ok(wanted),
        }
    }

    fn backend(&self, call: &Call, host: &str, port: u16) -> Result<Backend> {
        let tls = match self.https {
            false => None,
            true => {
                let config = tls::insecure_client_config();
                Some(Arc::new(config.map_err(|error| ApiError::Internal(error.to_string()))?))
            }
        };
        let reach = Reach::Proxied { own_port: call.server.port() };
        Ok(Backend { tls, hosts: vec![host.to_owned()], port, reach })
    }

    fn object(&self, call: &Call) -> Result<Value> {
        let namespace = call.target.namespace_of(&call.kind);
        let stored =
            call.store().get(&call.kind.storage.collection, &store_name(&namespace, self.name));
        let stored = stored.ok_or_else(|| ApiError::not_found(&call.kind, self.name))?;
        Ok(stored.value())
    }
}

/// A port must be a number: names are not resolved (NET-114). The message is that of Go's network library.
fn number(text: &str) -> Result<u16> {
    let port = text.parse().ok().filter(|port| *port > 0);
    port.ok_or_else(|| {
        unavailable(format!(
            "error trying to reach service: dial tcp: lookup tcp/{text}: unknown port"
        ))
    })
}

fn pod(call: &Call, wanted: &Wanted) -> Result<Backend> {
    let pod = wanted.object(call)?;
    let containers = pod.at(&["spec", "containers"]).and_then(Value::as_array);
    let mut ports =
        containers.into_iter().flatten().filter_map(|one| one["ports"].as_array()).flatten();
    let port = match wanted.port {
        "" => ports.next().and_then(|port| port["containerPort"].as_u64()?.try_into().ok()),
        port => Some(number(port)?),
    };
    let port = port.unwrap_or(if wanted.https { 443 } else { 80 });
    let address = pod.text(&["status", "podIP"]);
    let backend = wanted.backend(call, address, port)?;
    match address.parse().is_ok_and(|ip| backend.reach.allows(SocketAddr::new(ip, port))) {
        true => Ok(backend),
        false => Err(ApiError::bad_request(backend::NOT_ALLOWED)),
    }
}

fn service(call: &Call, wanted: &Wanted) -> Result<Backend> {
    let (namespace, name) = (call.target.namespace.as_str(), wanted.name);
    let service = wanted.object(call)?;
    let port = service_endpoint::port_name(&service, name, wanted.port).map_err(unavailable)?;
    let stored = call.store().get("endpoints", &store_name(namespace, name));
    let endpoints = stored.ok_or_else(|| ApiError::NotFound {
        resource: "endpoints".into(),
        group: String::new(),
        name: name.into(),
    })?;
    let pod = |name: &str| Some(call.store().get("pods", &store_name(namespace, name))?.value());
    let is_valid = |address: &Value| service_endpoint::is_of_pod(address, namespace, pod);
    let chosen = service_endpoint::choose(&endpoints.value(), &port, clock::random_u64(), is_valid);
    let none = || unavailable(format!("no endpoints available for service {:?}", call.target.name));
    let (address, port) = chosen.ok_or_else(none)?;
    wanted.backend(call, &address, port)
}

fn agent(call: &Call, wanted: &Wanted) -> Result<Backend> {
    let agent = node::backend(call, wanted.name)?;
    match wanted.port {
        "" => Ok(agent),
        port => match number(port)? {
            port if port == agent.port => Ok(agent),
            port => Ok(Backend { hosts: agent.hosts, ..wanted.backend(call, "", port)? }),
        },
    }
}

/// Redirects to the path with a slash, because relative links need it.
fn with_slash(call: &Call) -> ApiResponse {
    let mut place = format!("{}/", call.wire.uri.path());
    if let Some(query) = call.wire.uri.query() {
        place = format!("{place}?{query}");
    }
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::MOVED_PERMANENTLY;
    if let Ok(place) = HeaderValue::from_str(&place) {
        answer.headers_mut().insert(header::LOCATION, place);
    }
    answer
}

/// Rewrites a redirect within the backend.
fn relocate<B>(links: &Links, response: &mut Response<B>) {
    let location = response.headers().get(header::LOCATION).and_then(|place| place.to_str().ok());
    let moved = location.and_then(|place| links.moved(place));
    if let Some(Ok(moved)) = moved.map(|moved| HeaderValue::from_str(&moved)) {
        response.headers_mut().insert(header::LOCATION, moved);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_89_names_may_carry_a_scheme_and_a_port() {
        let parsed = |text| Wanted::parse(text).ok().map(|w| (w.https, w.name, w.port));
        assert_eq!(parsed("web"), Some((false, "web", "")));
        assert_eq!(parsed("web:80"), Some((false, "web", "80")));
        assert_eq!(parsed("https:web:"), Some((true, "web", "")));
        assert_eq!(parsed("http:web:main"), Some((false, "web", "main")));
        assert_eq!(parsed("ftp:web:1"), None);
        assert_eq!(parsed(":80"), None);
    }

    #[test]
    fn a_page_is_the_same_after_decompression_and_compression() {
        let page = "<a href=\"/\">".repeat(1000).into_bytes();
        for coding in [Coding::Identity, Coding::Gzip, Coding::Deflate] {
            let packed = coding.encoded(page.clone());
            assert_eq!(coding.decoded(&packed), Some(page.clone()));
            assert_eq!(coding.decoded(b""), Some(Vec::new()), "the answer to a HEAD");
        }
        assert_eq!(Coding::Gzip.decoded(b"not packed"), None);
        let bomb = Coding::Gzip.encoded(vec![b' '; PAGE_MAX + 1]);
        assert!(bomb.len() < PAGE_MAX / 10);
        assert_eq!(Coding::Gzip.decoded(&bomb), None);
    }
}
