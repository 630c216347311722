//! Bodies: reading a request's within bounds, and the three shapes of an answer's.

use crate::error::{ApiError, Result};
use bytes::{Bytes, BytesMut};
use futures::Stream;
use http_body_util::BodyExt;
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// The largest request body that is read.
pub(crate) const REQUEST_MAX: usize = 3 * 1024 * 1024;

/// How much of a body that is too long is read nevertheless, and forgotten.
const DISCARD_MAX: usize = 16 * 1024 * 1024;

/// A request ends after this, so nobody waits longer for the rest of a body.
const ARRIVAL_MAX: Duration = Duration::from_secs(60);

/// Lists are sent in pieces of about this size: large enough to keep TLS records full, small enough
/// that a slow reader of a large list holds little memory.
const PIECE: usize = 128 * 1024;

/// The body of an answer.
pub enum Body {
    Full(Option<Bytes>),
    /// Many small parts that were encoded long ago, joined on the way out.
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

    /// How many bytes there will be, if that is known before they are sent.
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
                let piece = join(parts, PIECE);
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

/// The first of these parts in one piece: as many as fit into `limit`, at least one. One alone is not
/// copied, and no more is allocated than is sent.
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

/// The whole request body, refused as soon as it is too long or too late.
pub(crate) async fn read<B>(body: B) -> Result<Bytes>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: std::fmt::Display,
{
    // A client that sends slowly holds one of the requests that may be in flight.
    let read = tokio::time::timeout(ARRIVAL_MAX, read_all(body)).await;
    read.unwrap_or_else(|_| {
        Err(ApiError::Timeout {
            message: format!("the request's body did not arrive within {ARRIVAL_MAX:?}"),
            causes: Vec::new(),
            retry_after: 0,
        })
    })
}

/// Takes the rest of a body that is too long and forgets it: most clients look for an answer only
/// when they have said everything, and an HTTP/1.1 connection that is closed on them before loses
/// it. There is a limit to this courtesy.
async fn discard<B>(mut body: Pin<&mut B>)
where
    B: http_body::Body<Data = Bytes>,
{
    let mut discarded = 0;
    while let Some(Ok(frame)) = body.frame().await {
        discarded += frame.data_ref().map_or(0, Bytes::len);
        if discarded > DISCARD_MAX {
            return;
        }
    }
}

async fn read_all<B>(body: B) -> Result<Bytes>
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
    while let Some(frame) = body.frame().await {
        let frame = frame
            .map_err(|error| ApiError::bad_request(format!("reading the body failed: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        let so_far = whole.as_ref().map_or(first.as_ref().map_or(0, Bytes::len), BytesMut::len);
        if so_far + data.len() > REQUEST_MAX {
            too_large = true;
            break;
        }
        // Nearly every body arrives in one piece, which is then used as it is.
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

    #[tokio::test]
    async fn a_17_a_body_over_three_mebibytes_is_refused() {
        let fits = http_body_util::Full::new(Bytes::from(vec![b' '; REQUEST_MAX]));
        assert_eq!(read(fits).await.unwrap().len(), REQUEST_MAX);
        let long = http_body_util::Full::new(Bytes::from(vec![b' '; REQUEST_MAX + 1]));
        assert!(matches!(read(long).await, Err(ApiError::TooLarge(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_10_a_body_that_never_arrives_is_not_waited_for() {
        let never = http_body_util::StreamBody::new(futures::stream::pending::<
            std::result::Result<http_body::Frame<Bytes>, std::convert::Infallible>,
        >());
        assert!(matches!(read(never).await, Err(ApiError::Timeout { .. })));
    }

    #[tokio::test]
    async fn parts_come_out_whole_and_in_order() {
        let parts: VecDeque<Bytes> = (0..100).map(|i| Bytes::from(vec![i as u8; 7_000])).collect();
        let wanted: Vec<u8> = parts.iter().flatten().copied().collect();
        let body = Body::parts(parts);
        assert_eq!(body.size(), Some(700_000));
        assert_eq!(body.collect().await.unwrap().to_bytes(), wanted);
    }

    #[test]
    fn a_piece_is_no_larger_than_what_is_in_it_or_than_the_limit() {
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
