//! Flow control: how many requests are served at once, and for whom.
//!
//!     request attributes ─▶ Level::of ─▶ Pools of that level ─▶ body ─▶ seat ─▶ verb
//!
//! Each level has its own seats, so that no level can starve another. Within a level one user may hold only a share of
//! the seats. A request takes its seat after its body has arrived: a client that sends slowly costs memory and a
//! connection, both bounded here and in `tls`, but no seat.
//!
//! This is the part of API Priority and Fairness that keeps the control plane alive. Not implemented: queues, and levels
//! configured by FlowSchema and PriorityLevelConfiguration objects.

mod level;
mod pool;

pub(crate) use level::{Level, RequestAttributes};
pub(crate) use pool::Hold;

use crate::dispatch;
use crate::request::deadline::Deadline;
use crate::response::body;
use crate::response::error::{ApiError, Result};
use access::authn::User;
use bytes::Bytes;
use pool::Pool;
use std::sync::Arc;

/// Upstream's `--max-requests-inflight` and `--max-mutating-requests-inflight`, and the share of one user.
const WORKLOAD_READ: (usize, usize) = (400, 100);
const WORKLOAD_WRITE: (usize, usize) = (200, 50);
/// A node that starts writes the status of all its pods at once. The share covers 110 pods and their volumes.
const SYSTEM_SEATS: (usize, usize) = (800, 200);
/// A client renews a lease one request at a time.
const LEADER_ELECTION_SEATS: (usize, usize) = (100, 10);

/// Requests whose body has not arrived yet.
const BODIES: (usize, usize) = (1000, 200);
/// Bytes of request bodies, from their arrival until the request is done. The share is ten bodies of the maximum size.
const BODY_BYTES: (usize, usize) = (128 << 20, 32 << 20);

/// Watches. An unread one costs about 100 KiB. One service account may be that of a DaemonSet with
/// several watches per node.
const WATCHES: (usize, usize) = (16_000, 4_000);
/// Other requests without a deadline (exec, attach, port-forward, proxy, log). Each has a connection to
/// a node as well.
const STREAMS: (usize, usize) = (1024, 256);

/// All levels with their pools.
pub(crate) struct Flow {
    system: Pools,
    leader_election: Pools,
    workload: Pools,
}

/// The limits for all requests of one level.
struct Pools {
    reading: Pool,
    writing: Pool,
    bodies: Pool,
    body_bytes: Pool,
    watches: Pool,
    streams: Pool,
}

/// A body that is arriving: counted as one body, and by its bytes so far.
struct Arriving {
    _one: Hold,
    bytes: Hold,
}

/// A request before its body.
pub(crate) struct PendingRequest<'a> {
    pub(crate) user: &'a User,
    pub(crate) verb: &'a str,
    /// None for a long-running request.
    pub(crate) deadline: Option<Deadline>,
}

/// An admitted request, and what it holds.
pub(crate) struct Granted {
    pub(crate) body: Bytes,
    /// Its seat and the bytes of its body. To be kept until its work is done.
    pub(crate) held: [Option<Hold>; 2],
    /// To be kept until the response stream ends.
    pub(crate) long_running: Option<Arc<Hold>>,
}

impl Flow {
    /// `connections` is the limit of connections: watches of one user must not use all of them.
    pub(crate) fn new(connections: usize) -> Flow {
        let watches = |(total, share): (usize, usize)| {
            Pool::new(total.min(connections / 2), share.min(connections / 4))
        };
        let streams = |(total, share): (usize, usize)| {
            Pool::new(total.min(connections / 4), share.min(connections / 8))
        };
        let pools = |reading: (usize, usize), writing: (usize, usize)| Pools {
            reading: Pool::new(reading.0, reading.1),
            writing: Pool::new(writing.0, writing.1),
            bodies: Pool::new(BODIES.0, BODIES.1),
            body_bytes: Pool::new(BODY_BYTES.0, BODY_BYTES.1),
            watches: watches(WATCHES),
            streams: streams(STREAMS),
        };
        Flow {
            // A node's number of watches depends on its pods, which are limited.
            system: Pools { watches: Pool::unlimited(), ..pools(SYSTEM_SEATS, SYSTEM_SEATS) },
            leader_election: pools(LEADER_ELECTION_SEATS, LEADER_ELECTION_SEATS),
            workload: pools(WORKLOAD_READ, WORKLOAD_WRITE),
        }
    }

    /// Reads the body, then takes a seat.
    pub(crate) async fn admit<B>(
        &self,
        level: Level,
        request: PendingRequest<'_>,
        body: B,
    ) -> Result<Granted>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: std::fmt::Display,
    {
        let PendingRequest { user, verb, deadline } = request;
        let pools = self.pools(level);
        let mut arriving = match pools {
            Some(pools) if !body.is_end_stream() => Some(pools.arriving(user)?),
            _ => None,
        };
        let mut room = |bytes| arriving.as_mut().is_none_or(|body| body.bytes.grow(bytes));
        let body = body::read(body, deadline.map(Deadline::at), &mut room).await?;
        let bytes = arriving.map(|body| body.bytes);
        let (seat, long_running) = match (pools, deadline) {
            (None, _) => (None, None),
            (Some(pools), Some(_)) => (Some(pools.seat(user, !dispatch::is_read(verb))?), None),
            (Some(pools), None) => (None, Some(Arc::new(pools.long_running(user, verb)?))),
        };
        Ok(Granted { body, held: [seat, bytes], long_running })
    }

