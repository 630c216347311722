//! The body of a response on its way over a connection: delayed, or broken off in the middle.

use super::watch_observer::ObservedResponse;
use super::{ConnectionError, Inner};
use bytes::Bytes;
use http_body::Frame;
use server::Body;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Sleep, sleep};

pub(crate) struct ResponseBody {
    body: Body,
    connection: Arc<Inner>,
    broken: Pin<Box<dyn Future<Output = ()> + Send>>,
    delay: Duration,
    /// A frame that is delayed.
    underway: Option<(Pin<Box<Sleep>>, Frame<Bytes>)>,
    observer: Option<ObservedResponse>,
    over: bool,
}

impl ResponseBody {
    pub(super) fn new(
        body: Body,
        connection: &Arc<Inner>,
        delay: Duration,
        observer: Option<ObservedResponse>,
    ) -> ResponseBody {
        let broken = Box::pin(connection.until_broken());
        ResponseBody {
            body,
            connection: connection.clone(),
            broken,
            delay,
            underway: None,
            observer,
            over: false,
        }
    }

    fn arrived(
        &mut self,
        frame: Frame<Bytes>,
    ) -> Poll<Option<Result<Frame<Bytes>, ConnectionError>>> {
        if let (Some(observer), Some(data)) = (&mut self.observer, frame.data_ref()) {
            observer.read(data);
        }
        Poll::Ready(Some(Ok(frame)))
    }
}

impl http_body::Body for ResponseBody {
    type Data = Bytes;
    type Error = ConnectionError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ConnectionError>>> {
        let this = self.get_mut();
        if this.over {
            return Poll::Ready(None);
        }
        if this.broken.as_mut().poll(cx).is_ready() {
            this.over = true;
            return Poll::Ready(Some(Err(ConnectionError("the stream was broken"))));
        }
        if this.connection.is_silent() {
            return Poll::Pending; // `broken` wakes this task.
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
                if let Some(observer) = &mut this.observer {
                    observer.end();
                }
                Poll::Ready(None)
            }
        }
    }
}
