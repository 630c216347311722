//! The kinds of response bodies, and reading request bodies within limits.

use crate::response::error::{ApiError, Result};
use bytes::{Bytes, BytesMut};
use futures::Stream;
use http_body_util::BodyExt;
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;

/// The largest request body that is read.
pub(crate) const REQUEST_MAX: usize = 3 * 1024 * 1024;

/// How much of a too large body is read and discarded.
const DISCARD_MAX: usize = 16 * 1024 * 1024;

/// How long a refused request waits for the rest of its body.
const REFUSED_WAIT: Duration = Duration::from_millis(200);

/// The time limit of a request, and so for its body.
const ARRIVAL_MAX: Duration = Duration::from_secs(60);

/// How long a client may send nothing in the middle of a body.
const STALL_MAX: Duration = Duration::from_secs(10);

/// Lists are sent in chunks of about this size: large enough for full TLS records, small enough that a slow reader of
/// a large list holds little memory.
const CHUNK: usize = 128 * 1024;

/// The body of a response.
pub enum Body {
    Full(Option<Bytes>),
    /// Many small parts that are already encoded, joined into chunks while sending.
    Parts {
        parts: VecDeque<Bytes>,
        left: u64,
    },
    Stream(Pin<Box<dyn Stream<Item = Bytes> + Send>>),
}

impl Body {
    pub fn empty() -> Self {
        Body::Full(None)
    }

    pub(crate) fn parts(parts: VecDeque<Bytes>) -> Self {
        let left = parts.iter().map(|part| part.len() as u64).sum();
        Body::Parts { parts, left }
    }

    pub(crate) fn stream(stream: impl Stream<Item = Bytes> + Send + 'static) -> Self {
        Body::Stream(Box::pin(stream))
    }

