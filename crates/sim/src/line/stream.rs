//! The body of an answer on its way over a line: late, or torn in the middle.

use super::ears::Listening;
use super::{Fault, Inner};
use bytes::Bytes;
use http_body::Frame;
use server::Body;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Sleep, sleep};

pub(crate) struct Stream {
    body: Body,
    line: Arc<Inner>,
    broken: Pin<Box<dyn Future<Output = ()> + Send>>,
    delay: Duration,
    /// On its way.
    underway: Option<(Pin<Box<Sleep>>, Frame<Bytes>)>,
    ears: Option<Listening>,
    over: bool,
}

impl Stream {
    pub(super) fn new(
        body: Body,
        line: &Arc<Inner>,
        delay: Duration,
        ears: Option<Listening>,
    ) -> Stream {
        let broken = Box::pin(line.broken());
        Stream { body, line: line.clone(), broken, delay, underway: None, ears, over: false }
    }

    fn arrived(&mut self, frame: Frame<Bytes>) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        if let (Some(ears), Some(data)) = (&mut self.ears, frame.data_ref()) {
            ears.hear(data);
        }
        Poll::Ready(Some(Ok(frame)))
    }
}

impl http_body::Body for Stream {
    type Data = Bytes;
    type Error = Fault;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        let this = self.get_mut();
        if this.over {
            return Poll::Ready(None);
        }
        if this.broken.as_mut().poll(cx).is_ready() {
            this.over = true;
            return Poll::Ready(Some(Err(Fault("the stream was torn"))));
        }
        if this.line.is_silent() {
            return Poll::Pending; // `broken` wakes us.
        }
        if let Some((sleep, _)) = &mut this.underway {
            std::task::ready!(sleep.as_mut().poll(cx));
            if let Some((_, frame)) = this.underway.take() {
                return this.arrived(frame);
            }
        }
        match std::task::ready!(Pin::new(&mut this.body).poll_frame(cx)) {
            Some(Ok(frame)) if this.delay.is_zero() => this.arrived(frame),
            Some(Ok(frame)) => {
                let mut sleep = Box::pin(sleep(this.delay));
                let due = sleep.as_mut().poll(cx);
                this.underway = Some((sleep, frame));
                match (due, this.underway.take_if(|_| due.is_ready())) {
                    (_, Some((_, frame))) => this.arrived(frame),
                    (_, None) => Poll::Pending,
                }
            }
            None => {
                if let Some(ears) = &mut this.ears {
                    ears.end();
                }
                Poll::Ready(None)
            }
        }
    }
}
