//! Builds HTTP responses.

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use std::convert::Infallible;
use tokio::sync::mpsc;

pub(crate) type Body = UnsyncBoxBody<Bytes, Infallible>;
pub(crate) type Response = http::Response<Body>;
/// The response to a request that cannot be served. Boxed, because it is the error of many functions.
pub(crate) type Rejection = Box<Response>;

/// A complete body with its content type.
pub(crate) fn full(
    code: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Response {
    let mut response = Response::new(Full::new(body.into()).boxed_unsync());
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

pub(crate) fn text(code: StatusCode, text: impl Into<String>) -> Response {
    full(code, "text/plain; charset=utf-8", text.into())
}

pub(crate) fn json(value: &impl serde::Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(bytes) => full(StatusCode::OK, "application/json", bytes),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

/// A body that is sent chunk by chunk.
pub(crate) fn stream(content_type: &'static str, chunks: mpsc::Receiver<Bytes>) -> Response {
    let frames = futures::stream::unfold(chunks, |mut chunks| async move {
        let chunk = chunks.recv().await?;
        Some((Ok::<_, Infallible>(http_body::Frame::data(chunk)), chunks))
    });
    let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

pub(crate) fn empty(code: StatusCode) -> Response {
    let mut response = Response::new(Full::new(Bytes::new()).boxed_unsync());
    *response.status_mut() = code;
    response
}
