//! The open connections of pods, compared with what `ss` prints in the same network namespace.

use crate::isolated::{
    POD_RANGE, cidr, config, host_port, inside, ip, isolated, namespace, open, outside, run,
};
use network::Protocol::Tcp;
use network::census::{Census, Connection, OpenedBy, State, of_namespace};
use network::{Attachment, Pods, PodsConfig};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use tokio::time::{Duration, Instant};

/// Whatever a test waits for takes milliseconds. After this time the test fails.
const PATIENCE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(10);
/// The kernel measures in ticks of up to 10 ms.
const TICKS: Duration = Duration::from_millis(30);

const SERVER: &str = "10.77.3.2:80";
const CLIENT: &str = "10.77.3.3:9000";

/// Two pods. The first one listens on port 80, the second one on port 9000.
struct Network {
    pods: Pods,
    server: Attachment,
    client: Attachment,
    on_80: TcpListener,
    on_9000: TcpListener,
}

impl Network {
    async fn start(directory: &Path) -> Network {
        let cidrs = vec![cidr(POD_RANGE), cidr("fd77:3::/64")];
        let pods = Pods::open(PodsConfig { cidrs, ..config(directory) }).await.unwrap();
        let server = pods.attach("server", &[host_port(Tcp, None, 8080, 80)]).await.unwrap();
        let client = pods.attach("client", &[]).await.unwrap();
        let on_80 = inside(&server.netns, || TcpListener::bind("[::]:80").unwrap());
        let on_9000 = inside(&client.netns, || TcpListener::bind("[::]:9000").unwrap());
        Network { pods, server, client, on_80, on_9000 }
    }

    /// A connection from the second pod to the first: its two ends, first that of the server.
    fn connect(&self) -> (TcpStream, TcpStream) {
        pair(&self.on_80, Some(&self.client.netns), SERVER)
    }

    async fn census(&self, key: &str) -> Census {
        self.pods.census(key).await.unwrap().unwrap()
    }

    /// The connection in the census of the first pod whose end is this stream.
    async fn find(&self, stream: &TcpStream) -> Connection {
        find(&self.census("server").await, stream)
    }

    /// Waits until the connection fulfils a condition.
    async fn wait(
        &self,
        end: &TcpStream,
        what: &str,
        done: impl Fn(&Connection) -> bool,
    ) -> Connection {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = self.find(end).await;
            if done(&found) {
                return found;
            }
            assert!(Instant::now() < deadline, "waited in vain: {what}: {found:?}");
            tokio::time::sleep(POLL).await;
        }
    }
}

fn find(census: &Census, stream: &TcpStream) -> Connection {
    let (local, peer) = ends(stream);
    let mut all = census.connections().iter();
    all.find(|it| (it.local, it.peer) == (local, peer)).cloned().unwrap_or_else(|| {
        panic!("no connection from {local} to {peer}: {:#?}", census.connections())
    })
}

