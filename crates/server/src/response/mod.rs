//! Builds responses: codes, content types, warnings and the headers that every response has.
//!
//!     views     the object in the requested form
//!     error     an error as `metav1.Status`
//!     body      the kinds of response bodies, and reading request bodies
//!     gzip      compression
//!     warnings  Warning headers

pub(crate) mod body;
pub(crate) mod error;
pub(crate) mod gzip;
pub(crate) mod views;
pub(crate) mod warnings;

use crate::request::negotiate::{Encoding, Form};
use crate::response::body::Body;
use crate::response::error::ApiError;
use api::status::Status;
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};

pub type ApiResponse = Response<Body>;

/// Without a charset: some versions of kubectl compare the whole value.
pub(crate) const JSON: &str = "application/json";
pub(crate) const YAML: &str = "application/yaml";
pub(crate) const TEXT: &str = "text/plain; charset=utf-8";

pub(crate) fn build(
    code: StatusCode,
    content_type: &'static str,
    body: impl Into<Body>,
) -> ApiResponse {
    let mut response = Response::new(body.into());
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

pub(crate) fn text(code: StatusCode, text: impl Into<String>) -> ApiResponse {
    let mut response = build(code, TEXT, text.into().into_bytes());
    response
        .headers_mut()
        .insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Go's encoder, too, ends every JSON document with a newline.
const NEWLINE: &[u8] = b"\n";

pub(crate) fn json(code: StatusCode, value: &serde_json::Value) -> ApiResponse {
    json_text(code, serde_json::to_vec(value).unwrap_or_default())
}

fn json_text(code: StatusCode, mut text: Vec<u8>) -> ApiResponse {
    text.extend_from_slice(NEWLINE);
    build(code, JSON, text)
}

pub(crate) fn bytes(code: StatusCode, form: Form, bytes: Bytes) -> ApiResponse {
    match form.encoding {
        Encoding::Yaml => build(code, YAML, bytes),
        Encoding::Json if form.pretty => build(code, JSON, bytes),
        Encoding::Json => {
            let parts = [bytes, Bytes::from_static(NEWLINE)];
            build(code, JSON, Body::parts(parts.into()))
        }
    }
}

pub(crate) fn status(status: &Status, code: StatusCode) -> ApiResponse {
    let mut response = json_text(code, status.to_bytes());
    let retry = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
    if retry > 0 {
        response.headers_mut().insert(header::RETRY_AFTER, retry.into());
    }
    response
}

impl From<ApiError> for ApiResponse {
    fn from(error: ApiError) -> Self {
        match error {
            ApiError::NoSuchPath => text(StatusCode::NOT_FOUND, "404 page not found\n"),
            ApiError::Overloaded => crate::server::overloaded(),
            error => {
                let failure = error.status();
                let code =
                    StatusCode::from_u16(failure.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                status(&failure, code)
            }
        }
    }
}

/// The total length of all warnings. If they are longer, each is cut to [`WARNING_MAX`].
const WARNINGS_MAX: usize = 4096;
const WARNING_MAX: usize = 256;

/// `Warning: 299 - "text"` for each.
pub(crate) fn add_warnings(response: &mut ApiResponse, warnings: &[String]) {
    let total: usize = warnings.iter().map(String::len).sum();
    for warning in warnings {
        let cut = if total > WARNINGS_MAX { WARNING_MAX } else { usize::MAX };
        let mut quoted = String::with_capacity(warning.len() + 16);
        for c in warning.chars().filter(|c| !c.is_control()).take(cut) {
            if matches!(c, '"' | '\\') {
                quoted.push('\\');
            }
            quoted.push(c);
        }
        if let Ok(value) = HeaderValue::from_bytes(format!("299 - \"{quoted}\"").as_bytes()) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
}
