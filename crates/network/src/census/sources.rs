//! Takes a census: reads the pod's sockets, and looks their connections up in the node's connection tracking.
//!
//! A pod has no connection tracking of its own. The node has it, because every packet of a pod passes through the node.
//! Not here: the protocol of the kernel (`sock_diag`, `conntrack`).

use super::sock_diag::{self, TcpInfo, TcpSocket, tcp_sockets};
use super::{Census, Connection, OpenedBy, State, Traffic};
use crate::conntrack::{self, Direction};
use crate::namespace::Namespace;
use crate::netlink::Socket;
use crate::{Error, Result};
use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::time::Duration;

/// The times that two parts of the kernel measure differ by at most this much.
const TOLERANCE: Duration = Duration::from_millis(100);

/// Blocks for as long as the kernel needs to list the sockets, which is milliseconds.
pub(crate) fn take(node: &Namespace, pod: &Namespace) -> Result<Census> {
    let (mut tracking, mut sockets) = open_sockets(node, pod)?;
    let mut listening = BTreeSet::new();
    let mut census = Census::default();
    tcp_sockets(&mut sockets, |socket| {
        if socket.state == sock_diag::LISTEN {
            listening.insert(socket.local.port());
        } else if let Some(connection) = connection(&socket)
            && !connection.is_internal()
        {
            census.add(connection);
        }
    })?;
    census.keep_most_recent();
    let tracked = Tracked::find(&mut tracking, &census.connections);
    for connection in &mut census.connections {
        let entry = tracked.entry(connection);
        let tracked_age = entry.and_then(|entry| entry.age);
        connection.age = age(tracked_age, connection.traffic.as_ref());
        connection.opened_by = match entry {
            // First the port, because a tracked connection that lost its first packets may have the wrong direction.
            _ if listening.contains(&connection.local.port()) => OpenedBy::Peer,
            Some(entry) => entry.opened_by,
            None => OpenedBy::Unknown,
        };
    }
    Ok(census)
}

/// A netfilter socket of the node and a sock_diag socket of the pod. A socket belongs to the namespace in which it was
/// opened, so only the thread that opens them changes its namespace, and that thread ends here.
fn open_sockets(node: &Namespace, pod: &Namespace) -> Result<(Socket, Socket)> {
    let open = || {
        node.enter()?;
        let tracking = Socket::netfilter()?;
        pod.enter()?;
        Ok((tracking, Socket::sock_diag()?))
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("census".into()).spawn_scoped(scope, open);
        let thread = thread.map_err(|error| Error::Thread(error.to_string()))?;
        thread.join().map_err(|_| Error::Thread("the thread panicked".into()))?
    })
}

/// `None` for states that are not open. Age and opener follow later.
fn connection(socket: &TcpSocket) -> Option<Connection> {
    let state = match socket.state {
        sock_diag::SYN_RECV => State::SynReceived,
        sock_diag::ESTABLISHED => State::Established,
        sock_diag::FIN_WAIT1 => State::FinWait1,
        sock_diag::FIN_WAIT2 => State::FinWait2,
        sock_diag::CLOSE_WAIT => State::CloseWait,
        sock_diag::LAST_ACK => State::LastAck,
        sock_diag::CLOSING => State::Closing,
        _ => return None,
    };
    Some(Connection {
        local: socket.local,
        peer: socket.peer,
        state,
        opened_by: OpenedBy::Unknown,
        age: None,
        traffic: socket.info.as_ref().map(|info| traffic(state, socket, info)),
    })
}

/// The kernel counts the end of a stream as one more byte of the queues; this function does not.
fn traffic(state: State, socket: &TcpSocket, info: &TcpInfo) -> Traffic {
    let peer_closed = matches!(state, State::CloseWait | State::LastAck | State::Closing);
    // The peer has not acknowledged the end yet.
    let end_in_queue = matches!(state, State::FinWait1 | State::LastAck | State::Closing);
    let send_queue = socket.send_queue.saturating_sub(end_in_queue.into());
    let unsent = info.not_sent.min(send_queue);
    Traffic {
        since_sent: info.since_sent,
        since_received: info.since_received,
        unread: socket.receive_queue.saturating_sub(peer_closed.into()),
        unsent,
        unacknowledged: send_queue - unsent,
        bytes_sent: info.bytes_sent,
        bytes_received: info.bytes_received.saturating_sub(peer_closed.into()),
    }
}

