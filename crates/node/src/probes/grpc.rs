//! grpc: `grpc.health.v1.Health/Check` in plain text (N-101).
//!
//! One unary call needs no generated client: a frame, a path and two trailers.

use super::VERSION;
use super::dial::{authority, dial};
use super::handler::{Outcome, Target, go_seconds};
use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1::GRPCAction;
use prost::Message;
use std::time::Duration;
use tokio::net::TcpStream;

/// A server that is not there yet may come within the timeout; upstream's dialer waits for it too.
const DIAL_AGAIN: Duration = Duration::from_millis(100);
/// An answer is a number.
const ANSWER_MAX: usize = 64 * 1024;

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct HealthCheckResponse {
    #[prost(enumeration = "ServingStatus", tag = "1")]
    status: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
enum ServingStatus {
    Unknown = 0,
    Serving = 1,
    NotServing = 2,
    ServiceUnknown = 3,
}

impl ServingStatus {
    fn name(number: i32) -> String {
        match ServingStatus::try_from(number) {
            Ok(ServingStatus::Unknown) => "UNKNOWN".to_owned(),
            Ok(ServingStatus::Serving) => "SERVING".to_owned(),
            Ok(ServingStatus::NotServing) => "NOT_SERVING".to_owned(),
            Ok(ServingStatus::ServiceUnknown) => "SERVICE_UNKNOWN".to_owned(),
            Err(_) => number.to_string(),
        }
    }
}

/// How the call itself ended, when not with an answer.
enum Failed {
    Status { code: u32, message: String },
    Transport(String),
}

pub(super) async fn probe(action: &GRPCAction, target: &Target, timeout: Duration) -> Outcome {
    let Some(port) = u16::try_from(action.port).ok().filter(|port| *port > 0) else {
        return Outcome::Error(format!("invalid port number: {}", action.port));
    };
    let address = authority(&target.pod_ip, port);
    let within = go_seconds(timeout);
    let deadline = tokio::time::Instant::now() + timeout;
    let Ok(stream) = tokio::time::timeout_at(deadline, dial_patiently(&target.pod_ip, port)).await
    else {
        return Outcome::Failure(format!(
            "timeout: failed to connect service {address:?} within {within}: context deadline exceeded"
        ));
    };
    let service = action.service.clone().unwrap_or_default();
    match tokio::time::timeout_at(deadline, check(stream, &address, service)).await {
        Ok(Ok(status)) if status == ServingStatus::Serving as i32 => Outcome::Success,
        Ok(Ok(status)) => Outcome::Failure(format!(
            "service unhealthy (responded with {:?})",
            ServingStatus::name(status)
        )),
        Ok(Err(failed)) => Outcome::Failure(failed.text(&within)),
        Err(_) => Outcome::Failure(format!("timeout: health rpc did not complete within {within}")),
    }
}

async fn dial_patiently(host: &str, port: u16) -> TcpStream {
    loop {
        if let Ok(stream) = dial(host, port).await {
            return stream;
        }
        tokio::time::sleep(DIAL_AGAIN).await;
    }
}

async fn check(stream: TcpStream, address: &str, service: String) -> Result<i32, Failed> {
    let transport = |error: hyper::Error| Failed::Transport(error.to_string());
    let (mut sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .handshake(TokioIo::new(stream))
        .await
        .map_err(transport)?;
    let mut driver = tokio::task::JoinSet::new();
    driver.spawn(connection);
    let request = ::http::Request::post(format!("http://{address}/grpc.health.v1.Health/Check"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("user-agent", format!("kube-probe/{VERSION}"))
        .body(Full::new(frame(&HealthCheckRequest { service })))
        .map_err(|error| Failed::Transport(error.to_string()))?;
    let answer = sender.send_request(request).await.map_err(transport)?;
    let (head, body) = answer.into_parts();
    if head.status != ::http::StatusCode::OK {
        let message = format!("unexpected HTTP status code received from server: {}", head.status);
        // As gRPC maps them: only 404 means that there is no such method.
        let code = if head.status == ::http::StatusCode::NOT_FOUND { 12 } else { 14 };
        return Err(Failed::Status { code, message });
    }
    let body = Limited::new(body, ANSWER_MAX).collect().await;
    let body = body.map_err(|error| Failed::Transport(error.to_string()))?;
    let trailers = body.trailers().cloned().unwrap_or_default();
    let said = |name: &str| trailers.get(name).or_else(|| head.headers.get(name)).cloned();
    let text = |name: &str| said(name).and_then(|value| value.to_str().ok().map(str::to_owned));
    match text("grpc-status").as_deref() {
        None | Some("0") => answer_status(&body.to_bytes()),
        Some(code) => Err(Failed::Status {
            code: code.parse().unwrap_or(2),
            message: text("grpc-message").unwrap_or_default(),
        }),
    }
}

/// Not compressed, length, message.
fn frame(message: &impl Message) -> Bytes {
    let mut frame = BytesMut::with_capacity(5 + message.encoded_len());
    frame.put_u8(0);
    frame.put_u32(message.encoded_len() as u32);
    message.encode_raw(&mut frame);
    frame.freeze()
}

fn answer_status(frame: &[u8]) -> Result<i32, Failed> {
    let message = frame.get(5..).unwrap_or_default();
    let answer = HealthCheckResponse::decode(message);
    answer.map(|answer| answer.status).map_err(|error| Failed::Transport(error.to_string()))
}

const DEADLINE_EXCEEDED: u32 = 4;
const UNIMPLEMENTED: u32 = 12;

impl Failed {
    fn text(&self, within: &str) -> String {
        match self {
            Failed::Status { code: UNIMPLEMENTED, message } => format!(
                "error: this server does not implement the grpc health protocol \
                 (grpc.health.v1.Health): {message}"
            ),
            Failed::Status { code: DEADLINE_EXCEEDED, .. } => {
                format!("timeout: health rpc did not complete within {within}")
            }
            Failed::Status { code, message } => format!(
                "error: health rpc probe failed: rpc error: code = {} desc = {message}",
                code_name(*code)
            ),
            Failed::Transport(why) => format!(
                "error: health rpc probe failed: rpc error: code = Unavailable desc = {why}"
            ),
        }
    }
}

fn code_name(code: u32) -> &'static str {
    const NAMES: [&str; 17] = [
        "OK",
        "Canceled",
        "Unknown",
        "InvalidArgument",
        "DeadlineExceeded",
        "NotFound",
        "AlreadyExists",
        "PermissionDenied",
        "ResourceExhausted",
        "FailedPrecondition",
        "Aborted",
        "OutOfRange",
        "Unimplemented",
        "Internal",
        "Unavailable",
        "DataLoss",
        "Unauthenticated",
    ];
    NAMES.get(code as usize).copied().unwrap_or("Unknown")
}
