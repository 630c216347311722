//! `pods|services|nodes/{name}/proxy/…`: HTTP to somebody inside the cluster.
//!
//! Bodies up to what any request may carry; links in HTML are left as they are.

use super::backend::{self, Backend};
use super::node;
use super::stream;
use crate::answer::Answer;
use crate::body::Body;
use crate::call::Call;
use crate::error::{ApiError, Result};
use crate::object::{Stored as _, store_name};
use api::Status;
use api::value::ValueExt as _;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use serde_json::Value;
use std::sync::Arc;

pub(crate) async fn pass(call: &Call) -> Result<Answer> {
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
    if backend::wants_upgrade(call) {
        return stream::upgrade(call, &backend, &path).await;
    }
    let mut request = Request::new(Full::new(call.body.clone()));
    *request.method_mut() = call.wire.method.clone();
    *request.uri_mut() =
        path.parse().map_err(|_| ApiError::bad_request("the path cannot be passed on"))?;
    *request.headers_mut() = backend::passed_headers(call);
    let mut response = backend
        .send(request)
        .await
        .map_err(|why| unavailable(format!("error trying to reach service: {why}")))?;
    relocate(call, &mut response);
    backend::pass_on(call, response)
}

fn unavailable(why: String) -> ApiError {
    ApiError::Said(Box::new(Status::failure(503, "ServiceUnavailable", why)))
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

    fn backend(&self, host: &str, port: u16) -> Result<Backend> {
        let tls = match self.https {
            false => None,
            true => {
                let config = tls::trusting_anyone();
                Some(Arc::new(config.map_err(|error| ApiError::Internal(error.to_string()))?))
            }
        };
        Ok(Backend { tls, hosts: vec![host.to_owned()], port })
    }

    fn object(&self, call: &Call) -> Result<Value> {
        let namespace = call.target.namespace_of(&call.kind);
        let stored =
            call.store().get(&call.kind.storage.collection, &store_name(&namespace, self.name));
        let stored = stored.ok_or_else(|| ApiError::not_found(&call.kind, self.name))?;
        Ok(stored.value())
    }
}

fn number(text: &str) -> Option<u16> {
    text.parse().ok().filter(|port| *port > 0)
}

fn pod(call: &Call, wanted: &Wanted) -> Result<Backend> {
    let pod = wanted.object(call)?;
    let name = wanted.name;
    let containers = pod.at(&["spec", "containers"]).and_then(Value::as_array);
    let mut ports =
        containers.into_iter().flatten().filter_map(|one| one["ports"].as_array()).flatten();
    let port = match wanted.port {
        "" => ports.next().and_then(|port| port["containerPort"].as_u64()?.try_into().ok()),
        port => number(port),
    };
    let address = pod.text(&["status", "podIP"]);
    if address.is_empty() {
        return Err(ApiError::bad_request(format!("pod {name} does not have an address yet")));
    }
    let default = if wanted.https { 443 } else { 80 };
    allowed(address)?;
    wanted.backend(address, port.unwrap_or(default))
}

/// Nothing on the server's own machine is reached this way.
fn allowed(address: &str) -> Result<()> {
    let parsed: Option<std::net::IpAddr> = address.parse().ok();
    let local = parsed.is_none_or(|address| match address {
        std::net::IpAddr::V4(v4) => v4.is_loopback() || v4.is_link_local() || v4.is_unspecified(),
        std::net::IpAddr::V6(v6) => {
            v6.is_loopback() || v6.is_unicast_link_local() || v6.is_unspecified()
        }
    });
    match local {
        true => Err(ApiError::bad_request("address not allowed")),
        false => Ok(()),
    }
}

fn service(call: &Call, wanted: &Wanted) -> Result<Backend> {
    let service = wanted.object(call)?;
    let name = wanted.name;
    let ports = service.at(&["spec", "ports"]).and_then(Value::as_array);
    let ports: Vec<&Value> = ports.into_iter().flatten().collect();
    let port = match (wanted.port, ports.as_slice()) {
        ("", [only]) => Some(only),
        ("", _) => None,
        (wanted, ports) => ports.iter().find(|port| {
            port["name"] == wanted || number(wanted).is_some_and(|n| port["port"] == n)
        }),
    };
    let none = || unavailable(format!("no endpoints available for service {:?}", call.target.name));
    let port = port.ok_or_else(none)?["name"].as_str().unwrap_or_default();
    let prefix = format!("{}/", call.target.namespace);
    let (_, slices) = call.store().list("discovery.k8s.io/endpointslices", &prefix, None);
    let mut ready = Vec::new();
    for slice in slices.iter().filter(|one| one.label("kubernetes.io/service-name") == Some(name)) {
        let slice = slice.value();
        let number = slice["ports"].as_array().into_iter().flatten().find_map(|one| {
            let named = one["name"].as_str().unwrap_or_default() == port;
            named.then(|| one["port"].as_u64()?.try_into().ok()).flatten()
        });
        let Some(number) = number else { continue };
        for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
            if endpoint["conditions"]["ready"] != false
                && let Some(address) = endpoint["addresses"][0].as_str()
            {
                ready.push((address.to_owned(), number));
            }
        }
    }
    if ready.is_empty() {
        return Err(none());
    }
    let (address, number) = &ready[clock::random_u64() as usize % ready.len()];
    allowed(address)?;
    wanted.backend(address, *number)
}

fn agent(call: &Call, wanted: &Wanted) -> Result<Backend> {
    let agent = node::backend(call, wanted.name)?;
    match number(wanted.port) {
        Some(port) if port != agent.port => {
            Ok(Backend { tls: wanted.backend("", port)?.tls, hosts: agent.hosts, port })
        }
        _ => Ok(agent),
    }
}

/// Relative links of a page only work below its own directory.
fn with_slash(call: &Call) -> Answer {
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

/// A redirect within the backend stays behind the proxy.
fn relocate<B>(call: &Call, response: &mut Response<B>) {
    let Some(location) = response.headers().get(header::LOCATION) else { return };
    let Some(path) = location.to_str().ok().filter(|text| text.starts_with('/')) else { return };
    let own = call.wire.uri.path();
    let rest = call.target.rest.as_deref().unwrap_or_default();
    let prefix = own.strip_suffix(rest).unwrap_or(own);
    if let Ok(moved) = HeaderValue::from_str(&format!("{prefix}{path}")) {
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
    fn the_servers_own_machine_is_not_reached_through_a_proxy() {
        for address in ["127.0.0.1", "::1", "169.254.169.254", "0.0.0.0", "fe80::1", "x"] {
            assert!(allowed(address).is_err(), "{address}");
        }
        assert!(allowed("10.244.0.5").is_ok());
    }
}
