//! One HTTP/1.1 request on a connection that the caller controls, and what became of it.
//!
//! A general HTTP client hides what a drill measures: it retries, and it chooses connections itself.

use crate::outcome::{ConnectionKind, Failure, Problem, Stage, classify, classify_status};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use std::collections::VecDeque;
use std::error::Error as _;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::Instant;

/// Where requests go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// A name or an IP address.
    pub host: String,
    pub port: u16,
}

impl Address {
    /// The value of the header `Host`.
    pub(crate) fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.authority())
    }
}

/// Connections that are kept for further requests, at most.
const IDLE_MAX: usize = 32;
/// Largest answer that is read. Longer ones count as answered.
const BODY_MAX: usize = 4 << 20;

type Sender = SendRequest<Empty<Bytes>>;

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Finished {
    pub(crate) reused: bool,
    /// The status of the answer, or why there was none.
    pub(crate) result: Result<u16, Failure>,
}

/// Sends requests to one address and keeps connections for those that reuse them.
pub(crate) struct Requester {
    address: Address,
    /// The longest that a request may take.
    timeout: Duration,
    /// The connection that was idle the longest comes first, so that all are used.
    idle: Mutex<VecDeque<Sender>>,
}

impl Requester {
    pub(crate) fn new(address: Address, timeout: Duration) -> Requester {
        Requester { address, timeout, idle: Mutex::default() }
    }

    /// Sends one GET. Never retries a request of which the server may have seen a part.
    pub(crate) async fn get(
        &self,
        kind: ConnectionKind,
        path: &str,
        deadline: Instant,
    ) -> Finished {
        let mut progress = Progress { stage: Stage::Connect, reused: false };
        let work = self.exchange(kind, path, &mut progress);
        let result = match tokio::time::timeout_at(deadline, work).await {
            Ok(Ok(status)) => classify_status(status).map_or(Ok(status), Err),
            Ok(Err(problem)) => Err(classify(progress.stage, problem, progress.reused)),
            Err(_) => Err(classify(progress.stage, Problem::OutOfTime, progress.reused)),
        };
        Finished { reused: progress.reused, result }
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    async fn exchange(
        &self,
        kind: ConnectionKind,
        path: &str,
        progress: &mut Progress,
    ) -> Result<u16, Problem> {
        if kind == ConnectionKind::Keepalive {
            // A connection that was closed while it was idle is no loss: every client notices and takes another one.
            while let Some(mut sender) = self.take_idle() {
                if sender.ready().await.is_err() {
                    continue;
                }
                *progress = Progress { stage: Stage::AwaitAnswer, reused: true };
                match self.send(&mut sender, path, true, progress).await {
                    Err(SendProblem::NotSent) => continue,
                    Err(SendProblem::Lost(problem)) => return Err(problem),
                    Ok(status) => {
                        self.keep(sender);
                        return Ok(status);
                    }
                }
            }
        }
        let keep = kind == ConnectionKind::Keepalive;
        let mut sender = self.connect(progress).await?;
        *progress = Progress { stage: Stage::AwaitAnswer, reused: false };
        match self.send(&mut sender, path, keep, progress).await {
            Ok(status) => {
                if keep {
                    self.keep(sender);
                }
                Ok(status)
            }
            Err(SendProblem::NotSent) => Err(Problem::Closed),
            Err(SendProblem::Lost(problem)) => Err(problem),
        }
    }

    async fn connect(&self, progress: &mut Progress) -> Result<Sender, Problem> {
        *progress = Progress { stage: Stage::Resolve, reused: false };
        let addresses: Vec<SocketAddr> =
            lookup_host((self.address.host.as_str(), self.address.port))
                .await
                .map_err(|error| Problem::Io(error.kind()))?
                .collect();
        progress.stage = Stage::Connect;
        let stream = TcpStream::connect(&addresses[..]).await;
        let stream = stream.map_err(|error| Problem::Io(error.kind()))?;
        // Requests are small; waiting for more data to send would only delay them.
        let _ = stream.set_nodelay(true);
        let (sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| problem(&error))?;
        // Ends with the connection: when the sender is dropped, or the server closes it.
        tokio::spawn(async move {
            let _ = connection.await;
        });
        Ok(sender)
    }

    async fn send(
        &self,
        sender: &mut Sender,
        path: &str,
        keep: bool,
        progress: &mut Progress,
    ) -> Result<u16, SendProblem> {
        let mut request = http::Request::get(path)
            .header(http::header::HOST, self.address.authority())
            .header(http::header::USER_AGENT, "landfall-drill");
        if !keep {
            request = request.header(http::header::CONNECTION, "close");
        }
        let request =
            request.body(Empty::new()).map_err(|_| SendProblem::Lost(Problem::NotHttp))?;
        let response =
            sender.send_request(request).await.map_err(|error| match error.is_canceled() {
                true => SendProblem::NotSent,
                false => SendProblem::Lost(problem(&error)),
            })?;
        progress.stage = Stage::ReadAnswer;
        let status = response.status().as_u16();
        let mut body = response.into_body();
        let mut read = 0;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| SendProblem::Lost(problem(&error)))?;
            read += frame.data_ref().map_or(0, Bytes::len);
            if read > BODY_MAX {
                break;
            }
        }
        Ok(status)
    }

    fn take_idle(&self) -> Option<Sender> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(sender) = idle.pop_front() {
            if !sender.is_closed() {
                return Some(sender);
            }
        }
        None
    }

    fn keep(&self, sender: Sender) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX && !sender.is_closed() {
            idle.push_back(sender);
        }
    }
}

struct Progress {
    stage: Stage,
    reused: bool,
}

enum SendProblem {
    /// The connection was closed before any byte was sent, so any client would use another one.
    NotSent,
    Lost(Problem),
}

fn problem(error: &hyper::Error) -> Problem {
    if error.is_parse() {
        return Problem::NotHttp;
    }
    let mut source = error.source();
    while let Some(inner) = source {
        if let Some(io) = inner.downcast_ref::<std::io::Error>() {
            return Problem::Io(io.kind());
        }
        source = inner.source();
    }
    Problem::Closed
}

#[cfg(test)]
mod tests;
