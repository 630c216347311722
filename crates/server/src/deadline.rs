//! How long a request may take, and what becomes of its work when that is over (A-10, T-API-30).
//!
//! Who asked is told 504; the work runs on, for a write that is cut between its two steps would leave
//! an object that nobody removes (T-API-15). So does the work of a writer who hangs up.

use crate::answer::Answer;
use crate::dispatch;
use crate::error::{ApiError, Result};
use crate::request::Query;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;

/// Nothing takes longer but what is long by its nature.
const REQUEST_MAX: Duration = Duration::from_secs(60);
/// Upstream: `requestTimeoutUpperBound`.
const WRITE_MAX: Duration = Duration::from_secs(34);

/// When a request is over, and in which words.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Deadline {
    at: Instant,
    words: &'static str,
}

impl Deadline {
    /// Of a request that is not long by its nature. `timeout` can only shorten it.
    pub(crate) fn of(verb: &str, query: &Query, started: Instant) -> Result<Deadline> {
        let asked = match query.text("timeout") {
            None => None,
            Some(text) => Some(api::decode::duration(text).map_err(|why| {
                let why = format!("invalid timeout specified in the request URL - {why}");
                ApiError::bad_request(why)
            })?),
        };
        // Nothing, or less than nothing, means as long as may be.
        let asked = asked.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let asked = asked.filter(|asked| !asked.is_zero() && *asked < REQUEST_MAX);
        let whole = asked.unwrap_or(REQUEST_MAX);
        Ok(match dispatch::writes_one(verb) {
            true => Deadline {
                at: started + whole.min(WRITE_MAX),
                words: "request did not complete within requested timeout - context deadline exceeded",
            },
            false => Deadline {
                at: started + whole,
                words: "request did not complete within the allotted timeout",
            },
        })
    }

    /// The work's answer, or that it took too long. `finishes`: it is done even if nobody waits.
    pub(crate) async fn bounds(self, work: Rest, finishes: bool) -> Result<Answer> {
        let mut work = Work { rest: Some(work), finishes };
        match tokio::time::timeout_at(self.at, &mut work).await {
            Ok(answer) => answer,
            Err(_) => Err(ApiError::Timeout {
                message: format!("Timeout: {}", self.words),
                causes: Vec::new(),
                retry_after: 0,
            }),
        }
    }
}

type Rest = Pin<Box<dyn Future<Output = Result<Answer>> + Send>>;

/// Work that was begun. Dropped before its end, it goes on by itself.
struct Work {
    rest: Option<Rest>,
    finishes: bool,
}

impl Future for Work {
    type Output = Result<Answer>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(rest) = &mut self.rest else { return Poll::Pending };
        let answer = std::task::ready!(rest.as_mut().poll(cx));
        self.rest = None;
        Poll::Ready(answer)
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // A runtime that is ending takes its work along, as a crash would.
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
    use crate::answer;
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
        for without_meaning in ["0", "0s", "-5s", "2h"] {
            assert_eq!(seconds("get", &format!("timeout={without_meaning}")), 60);
        }
    }

    #[tokio::test]
    async fn a_10_a_timeout_that_is_none_is_refused_in_gos_words() {
        let said = Deadline::of("get", &Query::parse(Some("timeout=5")), Instant::now());
        let said = said.unwrap_err().to_string();
        let wanted =
            "invalid timeout specified in the request URL - time: missing unit in duration \"5\"";
        assert_eq!(said, wanted);
    }

    /// Work of ten minutes that says when it is done.
    fn long_work() -> (Arc<AtomicBool>, Rest) {
        let done = Arc::new(AtomicBool::new(false));
        let tells = done.clone();
        let work = async move {
            tokio::time::sleep(Duration::from_secs(600)).await;
            tells.store(true, Ordering::SeqCst);
            Ok(answer::text(StatusCode::OK, "ok"))
        };
        (done, Box::pin(work))
    }

    async fn later(seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn t_api_30_who_waits_too_long_is_told_and_the_work_is_done_all_the_same() {
        let started = Instant::now();
        let deadline = Deadline::of("delete", &Query::default(), started).unwrap();
        let (done, work) = long_work();
        let said = deadline.bounds(work, true).await;
        assert_eq!(started.elapsed().as_secs(), 34);
        let Err(error) = said else { panic!("it was answered") };
        let status = error.status();
        assert_eq!((status.code, status.reason.as_str()), (504, "Timeout"));
        assert!(status.message.ends_with("context deadline exceeded"), "{}", status.message);
        assert!(!done.load(Ordering::SeqCst));
        later(600).await;
        assert!(done.load(Ordering::SeqCst), "a write is never cut in two");
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_whose_client_hangs_up_is_finished_and_a_read_is_not() {
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
