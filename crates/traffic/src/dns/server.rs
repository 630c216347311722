//! From a request to a reply, for both transports: answers from the zone at once, forwards the rest.

use super::dns_metrics::DnsMetrics;
use super::forward::{Forwarder, Question, Unanswered, UpstreamAnswer};
use super::message::{Reply, Request, Transport, Unreadable};
use super::name::{Subject, subject_of};
use super::zone::{Answer, Zone};
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{DNSClass, Name, Record, RecordType};
use std::net::IpAddr;
use std::sync::Arc;

/// Answers requests. Shared by all sockets.
pub(crate) struct Responder {
    pub(crate) zone: Zone,
    pub(crate) forwarder: Arc<Forwarder>,
    pub(crate) metrics: DnsMetrics,
}

/// Who asks, and over what.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer {
    pub(crate) address: IpAddr,
    pub(crate) transport: Transport,
}

/// What became of a request.
pub(crate) enum Outcome {
    /// There is nothing to send.
    Ignored,
    /// The reply is in the buffer.
    Answered,
    /// The reply takes a question to another server: call [`Responder::complete`].
    Forwarded(Box<Pending>),
}

/// A request whose answer must come from upstream.
pub(crate) struct Pending {
    request: Request,
    peer: Peer,
    /// What the zone has already answered: aliases that lead to `target`.
    aliases: Vec<Record>,
    target: Name,
    started: i64,
}

impl Responder {
    /// Answers a request from memory if possible. Never waits.
    pub(crate) fn respond(&self, bytes: &[u8], peer: Peer, buffer: &mut Vec<u8>) -> Outcome {
        let started = clock::monotonic();
        let request = match Request::read(bytes) {
            Ok(request) => request,
            Err(Unreadable::Ignore) => return Outcome::Ignored,
            Err(Unreadable::Reject(reply)) => {
                buffer.clear();
                buffer.extend_from_slice(&reply);
                self.metrics.rejected(reply[3]);
                return Outcome::Answered;
            }
        };
        self.metrics.request(&peer, request.question.query_type);
        let reply = match refusal(&request) {
            Some(code) => Reply::of_code(code),
            None => match self.zone.answer(&request.question.name, request.question.query_type) {
                Answer::Complete(sections) => Reply {
                    code: match sections.no_such_name {
                        true => ResponseCode::NXDomain,
                        false => ResponseCode::NoError,
                    },
                    authoritative: true,
                    authentic: false,
                    answers: sections.answers,
                    authorities: sections.authorities,
                    additionals: sections.additionals,
                },
                Answer::NotReady => Reply::of_code(ResponseCode::ServFail),
                Answer::Forward => {
                    let target = request.question.name.clone();
                    let aliases = Vec::new();
                    let pending = Pending { request, peer, aliases, target, started };
                    return Outcome::Forwarded(Box::new(pending));
                }
                Answer::Continue { aliases, target } => {
                    let pending = Pending { request, peer, aliases, target, started };
                    return Outcome::Forwarded(Box::new(pending));
                }
            },
        };
        request.write(&reply, peer.transport, buffer);
        self.metrics.response(reply.code, "kubernetes", started);
        Outcome::Answered
    }

    /// Asks upstream and writes the reply into `buffer`. Ends within a bounded time.
    pub(crate) async fn complete(&self, pending: Pending, buffer: &mut Vec<u8>) {
        let Pending { request, peer, aliases, target, started } = pending;
        let question = Question {
            name: target,
            kind: request.question.query_type,
            edns: request.edns.map(|edns| edns.dnssec_ok),
            recursion_desired: request.recursion_desired,
            checking_disabled: request.checking_disabled,
        };
        let answer = self.forwarder.ask(&question, peer.address).await;
        let reply = match answer {
            Ok(answer) => forwarded(&question, aliases, &answer),
            Err(error) => {
                tracing::debug!(name = %question.name, %error, "a question was not forwarded");
                Reply::of_code(self.code_of(&error, &question.name))
            }
        };
        request.write(&reply, peer.transport, buffer);
        self.metrics.response(reply.code, "forward", started);
    }

    fn code_of(&self, error: &Unanswered, name: &Name) -> ResponseCode {
        match error {
            // Without other servers nobody knows more about the address (NET-101).
            Unanswered::NoServers if self.is_reverse(name) => ResponseCode::NXDomain,
            Unanswered::Busy => ResponseCode::Refused,
            Unanswered::NoServers | Unanswered::Failed => ResponseCode::ServFail,
        }
    }

    fn is_reverse(&self, name: &Name) -> bool {
        matches!(subject_of(name, self.zone.domain()), Subject::Reverse(_))
    }
}

/// The code for requests that are refused whatever the name is.
fn refusal(request: &Request) -> Option<ResponseCode> {
    let question = &request.question;
    if request.edns.is_some_and(|edns| edns.version != 0) {
        return Some(ResponseCode::BADVERS);
    }
    if question.query_class != DNSClass::IN {
        return Some(ResponseCode::Refused);
    }
    // Transfers of the whole zone (NET-101).
    let transfer = matches!(question.query_type, RecordType::AXFR | RecordType::IXFR);
    transfer.then_some(ResponseCode::Refused)
}

fn forwarded(question: &Question, aliases: Vec<Record>, answer: &UpstreamAnswer) -> Reply {
    let mut answers = answer.answers.clone();
    // Another client may have asked in upper case; this one gets its own spelling.
    for record in answers.iter_mut().filter(|record| record.name == question.name) {
        record.name = question.name.clone();
    }
    let authoritative = !aliases.is_empty();
    Reply {
        code: answer.code,
        authoritative,
        authentic: answer.authentic && !authoritative,
        answers: aliases.into_iter().chain(answers).collect(),
        authorities: answer.authorities.clone(),
        additionals: answer.additionals.clone(),
    }
}
