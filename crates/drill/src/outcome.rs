//! What became of one request: answered, or lost in one of a few ways.
//!
//! Pure. `attribution` refines two classes that a client alone cannot tell apart: a connection that was cut because
//! the process was killed, and one that was refused because the Service had no endpoint.

use serde::Serialize;
use std::io::ErrorKind;

/// How a request uses connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ConnectionKind {
    /// A new connection for every request.
    New,
    /// Connections that are used again and again.
    Keepalive,
    /// Requests that take long, each on a new connection.
    Slow,
}

impl ConnectionKind {
    pub const ALL: [ConnectionKind; 3] =
        [ConnectionKind::New, ConnectionKind::Keepalive, ConnectionKind::Slow];

    pub fn word(self) -> &'static str {
        match self {
            ConnectionKind::New => "new",
            ConnectionKind::Keepalive => "keepalive",
            ConnectionKind::Slow => "slow",
        }
    }
}

/// Why a request got no good answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Failure {
    /// Nothing listened at the address.
    Refused,
    /// A connection that had been used before was closed instead of answering.
    ResetOnReuse,
    /// The connection was closed before the answer was complete.
    Cut,
    /// The same, because the server was killed.
    CutBySigkill,
    Timeout,
    /// The Service had no endpoint that could serve.
    NoEndpoint,
    /// The network reported that the address cannot be reached.
    Unreachable,
    /// The answer had a status of 500 or higher.
    ServerError,
    Dns,
    /// The answer is not HTTP.
    Garbled,
}

impl Failure {
    pub const ALL: [Failure; 10] = [
        Failure::Refused,
        Failure::ResetOnReuse,
        Failure::Cut,
        Failure::CutBySigkill,
        Failure::Timeout,
        Failure::NoEndpoint,
        Failure::Unreachable,
        Failure::ServerError,
        Failure::Dns,
        Failure::Garbled,
    ];

    pub fn phrase(self) -> &'static str {
        match self {
            Failure::Refused => "connection refused",
            Failure::ResetOnReuse => "reused connection reset",
            Failure::Cut => "cut before the answer was complete",
            Failure::CutBySigkill => "cut by SIGKILL",
            Failure::Timeout => "timeout",
            Failure::NoEndpoint => "no endpoint",
            Failure::Unreachable => "address unreachable",
            Failure::ServerError => "5xx answer",
            Failure::Dns => "name not resolved",
            Failure::Garbled => "answer is not HTTP",
        }
    }
}

/// How far a request came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Resolve,
    Connect,
    /// The request was sent, at least in part; no byte of the answer was read.
    AwaitAnswer,
    ReadAnswer,
}

/// What a client observed of a request that was not completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Problem {
    Io(ErrorKind),
    /// The server closed the connection without an error.
    Closed,
    OutOfTime,
    NotHttp,
}

/// The class of a request that was not completed.
pub(crate) fn classify(stage: Stage, problem: Problem, reused: bool) -> Failure {
    use ErrorKind::{
        ConnectionRefused, HostUnreachable, NetworkDown, NetworkUnreachable, TimedOut,
    };
    match (stage, problem) {
        (_, Problem::OutOfTime | Problem::Io(TimedOut)) => Failure::Timeout,
        (Stage::Resolve, _) => Failure::Dns,
        (_, Problem::Io(HostUnreachable | NetworkUnreachable | NetworkDown)) => {
            Failure::Unreachable
        }
        (Stage::Connect, Problem::Io(ConnectionRefused)) => Failure::Refused,
        (_, Problem::NotHttp) => Failure::Garbled,
        (Stage::AwaitAnswer, _) if reused => Failure::ResetOnReuse,
        (Stage::Connect | Stage::AwaitAnswer | Stage::ReadAnswer, _) => Failure::Cut,
    }
}

/// The class of an answer by its status. None: it is good.
pub(crate) fn classify_status(status: u16) -> Option<Failure> {
    (status >= 500).then_some(Failure::ServerError)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_classified_by_how_far_they_came() {
        use ErrorKind::*;
        use Problem::*;
        use Stage::*;
        for (stage, problem, reused, expected) in [
            (Resolve, Io(NotFound), false, Failure::Dns),
            (Resolve, OutOfTime, false, Failure::Timeout),
            (Connect, Io(ConnectionRefused), false, Failure::Refused),
            (Connect, Io(HostUnreachable), false, Failure::Unreachable),
            (Connect, Io(TimedOut), false, Failure::Timeout),
            (Connect, Io(ConnectionReset), false, Failure::Cut),
            (Connect, OutOfTime, false, Failure::Timeout),
            (AwaitAnswer, Io(ConnectionReset), true, Failure::ResetOnReuse),
            (AwaitAnswer, Io(BrokenPipe), true, Failure::ResetOnReuse),
            (AwaitAnswer, Closed, true, Failure::ResetOnReuse),
            (AwaitAnswer, Closed, false, Failure::Cut),
            (AwaitAnswer, Io(ConnectionReset), false, Failure::Cut),
            (AwaitAnswer, OutOfTime, true, Failure::Timeout),
            (AwaitAnswer, NotHttp, true, Failure::Garbled),
            (ReadAnswer, Closed, true, Failure::Cut),
            (ReadAnswer, Io(ConnectionReset), true, Failure::Cut),
        ] {
            assert_eq!(
                classify(stage, problem, reused),
                expected,
                "{stage:?} {problem:?} {reused}"
            );
        }
    }

    #[test]
    fn only_server_errors_are_bad_answers() {
        for (status, expected) in [(200, None), (302, None), (404, None), (499, None)] {
            assert_eq!(classify_status(status), expected);
        }
        assert_eq!(classify_status(500), Some(Failure::ServerError));
        assert_eq!(classify_status(503), Some(Failure::ServerError));
    }

    #[test]
    fn every_class_is_listed_once_and_has_its_own_phrase() {
        let phrases: std::collections::BTreeSet<&str> =
            Failure::ALL.iter().map(|class| class.phrase()).collect();
        assert_eq!(phrases.len(), Failure::ALL.len());
    }
}
