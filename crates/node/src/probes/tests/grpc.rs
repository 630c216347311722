//! grpc against a hand-made server of `grpc.health.v1` (N-101).

use super::{asked, closed_port, failure};
use crate::probes::handler::Outcome;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use std::convert::Infallible;
use tokio::net::TcpListener;

/// What the server does with a question about a service.
#[derive(Debug, Clone, Copy)]
enum Play {
    /// The bytes of the answer's status field.
    Status(u8),
    /// Only a grpc-status, and a message.
    Code(&'static str, &'static str),
    Silence,
}

/// Its port. A service called `known` is asked for in any case.
async fn serve(play: Play) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = hyper::service::service_fn(move |request| answer(play, request));
            tokio::spawn(
                hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service),
            );
        }
    });
    port
}

type Body = http_body_util::combinators::BoxBody<Bytes, Infallible>;

async fn answer(
    play: Play,
    request: http::Request<Incoming>,
) -> Result<http::Response<Body>, Infallible> {
    let path = request.uri().path().to_owned();
    let agent = request.headers()["user-agent"].to_str().unwrap().to_owned();
    let asked = request.into_body().collect().await.unwrap().to_bytes();
    // Not compressed, seven bytes: field 1, five letters.
    let right = path == "/grpc.health.v1.Health/Check"
        && agent.starts_with("kube-probe/1.36")
        && asked == b"\0\0\0\0\x07\x0a\x05known".as_slice();
    let response = http::Response::builder().header("content-type", "application/grpc");
    let response = match play {
        _ if !right => response.status(500).body(Full::default().boxed()),
        Play::Silence => std::future::pending().await,
        Play::Code(code, message) => response
            .header("grpc-status", code)
            .header("grpc-message", message)
            .body(Full::default().boxed()),
        Play::Status(status) => {
            let message = Bytes::copy_from_slice(&[0, 0, 0, 0, 2, 8, status]);
            let mut trailers = http::HeaderMap::new();
            trailers.insert("grpc-status", "0".parse().unwrap());
            let frames = [Frame::data(message), Frame::trailers(trailers)].map(Ok);
            response.body(StreamBody::new(futures::stream::iter(frames)).boxed())
        }
    };
    Ok(response.unwrap())
}

async fn check(play: Play) -> Outcome {
    let port = serve(play).await;
    asked(json!({ "grpc": { "port": port, "service": "known" } })).await
}

#[tokio::test]
async fn n_101_only_serving_is_success() {
    assert_eq!(check(Play::Status(1)).await, Outcome::Success);
    for (status, name) in [(0, "UNKNOWN"), (2, "NOT_SERVING"), (3, "SERVICE_UNKNOWN")] {
        let said = format!("service unhealthy (responded with \"{name}\")");
        assert_eq!(check(Play::Status(status)).await, failure(&said));
    }
}

#[tokio::test]
async fn n_101_a_server_without_health_checks_says_so() {
    let said = "error: this server does not implement the grpc health protocol \
                (grpc.health.v1.Health): unknown service";
    assert_eq!(check(Play::Code("12", "unknown service")).await, failure(said));
    let said = "error: health rpc probe failed: rpc error: code = NotFound desc = who?";
    assert_eq!(check(Play::Code("5", "who?")).await, failure(said));
}

#[tokio::test]
async fn n_101_a_server_that_does_not_answer_or_is_not_there_is_timed_out() {
    assert_eq!(
        check(Play::Silence).await,
        failure("timeout: health rpc did not complete within 1s")
    );
    let port = closed_port().await;
    let said = format!(
        "timeout: failed to connect service \"127.0.0.1:{port}\" within 1s: context deadline exceeded"
    );
    assert_eq!(asked(json!({ "grpc": { "port": port } })).await, failure(&said));
}