    /// The total number of bytes, if it is known in advance.
    pub(crate) fn size(&self) -> Option<u64> {
        match self {
            Body::Full(bytes) => Some(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Body::Parts { left, .. } => Some(*left),
            Body::Stream(_) => None,
        }
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Body::Full(Some(bytes))
    }
}

impl From<Vec<u8>> for Body {
    fn from(bytes: Vec<u8>) -> Self {
        Body::Full(Some(bytes.into()))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<http_body::Frame<Bytes>, Self::Error>>> {
        let bytes = match self.get_mut() {
            Body::Full(bytes) => bytes.take(),
            Body::Parts { parts, left } => {
                let piece = join(parts, CHUNK);
                *left -= piece.as_ref().map_or(0, |piece| piece.len() as u64);
                piece
            }
            Body::Stream(stream) => match stream.as_mut().poll_next(cx) {
                Poll::Ready(bytes) => bytes,
                Poll::Pending => return Poll::Pending,
            },
        };
        Poll::Ready(bytes.map(|bytes| Ok(http_body::Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Body::Full(bytes) => bytes.is_none(),
            Body::Parts { parts, .. } => parts.is_empty(),
            Body::Stream(_) => false,
        }
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.size().map_or_else(http_body::SizeHint::default, http_body::SizeHint::with_exact)
    }
}

/// Joins the first parts: as many as fit into `limit`, at least one. A single part is not copied, and no more is
/// allocated than is sent.
pub(crate) fn join(parts: &mut VecDeque<Bytes>, limit: usize) -> Option<Bytes> {
    let (mut count, mut size) = (0, 0);
    for part in parts.iter() {
        if count > 0 && size + part.len() > limit {
            break;
        }
        (count, size) = (count + 1, size + part.len());
    }
    if count < 2 {
        return parts.pop_front();
    }
    let mut piece = BytesMut::with_capacity(size);
    parts.drain(..count).for_each(|part| piece.extend_from_slice(&part));
    Some(piece.freeze())
}

/// Discards the body of a request that was refused without reading it, if it arrives soon.
pub(crate) async fn discard_refused<B>(body: Pin<&mut B>)
where
    B: http_body::Body<Data = Bytes>,
{
    if !body.is_end_stream() {
        let _ = tokio::time::timeout(REFUSED_WAIT, discard(body)).await;
    }
}

/// Reads the whole request body; fails as soon as it is too large or too late. `until` is the request's
/// deadline, if it has one. `room` returns whether that many more bytes may be kept.
pub(crate) async fn read<B>(
    body: B,
    until: Option<Instant>,
    room: &mut (dyn FnMut(usize) -> bool + Send),
) -> Result<Bytes>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: std::fmt::Display,
{
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    let latest = Instant::now() + ARRIVAL_MAX;
    let until = until.map_or(latest, |until| until.min(latest));
    let read = tokio::time::timeout_at(until, read_all(body, room)).await;
    read.unwrap_or_else(|_| Err(too_late("did not arrive in time")))
}

fn too_late(why: &str) -> ApiError {
    ApiError::Timeout {
        message: format!("Timeout: the body of the request {why}"),
        causes: Vec::new(),
        retry_after: 0,
    }
}

/// The next frame; none at the end.
async fn next_frame<B>(
    body: &mut Pin<&mut B>,
) -> Result<Option<std::result::Result<http_body::Frame<Bytes>, B::Error>>>
where
    B: http_body::Body<Data = Bytes>,
{
    let next = tokio::time::timeout(STALL_MAX, body.frame()).await;
    next.map_err(|_| too_late(&format!("stopped arriving for {} s", STALL_MAX.as_secs())))
}

/// Reads and discards the rest of a body, up to a limit. Most clients read the response only after they have
/// sent the whole body, and closing an HTTP/1.1 connection earlier would lose it.
async fn discard<B>(mut body: Pin<&mut B>)
where
    B: http_body::Body<Data = Bytes>,
{
    let mut discarded = 0;
    while let Ok(Some(Ok(frame))) = next_frame(&mut body).await {
        discarded += frame.data_ref().map_or(0, Bytes::len);
        if discarded > DISCARD_MAX {
            return;
        }
    }
}

async fn read_all<B>(body: B, room: &mut (dyn FnMut(usize) -> bool + Send)) -> Result<Bytes>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: std::fmt::Display,
{
    let declared = body.size_hint().lower();
    let mut body = std::pin::pin!(body);
    if declared > REQUEST_MAX as u64 {
        if declared <= DISCARD_MAX as u64 {
            discard(body).await;
        }
        return Err(ApiError::TooLarge(REQUEST_MAX));
    }
    let mut whole: Option<BytesMut> = None;
    let mut first: Option<Bytes> = None;
    let mut too_large = false;
    while let Some(frame) = next_frame(&mut body).await? {
        let frame = frame
            .map_err(|error| ApiError::bad_request(format!("reading the body failed: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        let so_far = whole.as_ref().map_or(first.as_ref().map_or(0, Bytes::len), BytesMut::len);
        if so_far + data.len() > REQUEST_MAX {
            too_large = true;
            break;
        }
        if !room(data.len()) {
            return Err(ApiError::Overloaded);
        }
        // Nearly every body arrives in one frame, which is used without copying.
        match (&mut whole, first.take()) {
            (Some(whole), _) => whole.extend_from_slice(&data),
            (None, None) => first = Some(data),
            (None, Some(begin)) => {
                let mut joined = BytesMut::from(&begin[..]);
                joined.extend_from_slice(&data);
                whole = Some(joined);
            }
        }
    }
    if too_large {
        drop((whole, first));
        discard(body).await;
        return Err(ApiError::TooLarge(REQUEST_MAX));
    }
    Ok(whole.map(BytesMut::freeze).or(first).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    type Never = std::convert::Infallible;

    async fn read_with_room(
        body: impl http_body::Body<Data = Bytes, Error = Never>,
    ) -> Result<Bytes> {
        read(body, None, &mut |_| true).await
    }

    #[tokio::test]
    async fn a_17_a_body_over_three_mebibytes_is_refused() {
        let fits = http_body_util::Full::new(Bytes::from(vec![b' '; REQUEST_MAX]));
        assert_eq!(read_with_room(fits).await.unwrap().len(), REQUEST_MAX);
        let long = http_body_util::Full::new(Bytes::from(vec![b' '; REQUEST_MAX + 1]));
        assert!(matches!(read_with_room(long).await, Err(ApiError::TooLarge(_))));
    }

    /// Sends one byte at this interval.
    fn trickle(every: Duration) -> impl http_body::Body<Data = Bytes, Error = Never> {
        http_body_util::StreamBody::new(futures::stream::unfold((), move |()| async move {
            tokio::time::sleep(every).await;
            Some((Ok(http_body::Frame::data(Bytes::from_static(b" "))), ()))
        }))
    }

    /// the server waits for a body until the request's deadline, and less if nothing arrives.
    #[tokio::test(start_paused = true)]
    async fn a_10_a_body_that_arrives_too_slowly_times_out() {
        for (every, deadline, seconds) in
            [(3600, None, 10), (3600, Some(4), 4), (1, None, 60), (1, Some(34), 34), (11, None, 10)]
        {
            let started = Instant::now();
            let until = deadline.map(|seconds| started + Duration::from_secs(seconds));
            let body = trickle(Duration::from_secs(every));
            let result = read(body, until, &mut |_| true).await;
            assert!(matches!(result, Err(ApiError::Timeout { .. })), "{every}");
            assert_eq!(started.elapsed().as_secs(), seconds, "{every} {deadline:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_191_a_body_beyond_the_memory_limit_is_refused() {
        let mut left = 5;
        let mut room = |bytes| {
            left -= bytes as i64;
            left >= 0
        };
        let result = read(trickle(Duration::from_secs(1)), None, &mut room).await;
        assert!(matches!(result, Err(ApiError::Overloaded)));
    }

    #[tokio::test]
    async fn parts_are_sent_completely_and_in_order() {
        let parts: VecDeque<Bytes> = (0..100).map(|i| Bytes::from(vec![i as u8; 7_000])).collect();
        let wanted: Vec<u8> = parts.iter().flatten().copied().collect();
        let body = Body::parts(parts);
        assert_eq!(body.size(), Some(700_000));
        assert_eq!(body.collect().await.unwrap().to_bytes(), wanted);
    }

    #[test]
    fn a_chunk_allocates_only_its_content_and_stays_within_the_limit() {
        let part = |length| Bytes::from(vec![b'x'; length]);
        let mut parts: VecDeque<Bytes> = [10, 20, 500, 60, 30, 20].map(part).into();
        let mut pieces = Vec::new();
        while let Some(piece) = join(&mut parts, 100) {
            let piece = piece.try_into_mut().unwrap();
            assert_eq!(piece.capacity(), piece.len());
            pieces.push(piece.len());
        }
        assert_eq!(pieces, [30, 500, 90, 20]);
    }
}
