//! Measures how long a census of a pod's connections takes on this kernel, in network namespaces of its own. Needs root
//! and 11,000 file descriptors.
//!
//!     cargo run --release -p network --example census
//!
//! Prints the time for pods with 0, 1,000 and 10,000 connections, and that of `ss` for comparison. A debug build on two busy
//! cores takes 2 ms, 40 ms and 110 ms.

use network::{Pods, PodsConfig};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::fs::File;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Stdio};
use tokio::time::Instant;

const ROUNDS: usize = 21;
const PORT: u16 = 80;
const CONNECTIONS: [usize; 3] = [0, 1000, 10_000];
/// The server does not accept its connections, so all of them must fit into its queue.
const BACKLOG: i32 = 16_384;

fn main() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().to_path_buf();
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("the limit of open files");
    setrlimit(Resource::RLIMIT_NOFILE, most, most).expect("a higher limit of open files");
    let measured = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).expect("run it as root");
        let none: Option<&str> = None;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
            .expect("private mounts");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(measure(&path));
    });
    measured.join().expect("the measurement");
}

async fn measure(directory: &Path) {
    let pods = Pods::open(PodsConfig {
        state_dir: directory.join("state"),
        netns_dir: directory.join("netns"),
        link: "lf0".into(),
        cidrs: vec!["10.77.3.0/24".parse().expect("a range")],
        cluster_cidrs: Vec::new(),
        table: "pods".into(),
        mtu: 1500,
    });
    let pods = pods.await.expect("a pod network");
    let client = pods.attach("client", &[]).await.expect("a pod");
    let server = pods.attach("server", &[]).await.expect("a pod");
    let _listener = inside(&server.netns, listen);
    let to = SocketAddr::new(server.addresses[0], PORT);
    let mut open: Vec<TcpStream> = Vec::new();
    println!("connections  established  known ages  census p50  census max    ss p50");
    for wanted in CONNECTIONS {
        let more = wanted - open.len();
        open.extend(inside(&client.netns, move || {
            (0..more).map(|_| TcpStream::connect(to).expect("a connection")).collect::<Vec<_>>()
        }));
        let (mut times, mut ss_times) = (Vec::new(), Vec::new());
        let mut counts = (0, 0);
        for _ in 0..ROUNDS {
            let start = Instant::now();
            let census = pods.census("server").await.expect("a census").expect("a pod");
            times.push(start.elapsed());
            let ages = census.connections().iter().filter(|it| it.age.is_some()).count();
            counts = (census.established(), ages);
            ss_times.push(inside(&server.netns, time_ss));
        }
        times.sort();
        ss_times.sort();
        let (established, ages) = counts;
        println!(
            "{wanted:>11} {established:>12} {ages:>11} {:>11.2?} {:>11.2?} {:>9.2?}",
            times[ROUNDS / 2],
            times[ROUNDS - 1],
            ss_times[ROUNDS / 2]
        );
    }
    drop(open);
    pods.remove().await.expect("the pod network is removed");
}

#[allow(unsafe_code, reason = "the standard library and nix limit the length of the queue")]
fn listen() -> TcpListener {
    std::fs::write("/proc/sys/net/core/somaxconn", BACKLOG.to_string()).expect("a longer queue");
    let listener = TcpListener::bind(("0.0.0.0", PORT)).expect("a server");
    // SAFETY: the arguments are numbers, and the descriptor is open.
    let result = unsafe { libc::listen(listener.as_raw_fd(), BACKLOG) };
    assert_eq!(result, 0, "listen");
    listener
}

fn time_ss() -> std::time::Duration {
    let start = Instant::now();
    let ss = Command::new("ss").arg("-Htani").stdout(Stdio::null()).status().expect("ss");
    assert!(ss.success());
    start.elapsed()
}

fn inside<T: Send + 'static>(netns: &Path, work: impl FnOnce() -> T + Send + 'static) -> T {
    let file = File::open(netns).expect("a network namespace");
    let thread = std::thread::spawn(move || {
        setns(file, CloneFlags::CLONE_NEWNET).expect("setns");
        work()
    });
    thread.join().expect("a thread")
}
