//! Building answers.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use std::convert::Infallible;
use tokio::sync::mpsc;

pub(super) type Body = UnsyncBoxBody<Bytes, Infallible>;
pub(super) type Answer = Response<Body>;
/// An answer instead of what was wanted.
pub(super) type Refused = Box<Answer>;

/// In full, with its type.
pub(super) fn of(code: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()).boxed_unsync());
    *answer.status_mut() = code;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

pub(super) fn text(code: StatusCode, text: impl Into<String>) -> Answer {
    of(code, "text/plain; charset=utf-8", text.into())
}

pub(super) fn json(value: &impl serde::Serialize) -> Answer {
    match serde_json::to_vec(value) {
        Ok(bytes) => of(StatusCode::OK, "application/json", bytes),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

/// Sent piece by piece, each as soon as it is there.
pub(super) fn stream(content_type: &'static str, pieces: mpsc::Receiver<Bytes>) -> Answer {
    let frames = futures::stream::unfold(pieces, |mut pieces| async move {
        let piece = pieces.recv().await?;
        Some((Ok::<_, Infallible>(http_body::Frame::data(piece)), pieces))
    });
    let mut answer = Response::new(StreamBody::new(frames).boxed_unsync());
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

pub(super) fn empty(code: StatusCode) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::new()).boxed_unsync());
    *answer.status_mut() = code;
    answer
}
