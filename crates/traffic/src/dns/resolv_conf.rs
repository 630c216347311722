//! The node's resolvers, from its resolv.conf (NET-109). Reads the file again after it changed.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// How many servers are used.
const SERVERS_MAX: usize = 8;

/// How often to check whether the file has changed, at most.
const CHECK_PERIOD: Duration = Duration::from_secs(1);

/// How long a server that did not answer is asked only after the others.
const SUSPECT_TIME: Duration = Duration::from_secs(10);

/// A larger file is not a resolv.conf.
const FILE_MAX: u64 = 1 << 20;

/// The addresses of systemd-resolved. They are of use on this machine only, and it may forward to us.
const SYSTEMD: [&str; 2] = ["127.0.0.53", "127.0.0.54"];

/// Where to find servers, and which never to use.
#[derive(Debug, Clone)]
pub(crate) struct Sources {
    pub(crate) resolv_conf: PathBuf,
    /// Used instead if `resolv_conf` names systemd-resolved and this file exists.
    pub(crate) systemd_resolv_conf: PathBuf,
    pub(crate) port: u16,
    /// Where this server answers. A question sent there would come back.
    pub(crate) own: Vec<SocketAddr>,
}

pub(crate) struct Servers {
    sources: Sources,
    servers: Vec<Server>,
    /// State of the files when they were read.
    stamp: Option<[Stamp; 2]>,
    checked: Option<Instant>,
}

struct Server {
    address: SocketAddr,
    suspect_until: Option<Instant>,
}

/// Changes whenever a file is written or replaced. `None` if there is no such file.
type Stamp = Option<(SystemTime, u64)>;

impl Servers {
    pub(crate) fn new(sources: Sources) -> Servers {
        Servers { sources, servers: Vec::new(), stamp: None, checked: None }
    }

    /// The servers to ask, best first: in the order of the file, those that failed recently last.
    pub(crate) fn in_order(&mut self, now: Instant) -> Vec<SocketAddr> {
        let due = self.checked.is_none_or(|checked| now >= checked + CHECK_PERIOD);
        if due {
            self.checked = Some(now);
            self.refresh();
        }
        let mut order: Vec<&Server> = self.servers.iter().collect();
        order.sort_by_key(|server| server.suspect_until.is_some_and(|until| until > now));
        order.iter().map(|server| server.address).collect()
    }

    /// Records whether a server answered.
    pub(crate) fn answered(&mut self, address: SocketAddr, answered: bool, now: Instant) {
        for server in self.servers.iter_mut().filter(|server| server.address == address) {
            server.suspect_until = (!answered).then(|| now + SUSPECT_TIME);
        }
    }

    fn refresh(&mut self) {
        let Sources { resolv_conf, systemd_resolv_conf, .. } = &self.sources;
        let stamp = Some([stamp(resolv_conf), stamp(systemd_resolv_conf)]);
        if stamp == self.stamp {
            return;
        }
        self.stamp = stamp;
        let mut listed = nameservers(&read(resolv_conf));
        if listed.iter().any(|address| SYSTEMD.contains(&address.to_string().as_str())) {
            let behind = nameservers(&read(systemd_resolv_conf));
            if !behind.is_empty() {
                listed = behind;
            }
        }
        let usable = usable(&listed, &self.sources);
        tracing::info!(servers = ?usable, "DNS questions about other domains go to");
        self.servers =
            usable.into_iter().map(|address| Server { address, suspect_until: None }).collect();
    }
}

fn stamp(path: &Path) -> Stamp {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

/// The content of the file; empty if it cannot be read.
fn read(path: &Path) -> String {
    let size = std::fs::metadata(path).map(|metadata| metadata.len());
    if size.is_ok_and(|size| size > FILE_MAX) {
        tracing::warn!(path = %path.display(), "resolv.conf is too large");
        return String::new();
    }
    std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_else(
        |error| {
            tracing::debug!(path = %path.display(), %error, "cannot read resolv.conf");
            String::new()
        },
    )
}

/// The addresses of the `nameserver` lines, in order.
fn nameservers(text: &str) -> Vec<IpAddr> {
    let lines = text.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next() == Some("nameserver")).then(|| words.next())?
    });
    // An address with a zone (`fe80::1%eth0`) belongs to one link; such servers are skipped.
    lines.filter_map(|address| address.parse().ok()).collect()
}