/// The age of a connection, if it is certain. `tracked` is the age of its entry in connection tracking.
fn age(tracked: Option<Duration>, traffic: Option<&Traffic>) -> Option<Duration> {
    let Some(traffic) = traffic else { return tracked };
    // An entry younger than the last data belongs to the middle of the connection: tracking began late, or the entry
    // expired while the connection was idle.
    let last_data = traffic.since_sent.max(traffic.since_received);
    traffic.since_opened().or(tracked.filter(|tracked| *tracked + TOLERANCE >= last_data))
}

/// What the node's connection tracking knows about connections, by local address and peer of the pod's socket.
struct Tracked(HashMap<(SocketAddr, SocketAddr), Entry>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    opened_by: OpenedBy,
    age: Option<Duration>,
}

impl Tracked {
    /// Without entries if the node tracks nothing.
    fn find(socket: &mut Socket, connections: &[Connection]) -> Tracked {
        let directions: Vec<Direction> = connections.iter().map(sent_by_pod).collect();
        let found = conntrack::find_tcp(socket, &directions).unwrap_or_default();
        Tracked::new(&found, clock::now().as_nanosecond())
    }

    fn new(found: &[conntrack::Connection], now: i128) -> Tracked {
        let mut entries = HashMap::new();
        for connection in found {
            // Negative if the node's clock was set back.
            let age =
                connection.started.and_then(|start| u64::try_from(now - i128::from(start)).ok());
            let age = age.map(Duration::from_nanos);
            let ends = [(connection.original, OpenedBy::Pod), (connection.reply, OpenedBy::Peer)];
            for (direction, opened_by) in ends {
                let source = SocketAddr::new(direction.source, direction.source_port);
                let destination =
                    SocketAddr::new(direction.destination, direction.destination_port);
                entries.insert((source, destination), Entry { opened_by, age });
            }
        }
        Tracked(entries)
    }

    fn entry(&self, connection: &Connection) -> Option<Entry> {
        self.0.get(&(connection.local, connection.peer)).copied()
    }
}

