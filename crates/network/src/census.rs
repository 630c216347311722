//! Lists the open TCP connections of a pod: peer, age, and whether they are idle.
//!
//!     pod's namespace   sock_diag   state, queues, time since data was sent and received
//!     node's namespace  conntrack   when the connection began, and which end opened it
//!
//! The kernel sees bytes, not requests: while a server computes a slow answer, its connection is idle.
//! Not here: what a termination does with the result (`lifecycle`, `node`).

mod sock_diag;
mod sources;

use crate::namespace::Namespace;
use crate::{Error, Result};
use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

pub(crate) use sources::take;

/// A census has at most this many connections in detail: those that were used most recently.
pub const CONNECTIONS_MAX: usize = 1000;
/// For [`Census::summary`]: data within this time makes a connection active.
pub const ACTIVE_WITHIN: Duration = Duration::from_millis(500);

/// A TCP connection of a pod, as seen from the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    pub local: SocketAddr,
    /// As the pod sees it: for a connection that the pod opened to a Service, this is the Service's address.
    pub peer: SocketAddr,
    pub state: State,
    pub opened_by: OpenedBy,
    /// `None` if it is unknown: the node did not track the connection, or not from its first packet on.
    pub age: Option<Duration>,
    /// `None` if no process of the pod can use the connection: it is not open yet, or the process has closed it.
    pub traffic: Option<Traffic>,
}

/// TCP states of connections that are open or half closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// A client has asked for the connection and has not confirmed the answer.
    SynReceived,
    Established,
    /// The pod has closed its side; the peer has not acknowledged all of it.
    FinWait1,
    /// The pod has closed its side, the peer has not.
    FinWait2,
    /// The peer has closed its side, the pod has not.
    CloseWait,
    /// Both sides are closed, the pod's last.
    LastAck,
    /// Both sides closed at the same time.
    Closing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OpenedBy {
    /// The pod accepted the connection.
    Peer,
    Pod,
    /// The pod does not listen on the port (any more), and the node does not track the connection.
    Unknown,
}

/// The data of a connection. All numbers of bytes are without the end of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Since the connection was opened, if nothing was sent. The kernel's counter starts again after 49 days.
    pub since_sent: Duration,
    /// Like `since_sent`.
    pub since_received: Duration,
    /// Bytes that have arrived and that no process of the pod has read.
    pub unread: u32,
    /// Bytes that a process has written and the kernel has not sent yet.
    pub unsent: u32,
    /// Bytes that were sent and that the peer has not acknowledged.
    pub unacknowledged: u32,
    pub bytes_sent: u64,
    pub bytes_received: u64,
}

/// The connections of a pod at one moment.
///
/// ```no_run
/// # use std::time::Duration;
/// async fn is_drained(pods: &network::Pods) -> network::Result<bool> {
///     let Some(census) = pods.census("6f2c1d").await? else { return Ok(true) };
///     println!("{census}"); // 12 connections with 3 peers: 2 active, 10 idle for 4.1 s or longer
///     for connection in census.connections() {
///         println!("{} idle for {:?}", connection.peer, connection.idle_for());
///     }
///     Ok(census.active_within(Duration::from_millis(500)) == 0 || census.established() <= 2)
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Census {
    /// The most recently used one first, at most [`CONNECTIONS_MAX`].
    connections: Vec<Connection>,
    total: usize,
    established: usize,
}

/// The connections of the pod in the network namespace that `netns` refers to, such as `/proc/17/ns/net`. The calling
/// thread must be in the node's network namespace.
///
/// `None` if the namespace does not exist any more, or if it is the node's own: connections of a pod with host network
/// cannot be told from those of the node.
pub async fn of_namespace(netns: &Path) -> Result<Option<Census>> {
    let (node, netns) = (Namespace::current()?, netns.to_owned());
    run_blocking(move || match Namespace::open(&netns)? {
        Some(pod) if !pod.is_same(&node)? => take(&node, &pod).map(Some),
        Some(_) | None => Ok(None),
    })
    .await
}

pub(crate) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    clock::run_blocking(work).await.map_err(|error| Error::Thread(error.to_string()))?
}

impl Connection {
    /// How long no data was sent or received. Zero while data waits to be read, sent or acknowledged, and while the
    /// connection is being opened. [`Duration::MAX`] if the pod's process has closed the connection and the peer has
    /// everything that was sent.
    pub fn idle_for(&self) -> Duration {
        match (&self.traffic, self.state) {
            (Some(traffic), _) if traffic.in_flight() > 0 => Duration::ZERO,
            (Some(traffic), _) => traffic.since_sent.min(traffic.since_received),
            (None, State::FinWait2) => Duration::MAX,
            (None, _) => Duration::ZERO,
        }
    }

