//! Builds the request of an httpGet action: address, path, headers (N-97, N-98).

use super::VERSION;
use super::handler::{Target, host, port};
use super::tcp::authority;
use k8s_openapi::api::core::v1::HTTPGetAction;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) tls: bool,
    pub(super) host: String,
    pub(super) port: u16,
    /// Path and query, escaped for a request line.
    pub(super) path: String,
    /// All headers except Host.
    pub(super) headers: Vec<(String, String)>,
    /// The Host header, if it is not the address.
    pub(super) host_header: Option<String>,
}

/// `agent` is `kube-probe` or `kube-lifecycle`.
pub(super) fn of_action(
    action: &HTTPGetAction,
    target: &Target,
    agent: &str,
) -> Result<Request, String> {
    let given = action.http_headers.iter().flatten();
    let given = given.map(|header| (header.name.clone(), header.value.clone()));
    let (named_host, mut headers): (Vec<_>, Vec<_>) =
        given.partition(|(name, _)| name.eq_ignore_ascii_case("host"));
    default_header(&mut headers, "User-Agent", format!("{agent}/{VERSION}"));
    default_header(&mut headers, "Accept", "*/*".to_owned());
    let host_header = named_host.into_iter().map(|(_, value)| value).find(|host| !host.is_empty());
    Ok(Request {
        tls: action.scheme.as_deref().is_some_and(|scheme| scheme.eq_ignore_ascii_case("https")),
        host: host(&action.host, target).to_owned(),
        port: port(&action.port, target)?,
        path: request_path(action.path.as_deref().unwrap_or_default()),
        headers,
        host_header,
    })
}

/// Adds a header if it is missing; removes it if its value is empty.
fn default_header(headers: &mut Vec<(String, String)>, name: &str, value: String) {
    match headers.iter().find(|(given, _)| given.eq_ignore_ascii_case(name)) {
        None => headers.push((name.to_owned(), value)),
        Some((_, given)) if given.is_empty() => {
            headers.retain(|(given, _)| !given.eq_ignore_ascii_case(name));
        }
        Some(_) => {}
    }
}

/// Escapes characters that a request line must not have, drops the fragment, adds the first slash.
pub(super) fn request_path(path: &str) -> String {
    let path = path.split('#').next().unwrap_or_default();
    let mut clean = if path.starts_with('/') { String::new() } else { "/".to_owned() };
    for byte in path.bytes() {
        match byte {
            b'!' | b'$'..=b';' | b'=' | b'?'..=b'Z' | b'[' | b']' | b'_' | b'a'..=b'z' | b'~' => {
                clean.push(byte.into());
            }
            _ => clean.push_str(&format!("%{byte:02X}")),
        }
    }
    clean
}

impl Request {
    /// The URL, for errors and relative redirects.
    pub(super) fn url(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        format!("{scheme}://{}{}", authority(&self.host, self.port), self.path)
    }

    /// The value of the Host header.
    pub(super) fn host_header_value(&self) -> String {
        let default = if self.tls { 443 } else { 80 };
        match &self.host_header {
            Some(host) => host.clone(),
            None if self.port == default => {
                authority(&self.host, self.port).trim_end_matches(&format!(":{default}")).to_owned()
            }
            None => authority(&self.host, self.port),
        }
    }

    /// The request after a redirect; None if the location is malformed.
    pub(super) fn redirected(&self, location: &str) -> Option<Request> {
        let base = self.url();
        let absolute = if location.contains("://") {
            location.to_owned()
        } else if let Some(rest) = location.strip_prefix("//") {
            format!("{}://{rest}", if self.tls { "https" } else { "http" })
        } else {
            let directory = self.path.split('?').next()?.rsplit_once('/')?.0;
            let path = match location.chars().next() {
                Some('/') => location.to_owned(),
                Some('?') => format!("{}{location}", self.path.split('?').next()?),
                _ => format!("{directory}/{location}"),
            };
            let relative = Request { path: request_path(&path), ..self.clone() };
            return Some(relative);
        };
        let (scheme, rest) = absolute.split_once("://")?;
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (server, path) = rest.split_at(end);
        let server = server.rsplit('@').next()?;
        let tls = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            _ => return None,
        };
        let (host, port) = match server.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, port.parse().ok()?),
            _ => (server, if tls { 443 } else { 80 }),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        tracing::trace!(base, location, "following a redirect");
        Some(Request {
            tls,
            host,
            port,
            path: request_path(path),
            headers: self.headers.clone(),
            host_header: None,
        })
    }
}