/// The direction of the packets that the pod sends, as they leave the pod.
fn sent_by_pod(connection: &Connection) -> Direction {
    Direction {
        source: connection.local.ip(),
        destination: connection.peer.ip(),
        source_port: connection.local.port(),
        destination_port: connection.peer.port(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn socket(state: u8, receive_queue: u32, send_queue: u32, not_sent: u32) -> TcpSocket {
        let info = TcpInfo {
            since_sent: SECOND,
            since_received: 2 * SECOND,
            not_sent,
            bytes_sent: 7,
            bytes_received: 9,
        };
        let (local, peer) = ("10.0.0.1:80".parse().unwrap(), "10.0.0.2:999".parse().unwrap());
        TcpSocket { state, local, peer, receive_queue, send_queue, info: Some(info) }
    }

    #[test]
    fn the_end_of_a_stream_is_not_a_byte_of_a_queue() {
        // State, queues and unsent bytes as the kernel reports them; unread, unsent, unacknowledged, received bytes.
        let table = [
            (sock_diag::ESTABLISHED, (0, 0, 0), (0, 0, 0, 9)),
            (sock_diag::ESTABLISHED, (5, 30, 10), (5, 10, 20, 9)),
            (sock_diag::CLOSE_WAIT, (0, 0, 0), (0, 0, 0, 8)), // The process has read the end.
            (sock_diag::CLOSE_WAIT, (1, 0, 0), (0, 0, 0, 8)),
            (sock_diag::CLOSE_WAIT, (6, 3, 0), (5, 0, 3, 8)),
            (sock_diag::FIN_WAIT1, (0, 1, 0), (0, 0, 0, 9)),
            (sock_diag::FIN_WAIT1, (0, 31, 11), (0, 11, 19, 9)),
            (sock_diag::FIN_WAIT2, (4, 0, 0), (4, 0, 0, 9)),
            (sock_diag::LAST_ACK, (1, 1, 1), (0, 0, 0, 8)),
            (sock_diag::CLOSING, (1, 1, 0), (0, 0, 0, 8)),
        ];
        for (state, (receive, send, not_sent), expected) in table {
            let found =
                connection(&socket(state, receive, send, not_sent)).unwrap().traffic.unwrap();
            let found = (found.unread, found.unsent, found.unacknowledged, found.bytes_received);
            assert_eq!(found, expected, "state {state}, queues {receive} and {send}");
        }
    }

    #[test]
    fn only_open_and_half_closed_states_are_connections() {
        let names: Vec<String> = (0..=20)
            .filter_map(|state| connection(&socket(state, 0, 0, 0)))
            .map(|connection| connection.state.to_string())
            .collect();
        let expected = "established syn-received fin-wait-1 fin-wait-2 close-wait last-ack closing";
        assert_eq!(names.join(" "), expected);
    }

    #[test]
    fn the_age_is_unknown_unless_it_is_certain() {
        let traffic = |sent: u64, received: u64| Traffic {
            since_sent: 3 * SECOND,
            since_received: 5 * SECOND,
            bytes_sent: sent,
            bytes_received: received,
            ..Traffic::default()
        };
        let table = [
            ("tracked", Some(60), Some(traffic(1, 1)), Some(60)),
            ("not tracked", None, Some(traffic(1, 1)), None),
            ("tracked since its last data", Some(5), Some(traffic(1, 1)), Some(5)),
            ("tracked too late", Some(4), Some(traffic(1, 1)), None),
            ("never sent", None, Some(traffic(0, 1)), Some(3)),
            ("never received", None, Some(traffic(1, 0)), Some(5)),
            ("never sent, tracked too late", Some(1), Some(traffic(0, 1)), Some(3)),
            ("being opened", Some(1), None, Some(1)),
            ("being opened, not tracked", None, None, None),
        ];
        for (name, tracked, traffic, expected) in table {
            let found = age(tracked.map(Duration::from_secs), traffic.as_ref());
            assert_eq!(found, expected.map(Duration::from_secs), "{name}");
        }
    }

    #[test]
    fn translated_connections_are_found_by_the_addresses_that_the_pod_sees() {
        let direction = |source: &str, destination: &str| {
            let (source, destination): (SocketAddr, SocketAddr) =
                (source.parse().unwrap(), destination.parse().unwrap());
            Direction {
                source: source.ip(),
                destination: destination.ip(),
                source_port: source.port(),
                destination_port: destination.port(),
            }
        };
        // A pod calls a Service; another pod answers.
        let tracked = Tracked::new(
            &[conntrack::Connection {
                protocol: crate::Protocol::Tcp,
                original: direction("10.0.0.1:4000", "10.96.0.1:443"),
                reply: direction("10.0.0.2:6443", "10.0.0.1:4000"),
                started: Some(1_000_000_000),
            }],
            3_500_000_000,
        );
        let find = |local: &str, peer: &str| {
            let connection = connection(&TcpSocket {
                local: local.parse().unwrap(),
                peer: peer.parse().unwrap(),
                ..socket(sock_diag::ESTABLISHED, 0, 0, 0)
            });
            tracked.entry(&connection.unwrap())
        };
        let age = Some(Duration::from_millis(2500));
        let client = Entry { opened_by: OpenedBy::Pod, age };
        let server = Entry { opened_by: OpenedBy::Peer, age };
        assert_eq!(find("10.0.0.1:4000", "10.96.0.1:443"), Some(client));
        assert_eq!(find("10.0.0.2:6443", "10.0.0.1:4000"), Some(server));
        assert_eq!(find("10.0.0.1:4000", "10.0.0.2:6443"), None);
    }

    #[test]
    fn a_start_in_the_future_is_no_age() {
        let direction = Direction {
            source: [10, 0, 0, 2].into(),
            destination: [10, 0, 0, 1].into(),
            source_port: 999,
            destination_port: 80,
        };
        let reply = sent_by_pod(&connection(&socket(sock_diag::ESTABLISHED, 0, 0, 0)).unwrap());
        let started = Some(2_000);
        let protocol = crate::Protocol::Tcp;
        let found = conntrack::Connection { protocol, original: direction, reply, started };
        let ages: Vec<_> =
            Tracked::new(&[found], 1_000).0.into_values().map(|entry| entry.age).collect();
        assert_eq!(ages, [None, None]);
    }
}
