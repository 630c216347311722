//! A server whose responses and failures the test determines. It runs on a paused clock, so that minutes of silence
//! take no time.

use bytes::Bytes;
use client::Client;
use futures::StreamExt;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use kube::client::Body;
use serde_json::{Value, json};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A response of the fake server; an error means that the connection broke.
pub(crate) type Answer = Result<Response<ResponseBody>, std::io::Error>;

type ResponseBody = UnsyncBoxBody<Bytes, std::io::Error>;

/// A client whose requests `answer` answers. It gets method, path with query, and body.
pub(crate) fn client(
    answer: impl Fn(&str, &str, Value) -> Answer + Send + Sync + 'static,
) -> Client {
    Client::in_process(FakeServer(Arc::new(answer)))
}

struct FakeServer<F>(Arc<F>);

impl<F> tower::Service<Request<Body>> for FakeServer<F>
where
    F: Fn(&str, &str, Value) -> Answer + Send + Sync + 'static,
{
    type Response = Response<ResponseBody>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = Answer> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let answer = Arc::clone(&self.0);
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let body = serde_json::from_slice(&body).unwrap_or_default();
            let path = head.uri.path_and_query().unwrap().as_str();
            answer(head.method.as_str(), path, body)
        })
    }
}

pub(crate) fn ok(body: &Value) -> Answer {
    Ok(Response::new(body_of(body)))
}

pub(crate) fn refusal(code: u16, reason: &str) -> Answer {
    Ok(Response::builder().status(code).body(body_of(&status(code, reason))).unwrap())
}

fn body_of(body: &Value) -> ResponseBody {
    Full::from(body.to_string()).map_err(|never| match never {}).boxed_unsync()
}

pub(crate) fn unreachable() -> Answer {
    Err(std::io::ErrorKind::ConnectionRefused.into())
}

pub(crate) fn status(code: u16, reason: &str) -> Value {
    json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
            "reason": reason, "message": "played" })
}

/// How a watch continues after its events.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Then {
    Close,
    /// In the middle of a line.
    Break,
    /// The connection stays open without any data.
    Silence,
}

pub(crate) fn watch(events: &[Value], then: Then) -> Answer {
    let lines =
        events.iter().map(|event| Ok::<_, std::io::Error>(Bytes::from(format!("{event}\n"))));
    let lines = futures::stream::iter(lines.collect::<Vec<_>>());
    let rest: Pin<Box<dyn futures::Stream<Item = Result<Bytes, std::io::Error>> + Send>> =
        match then {
            Then::Close => Box::pin(futures::stream::empty()),
            Then::Break => Box::pin(futures::stream::iter([
                Ok(Bytes::from("{\"type\":\"ADD")),
                Err(std::io::ErrorKind::ConnectionReset.into()),
            ])),
            Then::Silence => Box::pin(futures::stream::pending()),
        };
    let frames = lines.chain(rest).map(|piece| piece.map(http_body::Frame::data));
    Ok(Response::new(StreamBody::new(frames).boxed_unsync()))
}

pub(crate) fn config_map(name: &str, version: u64) -> Value {
    json!({ "kind": "ConfigMap", "apiVersion": "v1", "metadata": {
        "namespace": "default", "name": name, "uid": name, "resourceVersion": version.to_string(),
    } })
}

pub(crate) fn event(event_type: &str, name: &str, version: u64) -> Value {
    json!({ "type": event_type, "object": config_map(name, version) })
}

pub(crate) fn bookmark(version: u64) -> Value {
    json!({ "type": "BOOKMARK", "object": { "kind": "ConfigMap", "apiVersion": "v1",
            "metadata": { "resourceVersion": version.to_string() } } })
}

pub(crate) fn list(names: &[(&str, u64)], version: u64) -> Answer {
    let items: Vec<Value> =
        names.iter().map(|(name, version)| config_map(name, *version)).collect();
    ok(&json!({ "kind": "ConfigMapList", "apiVersion": "v1",
                "metadata": { "resourceVersion": version.to_string() }, "items": items }))
}