    /// None for the exempt level.
    fn pools(&self, level: Level) -> Option<&Pools> {
        match level {
            Level::Exempt => None,
            Level::System => Some(&self.system),
            Level::LeaderElection => Some(&self.leader_election),
            Level::Workload => Some(&self.workload),
        }
    }
}

impl Pools {
    /// Called before the body is read.
    fn arriving(&self, user: &User) -> Result<Arriving> {
        let one = taken(self.bodies.take(&user.name, 1))?;
        Ok(Arriving { _one: one, bytes: taken(self.body_bytes.take(&user.name, 0))? })
    }

    /// Called before the verb runs, for a request with a deadline.
    fn seat(&self, user: &User, mutating: bool) -> Result<Hold> {
        let seats = if mutating { &self.writing } else { &self.reading };
        taken(seats.take(&user.name, 1))
    }

    /// The same for a long-running request.
    fn long_running(&self, user: &User, verb: &str) -> Result<Hold> {
        let pool = if verb == "watch" { &self.watches } else { &self.streams };
        taken(pool.take(&user.name, 1))
    }
}

fn taken(hold: Option<Hold>) -> Result<Hold> {
    hold.ok_or(ApiError::Overloaded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str) -> User {
        User::authenticated(name, &[])
    }

    fn all<T>(take: impl Fn() -> Result<T>) -> Vec<T> {
        std::iter::from_fn(|| take().ok()).collect()
    }

    /// levels have separate seats, and so have reads and writes.
    #[test]
    fn a_user_who_has_used_its_share_leaves_seats_for_everyone_else() {
        let flow = Flow::new(10_000);
        let workload = flow.pools(Level::Workload).unwrap();
        let (mallory, alice, node) = (user("mallory"), user("alice"), user("system:node:n1"));
        let held = all(|| workload.seat(&mallory, true));
        assert_eq!(held.len(), WORKLOAD_WRITE.1);
        assert!(matches!(workload.seat(&mallory, true), Err(ApiError::Overloaded)));
        assert!(workload.seat(&mallory, false).is_ok());
        assert!(workload.seat(&alice, true).is_ok());
        let users: Vec<User> = (0..100).map(|i| user(&format!("u{i}"))).collect();
        let crowd: Vec<_> =
            users.iter().flat_map(|user| all(|| workload.seat(user, true))).collect();
        assert_eq!(held.len() + crowd.len(), WORKLOAD_WRITE.0);
        assert!(workload.seat(&alice, true).is_err(), "the level is full");
        assert!(flow.pools(Level::System).unwrap().seat(&node, true).is_ok());
        assert!(flow.pools(Level::LeaderElection).unwrap().seat(&alice, true).is_ok());
        drop(held);
        assert!(workload.seat(&alice, true).is_ok());
    }

    /// an attack with bodies that never arrive must not take the seats.
    #[tokio::test(start_paused = true)]
    async fn a_request_whose_body_does_not_arrive_holds_no_seat() {
        let flow = Flow::new(10_000);
        let mallory = user("mallory");
        let started = tokio::time::Instant::now();
        let deadline = Deadline::of("create", &Default::default(), started).unwrap();
        let request =
            || PendingRequest { user: &mallory, verb: "create", deadline: Some(deadline) };
        let never = || {
            http_body_util::StreamBody::new(futures::stream::pending::<
                std::result::Result<http_body::Frame<Bytes>, std::convert::Infallible>,
            >())
        };
        let mut waiting: Vec<_> = (0..BODIES.1)
            .map(|_| Box::pin(flow.admit(Level::Workload, request(), never())))
            .collect();
        for one in &mut waiting {
            assert!(futures::poll!(one).is_pending());
        }
        let more = flow.admit(Level::Workload, request(), never()).await;
        assert!(matches!(more, Err(ApiError::Overloaded)));
        let whole = http_body_util::Full::new(Bytes::from_static(b"{}"));
        let alice = user("alice");
        let granted =
            flow.admit(Level::Workload, PendingRequest { user: &alice, ..request() }, whole).await;
        assert_eq!(granted.unwrap().body, "{}");
        let workload = flow.pools(Level::Workload).unwrap();
        assert_eq!(all(|| workload.seat(&mallory, true)).len(), WORKLOAD_WRITE.1);
        for one in waiting {
            assert!(matches!(one.await, Err(ApiError::Timeout { .. })));
        }
        assert!(workload.arriving(&mallory).is_ok());
    }

    #[test]
    fn watches_of_one_user_never_use_up_the_connections() {
        for connections in [768, 4_000, 10_000, 100_000] {
            let flow = Flow::new(connections);
            let workload = flow.pools(Level::Workload).unwrap();
            let held = all(|| workload.long_running(&user("mallory"), "watch"));
            assert!(held.len() <= connections / 4, "{connections}: {}", held.len());
            assert!(workload.long_running(&user("alice"), "watch").is_ok());
            let system = flow.pools(Level::System).unwrap();
            assert!(
                (0..20_000).all(|_| system.long_running(&user("system:node:n1"), "watch").is_ok())
            );
        }
    }
}
