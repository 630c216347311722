//! `pods/{name}/exec`, `attach` and `portforward`: checks the request, and forwards it to the pod's node (A-226 to A-229,
//!

use super::backend::{self, Backend};
use super::node;
use crate::object::Stored as _;
use crate::request::call::Call;
use crate::response::ApiResponse;
use crate::response::error::{ApiError, Result};
use api::value::ValueExt as _;
use bytes::Bytes;
use http::{HeaderMap, Method, Request};
use http_body_util::Full;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Characters that need no escape in a query or a path segment.
pub(crate) const ESCAPED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

pub(crate) fn escaped(text: &str) -> String {
    utf8_percent_encode(text, ESCAPED).to_string()
}

pub(crate) async fn open(call: &Call) -> Result<ApiResponse> {
    if call.wire.method == Method::GET {
        call.server.authorize_here(call, "create")?;
    }
    let pod = call.find().await?.value();
    let what = call.target.subresource.as_str();
    let container = match what {
        "portforward" => None,
        _ => Some(node::container(call, &pod)?),
    };
    let name = &call.target.name;
    let on = pod.text(&["spec", "nodeName"]);
    if on.is_empty() {
        let why = format!("pod {name} does not have a host assigned");
        return Err(ApiError::bad_request(why));
    }
    let backend = node::backend(call, on)?;
    if !backend::wants_upgrade(call) {
        return Err(ApiError::bad_request("Upgrade request required"));
    }
    let path = match container {
        None => format!("/portForward/{}/{name}", call.target.namespace),
        Some(container) => {
            format!("/{what}/{}/{name}/{}", call.target.namespace, escaped(container))
        }
    };
    upgrade(call, &backend, &format!("{path}?{}", query(call))).await
}

/// The options, with the names of the node's endpoint.
fn query(call: &Call) -> String {
    let mut pairs: Vec<(&str, &str)> = Vec::new();
    if call.target.subresource == "portforward" {
        pairs.extend(call.query.all("ports").map(|port| ("port", port)));
    } else {
        let flags = [("stdin", "input"), ("stdout", "output"), ("stderr", "error"), ("tty", "tty")];
        pairs.extend(
            flags.iter().filter(|(ours, _)| call.query.flag(ours)).map(|(_, its)| (*its, "1")),
        );
        pairs.extend(call.query.all("command").map(|word| ("command", word)));
    }
    let pairs = pairs.iter().map(|(key, value)| format!("{key}={}", escaped(value)));
    pairs.collect::<Vec<_>>().join("&")
}

/// Requests from the backend the upgrade that the client requests.
pub(crate) async fn upgrade(call: &Call, backend: &Backend, path: &str) -> Result<ApiResponse> {
    upgrade_with(call, backend, path, backend::passed_headers(call)).await
}

/// The same, with these headers.
pub(crate) async fn upgrade_with(
    call: &Call,
    backend: &Backend,
    path: &str,
    headers: HeaderMap,
) -> Result<ApiResponse> {
    let mut request = Request::new(Full::new(Bytes::new()));
    *request.method_mut() = call.wire.method.clone();
    *request.uri_mut() =
        path.parse().map_err(|_| ApiError::bad_request("the path cannot be passed on"))?;
    *request.headers_mut() = headers;
    match backend.send(request).await {
        Ok(response) => backend::pass_on(call, response),
        Err(why) => Err(ApiError::Status(Box::new(api::Status::failure(
            500,
            "",
            format!("error dialing backend: {why}"),
        )))),
    }
}
