//! Questions about names outside the zone, asked of the node's resolvers.
//!
//! Identical questions at the same time are asked once, and all clients get the answer. So if a resolver forwards
//! back to this server, its question joins the one under way and the loop ends with the timeout instead of growing.
//!
//! Not here: how one server is asked (`exchange`), which servers there are (`resolv_conf`).

use super::exchange::{self, ExchangeError};
use super::limits::{Share, Shares};
use super::resolv_conf::{Servers, Sources};
use futures::FutureExt;
use futures::future::Shared;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{Name, Record, RecordType};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

/// Forwarded questions at the same time, in total and per client.
const QUESTIONS_MAX: usize = 512;
const CLIENT_QUESTIONS_MAX: usize = 64;

/// How long one server may take.
const SERVER_TIMEOUT: Duration = Duration::from_millis(1500);

/// How often a question is sent, to the next server each time. Clients give up after five seconds, so together these
/// take less.
const ATTEMPTS_MAX: usize = 3;

/// A question for other servers. Equal ones get the same answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Question {
    pub(crate) name: Name,
    pub(crate) kind: RecordType,
    /// Whether the client uses EDNS, and if so, whether it wants DNSSEC records.
    pub(crate) edns: Option<bool>,
    pub(crate) recursion_desired: bool,
    pub(crate) checking_disabled: bool,
}

/// What another server answered.
#[derive(Debug, Clone)]
pub(crate) struct UpstreamAnswer {
    pub(crate) code: ResponseCode,
    pub(crate) authentic: bool,
    pub(crate) answers: Vec<Record>,
    pub(crate) authorities: Vec<Record>,
    pub(crate) additionals: Vec<Record>,
}

/// Why a question has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unanswered {
    #[error("the node's resolv.conf names no other DNS server")]
    NoServers,
    #[error("too many questions are being forwarded")]
    Busy,
    #[error("no DNS server answered")]
    Failed,
}

type Answer = Result<Arc<UpstreamAnswer>, Unanswered>;

pub(crate) struct Forwarder {
    servers: Mutex<Servers>,
    under_way: Mutex<HashMap<Question, Shared<oneshot::Receiver<Answer>>>>,
    shares: Arc<Shares>,
}

impl Forwarder {
    pub(crate) fn new(sources: Sources) -> Arc<Forwarder> {
        Arc::new(Forwarder {
            servers: Mutex::new(Servers::new(sources)),
            under_way: Mutex::default(),
            shares: Shares::new(QUESTIONS_MAX, CLIENT_QUESTIONS_MAX),
        })
    }

    /// Asks the node's resolvers until one answers.
    pub(crate) async fn ask(self: &Arc<Self>, question: &Question, client: IpAddr) -> Answer {
        let share = self.shares.take(client).ok_or(Unanswered::Busy)?;
        let (answer, _share) = self.join(question, share);
        // The sender is dropped without an answer only if the runtime is being shut down.
        answer.await.unwrap_or(Err(Unanswered::Failed))
    }

    /// The answer to the same question that is already under way, or to this one. Returns the share if it was not
    /// needed to ask.
    fn join(
        self: &Arc<Self>,
        question: &Question,
        share: Share,
    ) -> (Shared<oneshot::Receiver<Answer>>, Option<Share>) {
        let mut under_way = locked(&self.under_way);
        if let Some(answer) = under_way.get(question) {
            return (answer.clone(), Some(share));
        }
        let (sender, receiver) = oneshot::channel();
        let receiver = receiver.shared();
        under_way.insert(question.clone(), receiver.clone());
        let (forwarder, question) = (self.clone(), question.clone());
        // A task of its own: it ends also if the client goes away, and then others can still join.
        tokio::spawn(async move {
            let _share = share;
            let answer = forwarder.ask_servers(&question).await;
            locked(&forwarder.under_way).remove(&question);
            let _ = sender.send(answer);
        });
        (receiver, None)
    }

    async fn ask_servers(&self, question: &Question) -> Answer {
        let servers = locked(&self.servers).in_order(Instant::now());
        if servers.is_empty() {
            return Err(Unanswered::NoServers);
        }
        let mut last = Err(Unanswered::Failed);
        let attempts = servers.iter().cycle().take(ATTEMPTS_MAX.max(servers.len()));
        let deadline = Instant::now() + SERVER_TIMEOUT * ATTEMPTS_MAX as u32;
        for server in attempts {
            if Instant::now() >= deadline {
                break;
            }
            match self.ask_server(*server, question).await {
                Ok(answer) if is_final(answer.code) => return Ok(Arc::new(answer)),
                // Another server may know more.
                Ok(answer) => last = Ok(Arc::new(answer)),
                Err(error) => tracing::debug!(%server, %error, "a DNS server did not answer"),
            }
        }
        last
    }

    async fn ask_server(
        &self,
        server: SocketAddr,
        question: &Question,
    ) -> Result<UpstreamAnswer, ExchangeError> {
        let answer = timeout(SERVER_TIMEOUT, exchange::ask(server, question)).await;
        let answer = answer.unwrap_or(Err(ExchangeError::Timeout));
        locked(&self.servers).answered(server, answer.is_ok(), Instant::now());
        answer
    }
}

/// Whether the answer is one about the name, not about the server.
fn is_final(code: ResponseCode) -> bool {
    !matches!(code, ResponseCode::ServFail | ResponseCode::Refused | ResponseCode::NotImp)
}

/// Code that panics while it holds the lock cannot leave this data half-changed.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
