//! Compressing large answers for clients that ask for it.

use crate::answer::Answer;
use crate::body::Body;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::{HeaderMap, HeaderValue, header};
use http_body_util::BodyExt;
use std::io::Write;

/// Answers below this are sent as they are.
const WORTH_IT: u64 = 128 * 1024;

pub(crate) fn maybe(headers: &HeaderMap, answer: Answer) -> Answer {
    let wanted = headers
        .get_all(header::ACCEPT_ENCODING)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|coding| coding.split(';').next().is_some_and(|name| name.trim() == "gzip"));
    let large = answer.body().size().is_some_and(|size| size > WORTH_IT);
    if !wanted || !large || answer.headers().contains_key(header::CONTENT_ENCODING) {
        return answer;
    }
    let (mut parts, body) = answer.into_parts();
    parts.headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    parts.headers.append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    // Piece by piece, so that a large list is never held twice.
    let encoder = GzEncoder::new(Vec::new(), Compression::fast());
    let stream = futures::stream::unfold((body, Some(encoder)), |(mut body, encoder)| async move {
        let mut encoder = encoder?;
        loop {
            match body.frame().await {
                Some(Ok(frame)) => {
                    let Ok(data) = frame.into_data() else { continue };
                    // Writing to memory does not fail.
                    let _ = encoder.write_all(&data);
                    let ready = std::mem::take(encoder.get_mut());
                    if !ready.is_empty() {
                        return Some((Bytes::from(ready), (body, Some(encoder))));
                    }
                }
                Some(Err(never)) => match never {},
                None => {
                    return Some((Bytes::from(encoder.finish().unwrap_or_default()), (body, None)));
                }
            }
        }
    });
    http::Response::from_parts(parts, Body::stream(stream))
}
