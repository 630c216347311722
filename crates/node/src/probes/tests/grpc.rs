//! grpc probes with a minimal server of `grpc.health.v1` (N-101).

use super::{closed_port, failure, outcome_of};
use crate::probes::handler::Outcome;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use std::convert::Infallible;
use tokio::net::TcpListener;

/// How the server responds.
#[derive(Debug, Clone, Copy)]
enum Reply {
    /// The status field of the response.
    Status(u8),
    /// Only a grpc-status and a message.
    Code(&'static str, &'static str),
    Silence,
}

/// Starts a server that expects requests for the service `known`. Returns its port.
async fn serve(reply: Reply) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = hyper::service::service_fn(move |request| respond(reply, request));
            tokio::spawn(
                hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service),
            );
        }
    });
    port
}

type Body = http_body_util::combinators::BoxBody<Bytes, Infallible>;

async fn respond(
    reply: Reply,
    request: http::Request<Incoming>,
) -> Result<http::Response<Body>, Infallible> {
    let path = request.uri().path().to_owned();
    let agent = request.headers()["user-agent"].to_str().unwrap().to_owned();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    // No compression, seven bytes: field 1, five letters.
    let valid = path == "/grpc.health.v1.Health/Check"
        && agent.starts_with("kube-probe/1.36")
        && body == b"\0\0\0\0\x07\x0a\x05known".as_slice();
    let response = http::Response::builder().header("content-type", "application/grpc");
    let response = match reply {
        _ if !valid => response.status(500).body(Full::default().boxed()),
        Reply::Silence => std::future::pending().await,
        Reply::Code(code, message) => response
            .header("grpc-status", code)
            .header("grpc-message", message)
            .body(Full::default().boxed()),
        Reply::Status(status) => {
            let message = Bytes::copy_from_slice(&[0, 0, 0, 0, 2, 8, status]);
            let mut trailers = http::HeaderMap::new();
            trailers.insert("grpc-status", "0".parse().unwrap());
            let frames = [Frame::data(message), Frame::trailers(trailers)].map(Ok);
            response.body(StreamBody::new(futures::stream::iter(frames)).boxed())
        }
    };
    Ok(response.unwrap())
}

async fn check(reply: Reply) -> Outcome {
    let port = serve(reply).await;
    outcome_of(json!({ "grpc": { "port": port, "service": "known" } })).await
}

#[tokio::test]
async fn n_101_only_serving_is_success() {
    assert_eq!(check(Reply::Status(1)).await, Outcome::Success);
    for (status, name) in [(0, "UNKNOWN"), (2, "NOT_SERVING"), (3, "SERVICE_UNKNOWN")] {
        let message = format!("service unhealthy (responded with \"{name}\")");
        assert_eq!(check(Reply::Status(status)).await, failure(&message));
    }
}

#[tokio::test]
async fn n_101_the_message_tells_that_a_server_has_no_health_checks() {
    let message = "error: this server does not implement the grpc health protocol \
                (grpc.health.v1.Health): unknown service";
    assert_eq!(check(Reply::Code("12", "unknown service")).await, failure(message));
    let message = "error: health rpc probe failed: rpc error: code = NotFound desc = who?";
    assert_eq!(check(Reply::Code("5", "who?")).await, failure(message));
}

#[tokio::test]
async fn n_101_a_server_that_does_not_answer_or_is_down_is_a_timeout() {
    assert_eq!(
        check(Reply::Silence).await,
        failure("timeout: health rpc did not complete within 1s")
    );
    let port = closed_port().await;
    let message = format!(
        "timeout: failed to connect service \"127.0.0.1:{port}\" within 1s: context deadline exceeded"
    );
    assert_eq!(outcome_of(json!({ "grpc": { "port": port } })).await, failure(&message));
}
