//! An etcd of three members. The traffic between them passes through proxies in this process, which can disconnect one
//! member from the others. Clients still reach it.
//!
//!     member i ──▶ proxy of member j ──▶ member j
//!
//! All members use the same address of a member, so the proxy finds the caller by the process that has the other end of
//! the connection.

use crate::harness::{Background, signal};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

pub(crate) const MEMBERS: usize = 3;

const START_MAX: Duration = Duration::from_secs(60);
const EXIT_MAX: Duration = Duration::from_secs(30);
/// Shorter than the defaults, so that a disconnected leader is replaced during a short fault.
const HEARTBEAT_MS: &str = "50";
const ELECTION_MS: &str = "400";

pub(crate) struct Members {
    _dir: tempfile::TempDir,
    members: Vec<Member>,
    links: Arc<Links>,
}

struct Member {
    command: Vec<String>,
    process: Option<Background>,
    client: SocketAddr,
}

/// The processes of the members, and which one is disconnected.
struct Links {
    processes: Mutex<[u32; MEMBERS]>,
    cut_off: watch::Sender<Option<usize>>,
}

async fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.expect("there is a free port")
}

/// A free port, which the member binds a moment later.
async fn free() -> SocketAddr {
    listener().await.local_addr().expect("it has an address")
}

impl Members {
    pub(crate) async fn start() -> Members {
        let dir = tempfile::tempdir().expect("a directory");
        let (cut_off, _) = watch::channel(None);
        let links = Arc::new(Links { processes: Mutex::new([0; MEMBERS]), cut_off });
        let (mut shown, mut peers) = (Vec::new(), Vec::new());
        for member in 0..MEMBERS {
            let (proxy, peer) = (listener().await, free().await);
            shown.push(proxy.local_addr().expect("it has an address"));
            peers.push(peer);
            tokio::spawn(serve(proxy, member, peer, links.clone()));
        }
        let cluster: Vec<String> =
            shown.iter().enumerate().map(|(at, proxy)| format!("m{at}=http://{proxy}")).collect();
        let mut members = Vec::new();
        for at in 0..MEMBERS {
            let client = free().await;
            let data: PathBuf = dir.path().join(at.to_string());
            let command = vec![
                format!("--name=m{at}"),
                format!("--data-dir={}", data.display()),
                format!("--listen-client-urls=http://{client}"),
                format!("--advertise-client-urls=http://{client}"),
                format!("--listen-peer-urls=http://{}", peers[at]),
                format!("--initial-advertise-peer-urls=http://{}", shown[at]),
                format!("--initial-cluster={}", cluster.join(",")),
                format!("--heartbeat-interval={HEARTBEAT_MS}"),
                format!("--election-timeout={ELECTION_MS}"),
            ];
            members.push(Member { command, process: None, client });
        }
        let mut all = Members { _dir: dir, members, links };
        (0..MEMBERS).for_each(|at| all.spawn(at));
        (0..MEMBERS).for_each(|at| all.serves(at));
        all
    }

    /// The store URL `etcd://HOST:PORT,…` of these members.
    pub(crate) fn store(&self, which: &[usize]) -> String {
        let hosts: Vec<String> =
            which.iter().map(|at| self.members[*at].client.to_string()).collect();
        format!("etcd://{}", hosts.join(","))
    }

    fn spawn(&mut self, at: usize) {
        let member = &mut self.members[at];
        let mut command = Command::new("sh");
        // etcd logs to stderr; the line that says that it is ready must be read from stdout.
        command.args(["-c", "exec etcd \"$@\" 2>&1", "etcd"]).args(&member.command);
        command.env("ETCD_UNSUPPORTED_ARCH", std::env::consts::ARCH.replace("aarch64", "arm64"));
        let process = Background::spawn(&mut command);
        self.links.processes.lock().expect("no thread panics while it holds the lock")[at] =
            process.id();
        member.process = Some(process);
    }

    fn serves(&self, at: usize) {
        let process = self.members[at].process.as_ref().expect("it was started");
        tokio::task::block_in_place(|| process.line("ready to serve client requests", START_MAX));
    }

    fn signal(&self, at: usize, name: &str) {
        let process = self.members[at].process.as_ref().expect("it was started");
        signal(process.id(), name);
    }

    pub(crate) fn kill(&mut self, at: usize) {
        self.signal(at, "KILL");
        let mut process = self.members[at].process.take().expect("it was started");
        tokio::task::block_in_place(|| process.exit(EXIT_MAX));
    }

    pub(crate) fn start_again(&mut self, at: usize) {
        self.spawn(at);
        self.serves(at);
    }

    pub(crate) fn pause(&self, at: usize) {
        self.signal(at, "STOP");
    }

    pub(crate) fn go_on(&self, at: usize) {
        self.signal(at, "CONT");
    }

    /// Disconnects a member from the others; None: reconnects all.
    pub(crate) fn cut_off(&self, member: Option<usize>) {
        self.links.cut_off.send_replace(member);
    }
}

async fn serve(listener: TcpListener, to: usize, target: SocketAddr, links: Arc<Links>) {
    while let Ok((incoming, caller)) = listener.accept().await {
        let from = links.member_at(caller.port());
        tokio::spawn(carry(incoming, target, from, to, links.cut_off.subscribe()));
    }
}

async fn carry(
    mut incoming: TcpStream,
    target: SocketAddr,
    from: Option<usize>,
    to: usize,
    mut cut_off: watch::Receiver<Option<usize>>,
) {
    // The process of the caller may have just exited; then it belongs to no member.
    let cut = |member: &Option<usize>| {
        member.is_some_and(|member| from.is_none_or(|from| from == member) || to == member)
    };
    if cut(&cut_off.borrow()) {
        return;
    }
    let Ok(mut outgoing) = TcpStream::connect(target).await else { return };
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut incoming, &mut outgoing) => {}
        _ = cut_off.wait_for(cut) => {}
    }
}

impl Links {
    /// The member whose process has this local port.
    fn member_at(&self, port: u16) -> Option<usize> {
        let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
        let local = format!("0100007F:{port:04X}");
        let inode = table.lines().find_map(|line| {
            let mut words = line.split_whitespace();
            (words.nth(1)? == local).then(|| words.nth(7)).flatten()
        })?;
        let socket = format!("socket:[{inode}]");
        let processes = *self.processes.lock().expect("no thread panics while it holds the lock");
        processes.iter().position(|process| {
            let open = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten();
            let mut open = open.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
            open.any(|to| to.to_str() == Some(&socket))
        })
    }
}
