//! How long a request may take, and what happens after its deadline (A-10, T-API-30).
//!
//! The client gets 504, but a write continues: if it were cancelled between its two steps, it would leave an object
//! that nobody removes (T-API-15). A write also continues when its client disconnects.

use crate::dispatch;
use crate::request::Query;
use crate::response::ApiResponse;
use crate::response::error::{ApiError, Result};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;

/// The limit for all requests that are not long-running.
const REQUEST_MAX: Duration = Duration::from_secs(60);
/// Upstream: `requestTimeoutUpperBound`.
const WRITE_MAX: Duration = Duration::from_secs(34);

/// When a request times out, and the message.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Deadline {
    at: Instant,
    message: &'static str,
}

impl Deadline {
    /// The deadline of a request that is not long-running. The parameter `timeout` can only shorten it.
    pub(crate) fn of(verb: &str, query: &Query, started: Instant) -> Result<Deadline> {
        let requested = match query.text("timeout") {
            None => None,
            Some(text) => Some(api::decode::duration(text).map_err(|why| {
                let why = format!("invalid timeout specified in the request URL - {why}");
                ApiError::bad_request(why)
            })?),
        };
        // Zero or a negative time means no limit of the client's own.
        let requested = requested.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let requested = requested.filter(|time| !time.is_zero() && *time < REQUEST_MAX);
        let whole = requested.unwrap_or(REQUEST_MAX);
        Ok(match dispatch::writes_one(verb) {
            true => Deadline {
                at: started + whole.min(WRITE_MAX),
                message: "request did not complete within requested timeout - context deadline exceeded",
            },
            false => Deadline {
                at: started + whole,
                message: "request did not complete within the allotted timeout",
            },
        })
    }

    pub(crate) fn at(self) -> Instant {
        self.at
    }

    /// The response, or a timeout error. `finishes`: the work continues after the timeout.
    pub(crate) async fn bounds(self, work: Rest, finishes: bool) -> Result<ApiResponse> {
        let mut work = Work { rest: Some(work), finishes };
        match tokio::time::timeout_at(self.at, &mut work).await {
            Ok(response) => response,
            Err(_) => Err(ApiError::Timeout {
                message: format!("Timeout: {}", self.message),
                causes: Vec::new(),
                retry_after: 0,
            }),
        }
    }
}

type Rest = Pin<Box<dyn Future<Output = Result<ApiResponse>> + Send>>;

/// Work in progress. If it is dropped before its end, it continues in a task of its own.
struct Work {
    rest: Option<Rest>,
    finishes: bool,
}

impl Future for Work {
    type Output = Result<ApiResponse>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(rest) = &mut self.rest else { return Poll::Pending };
        let response = std::task::ready!(rest.as_mut().poll(cx));
        self.rest = None;
        Poll::Ready(response)
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // A runtime that shuts down cancels its work, as a crash would.
        if let Some(rest) = self.rest.take().filter(|_| self.finishes && !std::thread::panicking())
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::response;
    use http::StatusCode;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn seconds(verb: &str, query: &str) -> u64 {
        let now = Instant::now();
        Deadline::of(verb, &Query::parse(Some(query)), now)
            .unwrap()
            .at
            .duration_since(now)
            .as_secs()
    }

    #[tokio::test]
    async fn a_10_t_api_30_writes_have_34_seconds_and_other_requests_a_minute() {
        for verb in ["create", "update", "patch", "delete"] {
            assert_eq!(seconds(verb, ""), 34, "{verb}");
        }
        for verb in ["get", "list", "deletecollection"] {
            assert_eq!(seconds(verb, ""), 60, "{verb}");
        }
        assert_eq!(seconds("delete", "timeout=32s"), 32);
        assert_eq!(seconds("delete", "timeout=50s"), 34);
        assert_eq!(seconds("list", "timeout=50s"), 50);
        for ignored in ["0", "0s", "-5s", "2h"] {
            assert_eq!(seconds("get", &format!("timeout={ignored}")), 60);
        }
    }

    #[tokio::test]
    async fn a_10_an_invalid_timeout_gets_the_error_message_of_go() {
        let deadline = Deadline::of("get", &Query::parse(Some("timeout=5")), Instant::now());
        let message = deadline.unwrap_err().to_string();
        let wanted =
            "invalid timeout specified in the request URL - time: missing unit in duration \"5\"";
        assert_eq!(message, wanted);
    }

    /// Work of ten minutes that sets a flag when it is done.
    fn long_work() -> (Arc<AtomicBool>, Rest) {
        let done = Arc::new(AtomicBool::new(false));
        let flag = done.clone();
        let work = async move {
            tokio::time::sleep(Duration::from_secs(600)).await;
            flag.store(true, Ordering::SeqCst);
            Ok(response::text(StatusCode::OK, "ok"))
        };
        (done, Box::pin(work))
    }

    async fn later(seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn t_api_30_after_the_deadline_the_client_gets_504_and_the_write_is_completed() {
        let started = Instant::now();
        let deadline = Deadline::of("delete", &Query::default(), started).unwrap();
        let (done, work) = long_work();
        let result = deadline.bounds(work, true).await;
        assert_eq!(started.elapsed().as_secs(), 34);
        let Err(error) = result else { panic!("it succeeded") };
        let status = error.status();
        assert_eq!((status.code, status.reason.as_str()), (504, "Timeout"));
        assert!(status.message.ends_with("context deadline exceeded"), "{}", status.message);
        assert!(!done.load(Ordering::SeqCst));
        later(600).await;
        assert!(done.load(Ordering::SeqCst), "a write is never cancelled halfway");
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_disconnect_a_write_is_completed_and_a_read_is_not() {
        for (verb, finishes) in [("delete", true), ("get", false)] {
            let deadline = Deadline::of(verb, &Query::default(), Instant::now()).unwrap();
            let (done, work) = long_work();
            let waiting = deadline.bounds(work, finishes);
            assert!(tokio::time::timeout(Duration::from_secs(1), waiting).await.is_err());
            later(601).await;
            assert_eq!(done.load(Ordering::SeqCst), finishes, "{verb}");
        }
    }
}