fn ends(stream: &TcpStream) -> (SocketAddr, SocketAddr) {
    (canonical(stream.local_addr().unwrap()), canonical(stream.peer_addr().unwrap()))
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// A connection to `listener`: the accepted end, and the end of the client.
fn pair(listener: &TcpListener, from: Option<&Path>, to: &str) -> (TcpStream, TcpStream) {
    let to: SocketAddr = to.parse().unwrap();
    let connect = move || TcpStream::connect_timeout(&to, PATIENCE).unwrap();
    let client = match from {
        Some(netns) => inside(netns, connect),
        None => connect(),
    };
    (listener.accept().unwrap().0, client)
}

/// Writes until the socket's buffers are full.
fn fill(stream: &mut TcpStream) {
    stream.set_nonblocking(true).unwrap();
    loop {
        match stream.write(&[b'x'; 65536]) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
}

/// One line of `ss`.
#[derive(Debug)]
struct SsLine {
    key: Key,
    receive_queue: u32,
    send_queue: u32,
    since_sent: Duration,
    since_received: Duration,
}

type Key = (String, SocketAddr, SocketAddr);

/// What `ss` prints in a namespace, without connections inside the pod.
fn ss(netns: &Path) -> Vec<SsLine> {
    let text = inside(netns, || run("ss -HtaniO"));
    let mut lines: Vec<SsLine> = text.lines().filter_map(ss_line).collect();
    lines.sort_by(|a, b| a.key.cmp(&b.key));
    lines
}

fn ss_line(line: &str) -> Option<SsLine> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let state = match words[0] {
        "ESTAB" => "established",
        "SYN-RECV" => "syn-received",
        "FIN-WAIT-1" => "fin-wait-1",
        "FIN-WAIT-2" => "fin-wait-2",
        "CLOSE-WAIT" => "close-wait",
        "LAST-ACK" => "last-ack",
        "CLOSING" => "closing",
        "LISTEN" | "TIME-WAIT" => return None,
        other => panic!("{other}: {line}"),
    };
    let address = |word: &str| canonical(word.parse().unwrap());
    let (local, peer) = (address(words[3]), address(words[4]));
    // ss leaves out zeros.
    let millis = |name: &str| {
        let value = words.iter().find_map(|word| word.strip_prefix(name));
        Duration::from_millis(value.map_or(0, |value| value.parse().unwrap()))
    };
    let line = SsLine {
        key: (state.to_string(), local, peer),
        receive_queue: words[1].parse().unwrap(),
        send_queue: words[2].parse().unwrap(),
        since_sent: millis("lastsnd:"),
        since_received: millis("lastrcv:"),
    };
    (!peer.ip().is_loopback() && peer.ip() != local.ip()).then_some(line)
}

fn keys(lines: &[SsLine]) -> Vec<Key> {
    lines.iter().map(|line| line.key.clone()).collect()
}

fn census_keys(census: &Census) -> Vec<Key> {
    let key = |it: &Connection| (it.state.to_string(), it.local, it.peer);
    let mut keys: Vec<Key> = census.connections().iter().map(key).collect();
    keys.sort();
    keys
}

#[test]
fn the_census_matches_ss() {
    isolated(|directory| async move {
        let outside = outside(&directory);
        let network = Network::start(&directory).await;
        let (server, client) = (&network.server.netns, &network.client.netns);
        let idle = [network.connect(), network.connect(), network.connect()];
        let (mut ipv6, _ipv6_client) = pair(&network.on_80, Some(client), "[fd77:3::2]:80");
        let from_node = pair(&network.on_80, None, SERVER);
        let from_outside = pair(&network.on_80, Some(&outside), "192.0.2.1:8080");
        let (_called, outbound) = pair(&network.on_9000, Some(server), CLIENT);
        let _internal = [
            pair(&network.on_80, Some(server), "127.0.0.1:80"),
            pair(&network.on_80, Some(server), "[::1]:80"),
            pair(&network.on_80, Some(server), SERVER),
        ];
        let (unread, mut writer) = network.connect();
        writer.write_all(b"hello").unwrap();
        let (half_closed, sender) = network.connect();
        sender.shutdown(Shutdown::Write).unwrap();
        let (closed, _receiver) = network.connect();
        closed.shutdown(Shutdown::Write).unwrap();
        let (mut dropped, _slow_reader) = network.connect();
        let dropped_key = ("fin-wait-1".to_owned(), ends(&dropped).0, ends(&dropped).1);
        fill(&mut dropped);
        drop(dropped); // The kernel goes on sending.
        ipv6.write_all(b"hello").unwrap();
        // A client whose last packet of the handshake is lost.
        inside(client, || {
            run(
                "nft 'add table ip lost; add chain ip lost out { type filter hook output priority 0; }; \
                 add rule ip lost out tcp dport 81 tcp flags & (syn | ack) == ack drop'",
            );
        });
        let _listener = inside(server, || TcpListener::bind("[::]:81").unwrap());
        let _opening = inside(client, || TcpStream::connect("10.77.3.2:81").unwrap());
        network.wait(&half_closed, "end", |it| it.state == State::CloseWait).await;
        network.wait(&closed, "acknowledgement", |it| it.state == State::FinWait2).await;
        network.wait(&unread, "five bytes", |it| it.traffic.unwrap().unread == 5).await;
        network.wait(&ipv6, "acknowledgement", |it| it.idle_for() > Duration::ZERO).await;

        let before = ss(server);
        let census = network.census("server").await;
        let after = ss(server);
        assert_eq!(census_keys(&census), keys(&before));
        assert_eq!(keys(&before), keys(&after));
        assert_eq!((census.total(), census.established(), census.peers()), (12, 8, 4));
        for (before, after) in before.iter().zip(&after) {
            let found = census
                .connections()
                .iter()
                .find(|it| (it.state.to_string(), it.local, it.peer) == before.key);
            let found = found.unwrap();
            assert_eq!(found.traffic.is_none(), before.key.0 == "syn-received");
            let Some(traffic) = found.traffic.filter(|_| found.state != State::FinWait1) else {
                continue; // The kernel may be sending just now.
            };
            let sent = before.since_sent..=after.since_sent;
            let received = before.since_received..=after.since_received;
            assert!(sent.contains(&traffic.since_sent), "{found:?} {before:?} {after:?}");
            assert!(received.contains(&traffic.since_received), "{found:?} {before:?} {after:?}");
            if found.state == State::Established {
                assert_eq!(traffic.unread, before.receive_queue);
                assert_eq!(traffic.unsent + traffic.unacknowledged, before.send_queue);
            }
        }

        // Addresses are those that the pod sees, and the opener is right for each.
        let opened_by = |end: &TcpStream| find(&census, end).opened_by;
        for (end, _) in idle.iter().chain([&from_node, &from_outside]) {
            assert_eq!(opened_by(end), OpenedBy::Peer);
        }
        assert_eq!(find(&census, &from_outside.0).peer.ip(), ip("192.0.2.2"));
        assert_eq!(find(&census, &ipv6).peer.ip(), ip("fd77:3::3"));
        assert_eq!(opened_by(&outbound), OpenedBy::Pod);
        let data = find(&census, &ipv6).traffic.unwrap();
        assert_eq!((data.bytes_sent, data.bytes_received), (5, 0));
        let half = find(&census, &half_closed).traffic.unwrap();
        assert_eq!((half.unread, half.bytes_received), (0, 0));
        let cut = census
            .connections()
            .iter()
            .find(|it| (it.state.to_string(), it.local, it.peer) == dropped_key);
        assert!(cut.unwrap().traffic.unwrap().unsent > 0, "{cut:?}");
        assert_eq!(cut.unwrap().idle_for(), Duration::ZERO);
        // The other pod sees the same connections from the other end.
        assert_eq!(census_keys(&network.census("client").await), keys(&ss(client)));
    });
}

#[test]
fn idle_times_grow_until_data_moves() {
    isolated(|directory| async move {
        let network = Network::start(&directory).await;
        let (mut server, mut client) = network.connect();
        let first = network.find(&server).await.idle_for();
        let long = Duration::from_millis(600);
        let waited = Instant::now();
        network.wait(&server, "an idle connection", |it| it.idle_for() >= long).await;
        assert!(waited.elapsed() + first + TICKS >= long);
        let census = network.census("server").await;
        assert_eq!((census.active_within(long), census.idle_longer_than(long)), (0, 1));
        assert!(
            census.summary().starts_with("1 connection with 1 peer: 1 idle for 0."),
            "{census}"
        );

        for from_client in [true, false] {
            let (writer, reader) = match from_client {
                true => (&mut client, &mut server),
                false => (&mut server, &mut client),
            };
            pass_on(writer, reader);
            let now = network
                .wait(&server, "acknowledgement", |it| it.traffic.unwrap().unacknowledged == 0)
                .await;
            assert!(now.idle_for() < long, "{now:?}");
            network.wait(&server, "idle again", |it| it.idle_for() >= long).await;
        }
    });
}

#[test]
fn data_in_flight_makes_a_silent_connection_active() {
    isolated(|directory| async move {
        let network = Network::start(&directory).await;
        let quiet = Duration::from_millis(100);
        let silent = |it: &Connection| {
            let traffic = it.traffic.unwrap();
            traffic.since_sent > quiet && traffic.since_received > quiet
        };
        // The server does not read the client's data.
        let (mut server, mut client) = network.connect();
        client.write_all(b"hello").unwrap();
        let found = network.wait(&server, "silence", silent).await;
        assert_eq!((found.traffic.unwrap().unread, found.idle_for()), (5, Duration::ZERO));
        server.read_exact(&mut [0; 4]).unwrap();
        assert_eq!(network.find(&server).await.traffic.unwrap().unread, 1);
        server.read_exact(&mut [0]).unwrap();
        assert!(network.find(&server).await.idle_for() > quiet);

        // The client does not read, so the kernel cannot send everything.
        fill(&mut server);
        let found = network.find(&server).await;
        assert!(found.traffic.unwrap().unsent > 0, "{found:?}");
        assert_eq!(found.idle_for(), Duration::ZERO);
        assert!(find(&network.census("client").await, &client).traffic.unwrap().unread > 0);

        // The client's link is down, so nothing is acknowledged.
        let (mut server, _client) = network.connect();
        run("ip link set lf0p3 down");
        server.write_all(b"hello").unwrap();
        let found =
            network.wait(&server, "sent", |it| it.traffic.unwrap().unacknowledged == 5).await;
        assert_eq!((found.traffic.unwrap().bytes_sent, found.idle_for()), (5, Duration::ZERO));
    });
}

/// Sends a byte in each direction, so that the kernel's times are not those of the beginning any more.
fn exchange((server, client): &mut (TcpStream, TcpStream)) {
    pass_on(server, client);
    pass_on(client, server);
}

fn pass_on(from: &mut TcpStream, to: &mut TcpStream) {
    from.write_all(b"x").unwrap();
    to.read_exact(&mut [0]).unwrap();
}

#[test]
fn the_age_is_the_time_since_the_connection_was_opened() {
    isolated(|directory| async move {
        let network = Network::start(&directory).await;
        let start = Instant::now();
        let mut used = network.connect();
        let unused = network.connect();
        let (_callee, caller) = pair(&network.on_9000, Some(&network.server.netns), CLIENT);
        run("echo 0 > /proc/sys/net/netfilter/nf_conntrack_timestamp");
        let mut without_start = network.connect();
        let unused_without_start = network.connect();
        let opened = Instant::now();
        exchange(&mut used);
        exchange(&mut without_start);
        let long = Duration::from_millis(400);
        network.wait(&unused.0, "age", |it| it.age.is_some_and(|age| age > long)).await;
        exchange(&mut used);

        let youngest = opened.elapsed();
        let census = network.census("server").await;
        let oldest = start.elapsed();
        let age = |end: &TcpStream| find(&census, end).age;
        for end in [&used.0, &unused.0, &caller, &unused_without_start.0] {
            let age = age(end).unwrap();
            assert!(
                age + TICKS >= youngest && age <= oldest + TICKS,
                "{youngest:?} {age:?} {oldest:?}"
            );
        }
        // The kernel did not store when the connection began.
        assert_eq!(age(&without_start.0), None);
    });
}

#[test]
fn ages_are_unknown_where_the_kernels_settings_are_read_only() {
    isolated(|directory| async move {
        run("echo 1 > /proc/sys/net/ipv4/ip_forward");
        run("mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys");
        let pods = open(&directory).await;
        let pod = pods.attach("a", &[]).await.unwrap();
        let listener = inside(&pod.netns, || TcpListener::bind("0.0.0.0:80").unwrap());
        let mut connection = pair(&listener, None, SERVER);
        exchange(&mut connection);
        let census = pods.census("a").await.unwrap().unwrap();
        assert_eq!((census.established(), find(&census, &connection.0).age), (1, None));
        assert!(!network::conntrack::record_start_times());
    });
}

#[test]
fn the_opener_is_known_when_the_listener_is_closed() {
    isolated(|directory| async move {
        let outside = outside(&directory);
        let network = Network::start(&directory).await;
        let server = Some(network.server.netns.as_path());
        let (accepted, _client) = network.connect();
        let (_callee, opened) = pair(&network.on_9000, server, CLIENT);
        // The node translates addresses of these: a client of a host port, and the pod that is its own client.
        let translated = pair(&network.on_80, Some(&outside), "192.0.2.1:8080");
        let own = pair(&network.on_80, server, "192.0.2.1:8080");
        drop(network.on_80);
        let census = network.pods.census("server").await.unwrap().unwrap();
        for end in [&accepted, &translated.0, &own.0] {
            assert_eq!(find(&census, end).opened_by, OpenedBy::Peer, "{end:?}");
        }
        for end in [&opened, &own.1] {
            assert_eq!(find(&census, end).opened_by, OpenedBy::Pod, "{end:?}");
        }
        assert_eq!((census.total(), census.accepted().total()), (5, 3));
    });
}

#[test]
fn a_namespace_of_another_runtime_is_read_by_its_path() {
    isolated(|directory| async move {
        // Packets between these two do not pass through the node, so it does not track them.
        let (a, b) = (namespace(&directory, "a"), namespace(&directory, "b"));
        run(&format!(
            "ip link add a0 netns {} type veth peer name b0 netns {}",
            a.display(),
            b.display()
        ));
        inside(&a, || run("ip address add 192.0.2.1/24 dev a0; ip link set a0 up"));
        inside(&b, || run("ip address add 192.0.2.2/24 dev b0; ip link set b0 up"));
        let listener = inside(&a, || TcpListener::bind("192.0.2.1:80").unwrap());
        let mut connection = pair(&listener, Some(&b), "192.0.2.1:80");
        // A process in the namespace, as a runtime would report it. It ends when its input does.
        let mut process = inside(&a, || {
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap()
        });
        let by_process = format!("/proc/{}/ns/net", process.id());
        let census = of_namespace(Path::new(&by_process)).await.unwrap().unwrap();
        assert_eq!(census_keys(&census), keys(&ss(&a)));
        let found = find(&census, &connection.0);
        assert_eq!(found.opened_by, OpenedBy::Peer);
        assert!(found.age.is_some_and(|age| age < PATIENCE), "{found:?}");
        exchange(&mut connection);
        let census = of_namespace(&b).await.unwrap().unwrap();
        let found = find(&census, &connection.1);
        assert_eq!((found.opened_by, found.age), (OpenedBy::Unknown, None));

        process.stdin.take();
        process.wait().unwrap();
        assert_eq!(of_namespace(Path::new(&by_process)).await.unwrap(), None);
        // Pods with host network are in the node's namespace.
        assert_eq!(of_namespace(Path::new("/proc/thread-self/ns/net")).await.unwrap(), None);
        let file = directory.join("file");
        std::fs::write(&file, "").unwrap();
        let error = of_namespace(&file).await.unwrap_err().to_string();
        assert!(error.starts_with("cannot enter a network namespace"), "{error}");
    });
}

#[test]
fn a_pod_without_attachment_has_no_census() {
    isolated(|directory| async move {
        let pods = open(&directory).await;
        assert_eq!(pods.census("never").await.unwrap(), None);
        pods.attach("a", &[]).await.unwrap();
        let census = pods.census("a").await.unwrap().unwrap();
        assert_eq!((census.total(), census.summary().as_str()), (0, "no connections"));
        pods.detach("a").await.unwrap();
        assert_eq!(pods.census("a").await.unwrap(), None);
        // Also in a namespace that belongs to other users.
        let users = network::UserRange { first: 1 << 16, count: 1 << 16 };
        let pod = pods.attach_for("b", &[], Some(users)).await.unwrap();
        let listener = inside(&pod.netns, || TcpListener::bind("0.0.0.0:80").unwrap());
        let to = format!("{}:80", pod.addresses[0]);
        let _connection = pair(&listener, None, &to);
        assert_eq!(pods.census("b").await.unwrap().unwrap().established(), 1);
    });
}
