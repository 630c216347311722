//! Tables of what counts as idle, of sums and of summaries.

use super::*;

fn connection(state: State, traffic: Option<Traffic>) -> Connection {
    Connection {
        local: "10.244.0.2:80".parse().unwrap(),
        peer: "10.244.0.3:4000".parse().unwrap(),
        state,
        opened_by: OpenedBy::Peer,
        age: None,
        traffic,
    }
}

/// Sent data `sent` ms ago and received some `received` ms ago.
fn quiet(sent: u64, received: u64) -> Traffic {
    Traffic {
        since_sent: Duration::from_millis(sent),
        since_received: Duration::from_millis(received),
        ..Traffic::default()
    }
}

fn idle(millis: u64) -> Connection {
    connection(State::Established, Some(quiet(millis, millis + 5)))
}

fn from(mut connection: Connection, peer: &str) -> Connection {
    connection.peer = peer.parse().unwrap();
    connection
}

#[test]
fn a_connection_is_idle_since_its_last_data_in_either_direction() {
    use State::{CloseWait, Established, FinWait1, FinWait2, LastAck, SynReceived};
    let table = [
        ("nothing for 3 s", Established, Some(quiet(3000, 3000)), 3000),
        ("sent later than received", Established, Some(quiet(10, 3000)), 10),
        ("received later than sent", Established, Some(quiet(3000, 20)), 20),
        ("unread", Established, Some(Traffic { unread: 1, ..quiet(3000, 3000) }), 0),
        ("unsent", Established, Some(Traffic { unsent: 1, ..quiet(3000, 3000) }), 0),
        (
            "unacknowledged",
            Established,
            Some(Traffic { unacknowledged: 1, ..quiet(3000, 3000) }),
            0,
        ),
        ("the client has sent all", CloseWait, Some(quiet(3000, 40)), 40),
        ("an answer is on its way", FinWait1, Some(Traffic { unsent: 9, ..quiet(30, 30) }), 0),
        ("the client does not close", FinWait2, Some(quiet(3000, 3000)), 3000),
        ("the last acknowledgement is missing", LastAck, Some(quiet(50, 60)), 50),
        ("being opened", SynReceived, None, 0),
    ];
    for (name, state, traffic, expected) in table {
        let found = connection(state, traffic).idle_for();
        assert_eq!(found, Duration::from_millis(expected), "{name}");
    }
    assert_eq!(connection(FinWait2, None).idle_for(), Duration::MAX);
}

#[test]
fn connections_inside_the_pod_are_recognized() {
    let table = [
        ("10.244.0.2:80", "10.244.0.3:999", false),
        ("10.244.0.2:80", "10.244.0.2:999", true),
        ("127.0.0.1:80", "127.0.0.1:999", true),
        ("127.0.0.1:80", "127.0.0.2:999", true),
        ("[::1]:80", "[::1]:999", true),
        ("[fd00::2]:80", "[fd00::2]:999", true),
        ("[fd00::2]:80", "[fd00::3]:999", false),
    ];
    for (local, peer, internal) in table {
        let local = local.parse().unwrap();
        let found = from(Connection { local, ..idle(0) }, peer).is_internal();
        assert_eq!(found, internal, "{local} {peer}");
    }
}

#[test]
fn a_census_counts_and_sorts_connections() {
    let census: Census = [
        idle(700),
        connection(State::FinWait2, None),
        from(idle(100), "10.244.0.4:1"),
        connection(State::CloseWait, Some(quiet(9000, 9000))),
        idle(500),
    ]
    .into_iter()
    .collect();
    assert_eq!((census.total(), census.established(), census.peers()), (5, 3, 2));
    let times: Vec<_> = census.connections().iter().map(Connection::idle_for).collect();
    let expected = [100, 500, 700, 9000].map(Duration::from_millis);
    assert_eq!((&times[..4], times[4]), (&expected[..], Duration::MAX));
    for (limit, active) in [(0, 0), (100, 0), (101, 1), (500, 1), (501, 2), (60_000, 4)] {
        let limit = Duration::from_millis(limit);
        assert_eq!(census.active_within(limit), active, "{limit:?}");
        assert_eq!(census.idle_longer_than(limit), 5 - active, "{limit:?}");
    }
}

#[test]
fn accepted_connections_are_those_that_the_pod_did_not_open() {
    let opened = |opened_by, connection: Connection| Connection { opened_by, ..connection };
    let all: Census = [
        opened(OpenedBy::Pod, idle(1)),
        opened(OpenedBy::Pod, connection(State::CloseWait, Some(quiet(2, 2)))),
        opened(OpenedBy::Unknown, idle(3)),
        idle(4),
        connection(State::FinWait2, None),
    ]
    .into_iter()
    .collect();
    let accepted = all.accepted();
    assert_eq!((accepted.total(), accepted.established()), (3, 2));
    assert_eq!(accepted.connections(), &all.connections()[2..]);
}

#[test]
fn a_summary_is_one_sentence() {
    let other = |millis| from(idle(millis), "10.244.0.9:7");
    let closed = || connection(State::FinWait2, None);
    let table = [
        (vec![], "no connections"),
        (vec![idle(0)], "1 connection with 1 peer: 1 active"),
        (vec![idle(4140)], "1 connection with 1 peer: 1 idle for 4.1 s or longer"),
        (
            vec![idle(4140), idle(9000), other(499), other(500)],
            "4 connections with 2 peers: 1 active, 3 idle for 0.5 s or longer",
        ),
        (vec![closed()], "1 connection with 1 peer: 1 idle"),
        (vec![closed(), idle(0)], "2 connections with 1 peer: 1 active, 1 idle"),
    ];
    for (connections, expected) in table {
        let census: Census = connections.into_iter().collect();
        assert_eq!(census.to_string(), expected);
    }
}

#[test]
fn the_most_recently_used_of_too_many_connections_are_kept() {
    // The recently used ones come last and in between.
    let many = 7 * CONNECTIONS_MAX as u64;
    let census: Census = (0..many).map(|i| idle(1000 + (many - i) % 5000)).collect();
    assert_eq!((census.total(), census.established()), (many as usize, many as usize));
    assert_eq!(census.connections().len(), CONNECTIONS_MAX);
    let slowest = census.connections().last().unwrap().idle_for();
    assert!(slowest <= Duration::from_millis(1500), "{slowest:?}");
    assert_eq!(census.active_within(Duration::from_millis(1000)), 0);
    assert_eq!(census.idle_longer_than(Duration::from_millis(1000)), many as usize);
    let expected = "7000 connections with at least 1 peer: 7000 idle for 1.0 s or longer";
    assert_eq!(census.summary(), expected);

    let busy: Census = (0..many).map(|_| idle(0)).collect();
    let expected = "7000 connections with at least 1 peer: at least 1000 active";
    assert_eq!(busy.summary(), expected);
}