fn usable(listed: &[IpAddr], sources: &Sources) -> Vec<SocketAddr> {
    let mut usable = Vec::new();
    for address in listed.iter().map(|address| SocketAddr::new(*address, sources.port)) {
        if is_own(address, &sources.own) {
            tracing::warn!(%address, "resolv.conf names this DNS server itself; ignored");
        } else if !usable.contains(&address) {
            usable.push(address);
        }
    }
    usable.truncate(SERVERS_MAX);
    usable
}

/// A server that listens on all addresses also answers at the loopback ones.
fn is_own(address: SocketAddr, own: &[SocketAddr]) -> bool {
    own.iter().any(|mine| {
        let same_address = mine.ip().to_canonical() == address.ip().to_canonical()
            || mine.ip().is_unspecified() && address.ip().is_loopback();
        mine.port() == address.port() && same_address || address.ip().is_unspecified()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(directory: &Path) -> Sources {
        Sources {
            resolv_conf: directory.join("resolv.conf"),
            systemd_resolv_conf: directory.join("systemd.conf"),
            port: 53,
            own: vec!["10.96.0.10:53".parse().unwrap(), "127.0.0.2:53".parse().unwrap()],
        }
    }

    fn ips(servers: &[SocketAddr]) -> Vec<String> {
        servers.iter().map(|server| server.ip().to_string()).collect()
    }

    #[test]
    fn net_109_nameserver_lines_accumulate_and_others_are_ignored() {
        let text = "# nameserver 1.1.1.1\n;nameserver 2.2.2.2\nsearch a b\nnameserver 10.0.0.1 \n\
                    \tnameserver\tfd00::1 # comment\nnameserver\nnameserver x\nnameserver fe80::1%eth0\n\
                    nameserver 10.0.0.2\noptions ndots:5\n";
        let found: Vec<String> = nameservers(text).iter().map(IpAddr::to_string).collect();
        assert_eq!(found, ["10.0.0.1", "fd00::1", "10.0.0.2"]);
    }

    #[tokio::test(start_paused = true)]
    async fn net_109_systemd_file_replaces_its_stub_and_changes_are_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let sources = sources(directory.path());
        let write = |path: &Path, text: &str| std::fs::write(path, text).unwrap();
        let (conf, systemd) = (sources.resolv_conf.clone(), sources.systemd_resolv_conf.clone());
        let mut servers = Servers::new(sources);
        let mut now = Instant::now();
        let mut order = |servers: &mut Servers| {
            now += CHECK_PERIOD;
            ips(&servers.in_order(now))
        };
        assert!(order(&mut servers).is_empty(), "there is no file yet");

        write(&conf, "nameserver 127.0.0.53\n");
        assert_eq!(order(&mut servers), ["127.0.0.53"], "there is no better file");
        write(&systemd, "nameserver 10.0.0.1\nnameserver 10.0.0.2\nnameserver 10.0.0.1\n");
        assert_eq!(order(&mut servers), ["10.0.0.1", "10.0.0.2"]);
        write(&conf, "nameserver 10.9.9.9\n");
        assert_eq!(order(&mut servers), ["10.9.9.9"]);
        write(&conf, "nameserver 10.96.0.10\nnameserver 127.0.0.2\nnameserver 0.0.0.0\n");
        assert!(order(&mut servers).is_empty(), "never forwards to itself");
        write(&conf, "nameserver 127.0.0.1\n");
        assert_eq!(order(&mut servers), ["127.0.0.1"], "another server on this machine");
    }

    #[tokio::test(start_paused = true)]
    async fn servers_that_did_not_answer_are_asked_last_for_a_while() {
        let directory = tempfile::tempdir().unwrap();
        let sources = sources(directory.path());
        std::fs::write(&sources.resolv_conf, "nameserver 10.0.0.1\nnameserver 10.0.0.2\n").unwrap();
        let mut servers = Servers::new(sources);
        let now = Instant::now();
        assert_eq!(ips(&servers.in_order(now)), ["10.0.0.1", "10.0.0.2"]);
        servers.answered("10.0.0.1:53".parse().unwrap(), false, now);
        assert_eq!(ips(&servers.in_order(now)), ["10.0.0.2", "10.0.0.1"]);
        assert_eq!(ips(&servers.in_order(now + SUSPECT_TIME)), ["10.0.0.1", "10.0.0.2"]);
    }
}
