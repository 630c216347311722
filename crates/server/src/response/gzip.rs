//! Compresses large responses for clients that accept it.

use crate::response::ApiResponse;
use crate::response::body::Body;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::{GzDecoder, GzEncoder};
use http::{HeaderMap, HeaderValue, header};
use http_body_util::BodyExt;
use std::io::Write;

/// Smaller responses are not compressed.
const SIZE_MIN: u64 = 128 * 1024;

/// Whether the client accepts gzip.
pub(crate) fn is_accepted(headers: &HeaderMap) -> bool {
    headers
        .get_all(header::ACCEPT_ENCODING)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|coding| coding.split(';').next().is_some_and(|name| name.trim() == "gzip"))
}

/// Compresses a document that is sent repeatedly. None if it is too small.
pub(crate) fn compress(bytes: &[u8]) -> Option<Vec<u8>> {
    if (bytes.len() as u64) <= SIZE_MIN {
        return None;
    }
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).ok()?;
    encoder.finish().ok()
}

/// The reverse of [`compress`].
pub(crate) fn decompress(bytes: &[u8]) -> Vec<u8> {
    let mut decoder = GzDecoder::new(Vec::new());
    // Writing to memory does not fail, and the input is our own output.
    let _ = decoder.write_all(bytes);
    decoder.finish().unwrap_or_default()
}

/// Sets the headers of a compressed body.
pub(crate) fn set_headers(headers: &mut HeaderMap) {
    headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    headers.append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
}

/// Compresses a response if it is large and the client accepts it.
pub(crate) fn maybe(headers: &HeaderMap, response: ApiResponse) -> ApiResponse {
    let large = response.body().size().is_some_and(|size| size > SIZE_MIN);
    if !is_accepted(headers) || !large || response.headers().contains_key(header::CONTENT_ENCODING)
    {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    set_headers(&mut parts.headers);
    // In chunks, so that a large list is not in memory twice.
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