    /// Whether both ends are in this pod.
    fn is_internal(&self) -> bool {
        self.peer.ip().is_loopback() || self.peer.ip() == self.local.ip()
    }
}

impl Traffic {
    /// Bytes on their way, in either direction.
    fn in_flight(&self) -> u64 {
        [self.unread, self.unsent, self.unacknowledged].map(u64::from).iter().sum()
    }

    /// The age of a connection that never sent or never received data: the kernel then measures from its beginning.
    fn since_opened(&self) -> Option<Duration> {
        match (self.bytes_sent, self.bytes_received) {
            (0, _) => Some(self.since_sent),
            (_, 0) => Some(self.since_received),
            _ => None,
        }
    }
}

impl Census {
    /// The most recently used connections first, at most [`CONNECTIONS_MAX`].
    pub fn connections(&self) -> &[Connection] {
        &self.connections
    }

    /// How many connections there are in any state, also those without details.
    pub fn total(&self) -> usize {
        self.total
    }

    /// How many connections are established, also those without details.
    pub fn established(&self) -> usize {
        self.established
    }

    /// How many connections, of any state, have been idle for `limit` or longer: all that [`Census::active_within`]
    /// does not count.
    pub fn idle_longer_than(&self, limit: Duration) -> usize {
        self.total - self.active_within(limit)
    }

    /// How many connections, of any state, have data on its way or had some less than `limit` ago. More than
    /// [`CONNECTIONS_MAX`] are reported as that many.
    pub fn active_within(&self, limit: Duration) -> usize {
        self.connections.iter().take_while(|connection| connection.idle_for() < limit).count()
    }

    /// Without the connections that the pod opened itself. Those whose opener is unknown stay.
    pub fn accepted(&self) -> Census {
        let (opened, connections): (Vec<_>, Vec<_>) =
            self.connections.iter().cloned().partition(|it| it.opened_by == OpenedBy::Pod);
        let established = opened.iter().filter(|it| it.state == State::Established).count();
        Census {
            connections,
            total: self.total - opened.len(),
            established: self.established - established,
        }
    }

    /// How many addresses the connections lead to. A lower limit if there are connections without details.
    pub fn peers(&self) -> usize {
        let peers: BTreeSet<IpAddr> = self.connections.iter().map(|it| it.peer.ip()).collect();
        peers.len()
    }

    /// One line for people: `12 connections with 3 peers: 2 active, 10 idle for 4.1 s or longer`.
    pub fn summary(&self) -> String {
        if self.total == 0 {
            return "no connections".to_owned();
        }
        let at_least = |uncertain: bool| if uncertain { "at least " } else { "" };
        let partial = self.total > self.connections.len();
        let active = self.active_within(ACTIVE_WITHIN);
        let mut parts = Vec::new();
        if active > 0 {
            let all = active == self.connections.len();
            parts.push(format!("{}{active} active", at_least(partial && all)));
        }
        // The connections are sorted: the first one after the active ones is the one used most recently.
        if let Some(shortest) = self.connections.get(active).map(Connection::idle_for) {
            let idle = self.total - active;
            parts.push(match shortest < Duration::MAX {
                true => format!("{idle} idle for {:.1} s or longer", shortest.as_secs_f64()),
                false => format!("{idle} idle"),
            });
        }
        let total = counted(self.total, "connection");
        let peers = counted(self.peers(), "peer");
        format!("{total} with {}{peers}: {}", at_least(partial), parts.join(", "))
    }

    fn add(&mut self, connection: Connection) {
        self.total += 1;
        self.established += usize::from(connection.state == State::Established);
        self.connections.push(connection);
        if self.connections.len() >= 2 * CONNECTIONS_MAX {
            self.keep_most_recent();
        }
    }

    fn keep_most_recent(&mut self) {
        self.connections.sort_by_key(|it| (it.idle_for(), it.peer, it.local));
        self.connections.truncate(CONNECTIONS_MAX);
    }
}

impl FromIterator<Connection> for Census {
    fn from_iter<T: IntoIterator<Item = Connection>>(connections: T) -> Census {
        let mut census = Census::default();
        connections.into_iter().for_each(|connection| census.add(connection));
        census.keep_most_recent();
        census
    }
}

impl fmt::Display for Census {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.summary())
    }
}

impl fmt::Display for State {
    /// The names of the TCP standard, in lower case.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::SynReceived => "syn-received",
            State::Established => "established",
            State::FinWait1 => "fin-wait-1",
            State::FinWait2 => "fin-wait-2",
            State::CloseWait => "close-wait",
            State::LastAck => "last-ack",
            State::Closing => "closing",
        })
    }
}

fn counted(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests;
