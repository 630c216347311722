//! `pods/{name}/log`: checks the request, and streams the log from the pod's node.

use super::backend;
use super::node;
use super::stream::{self, escaped};
use crate::object::Stored as _;
use crate::request::call::Call;
use crate::response::body::Body;
use crate::response::error::{ApiError, Result};
use crate::response::{self, ApiResponse};
use api::status::Details;
use api::value::ValueExt as _;
use api::{At, Errors, Status};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use serde_json::{Map, Value};

/// How much of a node's error message is read.
const COMPLAINT_MAX: usize = 50_000;

pub(crate) async fn read(call: &Call) -> Result<ApiResponse> {
    check_options(call)?;
    let pod = call.find().await?.value();
    let container = node::container(call, &pod)?;
    let on = pod.text(&["spec", "nodeName"]);
    if on.is_empty() {
        return Ok(response::build(StatusCode::OK, "text/plain", Body::empty()));
    }
    let mut backend = node::backend(call, on)?;
    if call.query.flag("insecureSkipTLSVerifyBackend") {
        let config = tls::insecure_client_config();
        let config = config.map_err(|error| ApiError::Internal(error.to_string()))?;
        backend.tls = Some(std::sync::Arc::new(config));
    }
    let path = format!(
        "/containerLogs/{}/{}/{}?{}",
        call.target.namespace,
        call.target.name,
        escaped(container),
        query(call)
    );
    if backend::wants_upgrade(call) {
        return stream::upgrade(call, &backend, &path).await;
    }
    let mut request = Request::new(Full::new(Bytes::new()));
    *request.uri_mut() =
        path.parse().map_err(|_| ApiError::bad_request("the path cannot be passed on"))?;
    let response = backend.send(request).await.map_err(|why| {
        let why = format!("Get \"{}{path}\": {why}", backend.url());
        ApiError::Status(Box::new(Status::failure(500, "", why)))
    })?;
    if !(200..=206).contains(&response.status().as_u16()) {
        return Err(node_error(call, response).await);
    }
    let mut answer = Response::new(backend::stream(call, response.into_body()));
    let headers: &mut HeaderMap = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    Ok(answer)
}

/// The options, and their names at the node.
const NUMBERS: &[(&str, i64, &str)] = &[
    ("tailLines", 0, "must be greater than or equal to 0"),
    ("limitBytes", 1, "must be greater than 0"),
    ("sinceSeconds", 1, "must be greater than 0"),
];

fn check_options(call: &Call) -> Result<()> {
    let mut options = Map::new();
    for (name, ..) in NUMBERS {
        if let Some(number) = call.query.number(name).map_err(ApiError::BadRequest)? {
            options.insert((*name).to_owned(), number.into());
        }
    }
    let since = call.query.text("sinceTime");
    if let Some(time) = since {
        let read = time.parse::<jiff::Timestamp>();
        read.map_err(|error| ApiError::bad_request(format!("sinceTime: {error}")))?;
        options.insert("sinceTime".to_owned(), time.into());
    }
    if let Some(stream) = call.query.text("stream") {
        options.insert("stream".to_owned(), stream.into());
    }
    let options = Value::Object(options);
    let root = At::root(&options);
    let mut errors = Errors::default();
    for (name, least, wrong) in NUMBERS {
        let at = root.field(name);
        if at.int().is_some_and(|number| number < *least) {
            errors.invalid(&at, wrong);
        }
    }
    if root.field("stream").is_set() {
        errors.forbidden(&root.field("stream"), "may not be specified");
    }
    if root.field("sinceSeconds").is_set() && root.field("sinceTime").is_set() {
        let both = "at most one of `sinceTime` or `sinceSeconds` may be specified";
        errors.forbidden(&At::root(&Value::Null).field(""), both);
    }
    if errors.is_empty() {
        return Ok(());
    }
    let status = Status::invalid("PodLogOptions", "", &call.target.name, errors);
    Err(ApiError::Invalid(Box::new(status)))
}

fn query(call: &Call) -> String {
    let flags = ["follow", "previous", "timestamps"];
    let flags =
        flags.iter().filter(|name| call.query.flag(name)).map(|name| format!("{name}=true"));
    let values = ["sinceSeconds", "sinceTime", "tailLines", "limitBytes"];
    let values = values
        .iter()
        .filter_map(|name| call.query.text(name).map(|value| format!("{name}={}", escaped(value))));
    flags.chain(values).collect::<Vec<_>>().join("&")
}

/// The node's error as a Status: its own message for client errors, a general one otherwise.
async fn node_error(call: &Call, response: Response<Incoming>) -> ApiError {
    let code = response.status().as_u16();
    let body = Limited::new(response.into_body(), COMPLAINT_MAX).collect().await;
    let text = body.map(|body| body.to_bytes()).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    let name = &call.target.name;
    let details = Details { name: name.clone(), kind: "pods/log".into(), ..Details::default() };
    let general = |reason: &str, message: &str| {
        let message = format!("{message} ( pods/log {name})");
        ApiError::Status(Box::new(Status::failure(code, reason, message).with_details(details)))
    };
    match code {
        400 => ApiError::BadRequest(text),
        500 => ApiError::Internal(text),
        401 => {
            general("Unauthorized", "the server has asked for the client to provide credentials")
        }
        403 => general("Forbidden", &text),
        404 => general("NotFound", "the server could not find the requested resource"),
        503 => general("ServiceUnavailable", &text),
        _ => general(
            "InternalError",
            &format!("an error on the server ({text:?}) has prevented the request from succeeding"),
        ),
    }
}
