//! Compressing large answers for clients that ask for it.

use crate::answer::Answer;
use crate::body::Body;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::{GzDecoder, GzEncoder};
use http::{HeaderMap, HeaderValue, header};
use http_body_util::BodyExt;
use std::io::Write;

/// Answers below this are sent as they are.
const WORTH_IT: u64 = 128 * 1024;

/// Whether this client takes it.
pub(crate) fn is_wanted(headers: &HeaderMap) -> bool {
    headers
        .get_all(header::ACCEPT_ENCODING)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|coding| coding.split(';').next().is_some_and(|name| name.trim() == "gzip"))
}

/// For what is sent again and again. None if it is too small for that.
pub(crate) fn packed(bytes: &[u8]) -> Option<Vec<u8>> {
    if (bytes.len() as u64) <= WORTH_IT {
        return None;
    }
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).ok()?;
    encoder.finish().ok()
}

/// What was packed here.
pub(crate) fn unpacked(bytes: &[u8]) -> Vec<u8> {
    let mut decoder = GzDecoder::new(Vec::new());
    // Writing to memory does not fail, and what we packed is sound.
    let _ = decoder.write_all(bytes);
    decoder.finish().unwrap_or_default()
}

/// Says that the body is compressed.
pub(crate) fn mark(headers: &mut HeaderMap) {
    headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    headers.append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
}

pub(crate) fn maybe(headers: &HeaderMap, answer: Answer) -> Answer {
    let large = answer.body().size().is_some_and(|size| size > WORTH_IT);
    if !is_wanted(headers) || !large || answer.headers().contains_key(header::CONTENT_ENCODING) {
        return answer;
    }
    let (mut parts, body) = answer.into_parts();
    mark(&mut parts.headers);
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
