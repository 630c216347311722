//! A connection to the server with failing requests and delayed watch events.

use bytes::Bytes;
use client::Client;
use futures::StreamExt;
use http::{Method, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, BodyStream, Full, StreamBody};
use kube::client::Body;
use serde_json::json;
use server::InProcessService;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tower::{BoxError, Service as _};

/// How often delayed events are checked. The clock is paused, so this costs nothing.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

type Answer = Response<UnsyncBoxBody<Bytes, BoxError>>;

#[derive(Clone, Default)]
pub(crate) struct FaultyConnection(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    failing: Option<Failing>,
    /// The kind whose watch events are delayed.
    held: Option<String>,
    /// Number of requests per path.
    requests: BTreeMap<String, usize>,
}

struct Failing {
    method: Method,
    path: String,
    times: usize,
    /// Code and reason.
    answer: (u16, &'static str),
}

impl FaultyConnection {
    /// Fails the next `times` such requests with this response.
    pub(crate) fn fail(
        &self,
        times: usize,
        method: Method,
        path: &str,
        answer: (u16, &'static str),
    ) {
        let path = path.to_owned();
        self.state().failing = Some(Failing { method, path, times, answer });
    }

    /// How many requests will still fail.
    pub(crate) fn left(&self) -> usize {
        self.state().failing.as_ref().map_or(0, |failing| failing.times)
    }

    /// Number of requests to this path so far.
    pub(crate) fn requests_to(&self, path: &str) -> usize {
        self.state().requests.get(path).copied().unwrap_or_default()
    }

    /// Delays watch events of this kind from now on.
    pub(crate) fn hold(&self, plural: &str) {
        self.state().held = Some(plural.to_owned());
    }

    pub(crate) fn release(&self) {
        self.state().held = None;
    }

    pub(crate) fn client(&self, service: InProcessService) -> Client {
        let connection = self.clone();
        Client::in_process(tower::service_fn(move |request: http::Request<Body>| {
            let (service, connection) = (service.clone(), connection.clone());
            async move { connection.pass(service, request).await }
        }))
    }

    async fn pass(
        self,
        mut service: InProcessService,
        request: http::Request<Body>,
    ) -> Result<Answer, BoxError> {
        let path = request.uri().path().to_owned();
        *self.state().requests.entry(path.clone()).or_default() += 1;
        if let Some((code, reason)) = self.failure(request.method(), &path) {
            let status = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure",
                                 "message": "not now", "reason": reason, "code": code });
            let body = Full::from(status.to_string()).map_err(BoxError::from);
            return Ok(Response::builder().status(code).body(body.boxed_unsync())?);
        }
        let watched = request.uri().query().is_some_and(|query| query.contains("watch="));
        let plural = path.rsplit('/').next().unwrap_or_default().to_owned();
        let answer = service.call(request).await.map_err(BoxError::from)?;
        if !watched {
            return Ok(answer.map(|body| body.map_err(BoxError::from).boxed_unsync()));
        }
        Ok(answer.map(|body| {
            let events = BodyStream::new(body.map_err(BoxError::from)).then(move |frame| {
                let (connection, plural) = (self.clone(), plural.clone());
                async move {
                    while connection.state().held.as_ref() == Some(&plural) {
                        tokio::time::sleep(POLL_INTERVAL).await;
                    }
                    frame
                }
            });
            StreamBody::new(events).boxed_unsync()
        }))
    }

    fn failure(&self, method: &Method, path: &str) -> Option<(u16, &'static str)> {
        let mut state = self.state();
        let failing = state.failing.as_mut().filter(|failing| failing.times > 0)?;
        if failing.method != *method || failing.path != path {
            return None;
        }
        failing.times -= 1;
        Some(failing.answer)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}
