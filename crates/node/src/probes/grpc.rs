//! grpc probes: `grpc.health.v1.Health/Check` without TLS (N-101).
//!
//! Written by hand, because one unary call needs no generated client.

use super::VERSION;
use super::handler::{Outcome, Target, go_seconds};
use super::tcp::{authority, dial};
use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1::GRPCAction;
use prost::Message;
use std::time::Duration;
use tokio::net::TcpStream;

/// Interval of connection attempts until the timeout, as upstream's dialer does.
const DIAL_INTERVAL: Duration = Duration::from_millis(100);
/// Limit of a response.
const RESPONSE_MAX: usize = 64 * 1024;

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

/// Why the call failed.
enum CallError {
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
    let Ok(stream) =
        tokio::time::timeout_at(deadline, dial_until_connected(&target.pod_ip, port)).await
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
        Ok(Err(error)) => Outcome::Failure(error.message(&within)),
        Err(_) => Outcome::Failure(format!("timeout: health rpc did not complete within {within}")),
    }
}

async fn dial_until_connected(host: &str, port: u16) -> TcpStream {
    loop {
        if let Ok(stream) = dial(host, port).await {
            return stream;
        }
        tokio::time::sleep(DIAL_INTERVAL).await;
    }
}

async fn check(stream: TcpStream, address: &str, service: String) -> Result<i32, CallError> {
    let transport = |error: hyper::Error| CallError::Transport(error.to_string());
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
        .map_err(|error| CallError::Transport(error.to_string()))?;
    let response = sender.send_request(request).await.map_err(transport)?;
    let (head, body) = response.into_parts();
    if head.status != ::http::StatusCode::OK {
        let message = format!("unexpected HTTP status code received from server: {}", head.status);
        // As gRPC maps HTTP statuses: only 404 means that there is no such method.
        let code = match head.status {
            ::http::StatusCode::NOT_FOUND => UNIMPLEMENTED,
            _ => UNAVAILABLE,
        };
        return Err(CallError::Status { code, message });
    }
    let body = Limited::new(body, RESPONSE_MAX).collect().await;
    let body = body.map_err(|error| CallError::Transport(error.to_string()))?;
    let trailers = body.trailers().cloned().unwrap_or_default();
    let value = |name: &str| trailers.get(name).or_else(|| head.headers.get(name)).cloned();
    let text = |name: &str| value(name).and_then(|value| value.to_str().ok().map(str::to_owned));
    match text("grpc-status").as_deref() {
        None | Some("0") => response_status(&body.to_bytes()),
        Some(code) => Err(CallError::Status {
            code: code.parse().unwrap_or(UNKNOWN),
            message: text("grpc-message").unwrap_or_default(),
        }),
    }
}

/// A gRPC frame: no compression, length, message.
fn frame(message: &impl Message) -> Bytes {
    let mut frame = BytesMut::with_capacity(5 + message.encoded_len());
    frame.put_u8(0);
    frame.put_u32(message.encoded_len() as u32);
    message.encode_raw(&mut frame);
    frame.freeze()
}

fn response_status(frame: &[u8]) -> Result<i32, CallError> {
    let message = frame.get(5..).unwrap_or_default();
    let response = HealthCheckResponse::decode(message);
    response
        .map(|response| response.status)
        .map_err(|error| CallError::Transport(error.to_string()))
}

/// Status codes of gRPC.
const UNKNOWN: u32 = 2;
const DEADLINE_EXCEEDED: u32 = 4;
const UNIMPLEMENTED: u32 = 12;
const UNAVAILABLE: u32 = 14;

impl CallError {
    fn message(&self, within: &str) -> String {
        match self {
            CallError::Status { code: UNIMPLEMENTED, message } => format!(
                "error: this server does not implement the grpc health protocol \
                 (grpc.health.v1.Health): {message}"
            ),
            CallError::Status { code: DEADLINE_EXCEEDED, .. } => {
                format!("timeout: health rpc did not complete within {within}")
            }
            CallError::Status { code, message } => format!(
                "error: health rpc probe failed: rpc error: code = {} desc = {message}",
                code_name(*code)
            ),
            CallError::Transport(why) => format!(
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
