//! Measures the packet rules of Services on this kernel, in network namespaces of its own. Needs root.
//!
//!     cargo run --release -p network --example service_rules
//!
//! Prints what one change of an endpoint costs with 100, 1,000 and 5,000 Services of ten endpoints, how much memory a
//! Service takes in this process, and how many connections per second a client opens directly and through a Service.
//! docs/BENCHMARKS.md explains the figures.

use network::{
    Cidr, Frontend, Pods, PodsConfig, Protocol, ServiceEntry, ServiceRules, Services,
    ServicesConfig,
};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::Linger;
use nix::sys::time::TimeValLike;
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const CHANGES: usize = 1000;
const ENDPOINTS: u32 = 10;
/// Connections of one turn. Turns are short, so that other work on the machine hits both kinds alike.
const CONNECTIONS: usize = 100;
/// Turns of each kind.
const TURNS: usize = 120;
/// Ports of the server.
const DIRECT: u16 = 8080;
const BEHIND_SERVICE: u16 = 8081;

fn main() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().to_path_buf();
    let measured = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).expect("run it as root");
        let none: Option<&str> = None;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
            .expect("private mounts");
        run("ip link set lo up");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(measure(&path));
    });
    measured.join().expect("the measurement");
}

async fn measure(directory: &Path) {
    println!("one endpoint leaves or joins a Service of {ENDPOINTS} endpoints");
    println!(
        "Services   first sync        p50        p99      CPU elements  memory per Service (resident)"
    );
    for count in [100, 1000, 5000] {
        changes(count);
    }
    connections(directory).await;
}

fn config() -> ServicesConfig {
    ServicesConfig {
        table: "measured".into(),
        service_ranges: vec![cidr("10.96.0.0/12")],
        pod_ranges: vec![cidr("10.77.0.0/16")],
        gateways: Vec::new(),
    }
}

fn rules(number: u32, endpoints: u32) -> ServiceRules {
    let address = IpAddr::from(Ipv4Addr::from(0x0a60_0001 + number));
    let endpoint = |n| SocketAddr::from((Ipv4Addr::from(0x0a4d_0000 + number * 16 + n), 8080));
    let entry = ServiceEntry {
        endpoints: (0..endpoints).map(endpoint).collect(),
        ..ServiceEntry::default()
    };
    let frontend = Frontend { address, protocol: Protocol::Tcp, port: 80 };
    ServiceRules {
        entries: [(frontend, entry)].into(),
        cluster_ips: [address].into(),
        ..ServiceRules::default()
    }
}

fn changes(count: u32) {
    let (before, resident_before) = (in_use(), resident());
    let mut services = Services::open(&config()).expect("the tables");
    let name = |number: u32| -> Arc<str> { format!("default/service-{number}").into() };
    let all: HashMap<Arc<str>, ServiceRules> =
        (0..count).map(|number| (name(number), rules(number, ENDPOINTS))).collect();
    let start = Instant::now();
    services.replace_all(all).expect("all Services");
    let first = start.elapsed();
    let memory = in_use().saturating_sub(before) / count as usize;
    let resident = resident().saturating_sub(resident_before) / count as usize;
    let (mut times, mut elements) = (Vec::new(), 0);
    let cpu = cpu_time();
    for change in 0..CHANGES as u32 {
        let number = change / 2 * 7919 % count;
        let endpoints = ENDPOINTS - u32::from(change % 2 == 0);
        let start = Instant::now();
        elements +=
            services.apply(vec![(name(number), Some(rules(number, endpoints)))]).expect("a change");
        times.push(start.elapsed());
    }
    let cpu = (cpu_time() - cpu) / CHANGES as u32;
    times.sort();
    println!(
        "{count:>8} {first:>12.1?} {:>10.1?} {:>10.1?} {cpu:>8.1?} {:>8.1} {memory:>11} ({resident}) bytes",
        times[CHANGES / 2],
        times[CHANGES * 99 / 100],
        elements as f64 / CHANGES as f64,
    );
    services.remove().expect("the tables are removed");
}

/// New connections per second, directly and through a Service, in turns.
async fn connections(directory: &Path) {
    let pods = Pods::open(PodsConfig {
        state_dir: directory.join("state"),
        netns_dir: directory.join("netns"),
        link: "lf0".into(),
        cidrs: vec![cidr("10.77.3.0/24")],
        cluster_cidrs: Vec::new(),
        table: "pods".into(),
        mtu: 1500,
    });
    let pods = pods.await.expect("a pod network");
    let client = pods.attach("client", &[]).await.expect("a pod");
    let server = pods.attach("server", &[]).await.expect("a pod");
    // Two ports: otherwise the kernel would have to avoid the source ports of the direct connections, which it still
    // remembers, when it translates the others.
    for port in [DIRECT, BEHIND_SERVICE] {
        let listener = inside(&server.netns, move || TcpListener::bind(("0.0.0.0", port)));
        let listener = listener.expect("a server");
        std::thread::spawn(move || listener.incoming().for_each(drop));
    }
    let mut services = Services::open(&config()).expect("the tables");
    let mut all: HashMap<Arc<str>, ServiceRules> =
        (1..1000).map(|n| (format!("d/{n}").into(), rules(n, ENDPOINTS))).collect();
    let mut one = rules(0, 0);
    let direct = SocketAddr::new(server.addresses[0], DIRECT);
    let endpoint = SocketAddr::new(server.addresses[0], BEHIND_SERVICE);
    for entry in one.entries.values_mut() {
        entry.endpoints = [endpoint].into();
    }
    let through = one.entries.keys().next().map(|it| SocketAddr::new(it.address, it.port));
    all.insert("d/0".into(), one);
    services.replace_all(all).expect("all Services");
    let through = through.expect("an address");
    // One thread for all turns, because each thread starts with other caches on another core.
    let [direct, through] = inside(&client.netns, move || take_turns([direct, through]));
    let share = 100.0 * through / direct;
    println!(
        "new connections per second: {direct:.0} directly, {through:.0} through a Service ({share:.0} %)"
    );
}

/// The median rates of connections to two addresses. Every other pair of turns begins with the second address.
fn take_turns(to: [SocketAddr; 2]) -> [f64; 2] {
    let mut rates = [Vec::new(), Vec::new()];
    for to in to {
        connect_many(to); // To learn routes and neighbours.
    }
    for turn in 0..TURNS {
        for kind in if turn % 2 == 0 { [0, 1] } else { [1, 0] } {
            rates[kind].push(connect_many(to[kind]));
        }
    }
    rates.map(|mut rates| {
        rates.sort_by(f64::total_cmp);
        rates[TURNS / 2]
    })
}

/// Opens connections one after the other. Each is complete when the server has accepted and closed it: a client that
/// does not wait for this fills the server's queue, and then measures how long it takes to send a packet again (1 s).
fn connect_many(to: SocketAddr) -> f64 {
    let start = Instant::now();
    for _ in 0..CONNECTIONS {
        let mut stream =
            TcpStream::connect_timeout(&to, Duration::from_secs(3)).expect("a connection");
        let end = stream.read(&mut [0; 1]).expect("the end of the connection");
        assert_eq!(end, 0, "the server sends nothing");
        // A reset instead of an orderly end, so that no port stays in use.
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        setsockopt(&stream, Linger, &linger).expect("a socket option");
    }
    CONNECTIONS as f64 / start.elapsed().as_secs_f64()
}

fn cidr(text: &str) -> Cidr {
    text.parse().expect("a range")
}

fn run(line: &str) {
    let status = Command::new("sh").args(["-c", line]).status().expect("a shell");
    assert!(status.success(), "{line}");
}

fn inside<T: Send + 'static>(netns: &Path, work: impl FnOnce() -> T + Send + 'static) -> T {
    let file = File::open(netns).expect("a network namespace");
    let thread = std::thread::spawn(move || {
        setns(file, CloneFlags::CLONE_NEWNET).expect("setns");
        work()
    });
    thread.join().expect("a thread")
}

/// Memory that this process has allocated and not freed, in bytes.
#[allow(unsafe_code, reason = "a function of the C library without arguments")]
fn in_use() -> usize {
    // SAFETY: the function has no arguments and returns numbers.
    let info = unsafe { libc::mallinfo2() };
    info.uordblks + info.hblkhd
}

/// Resident memory of this process in bytes. It includes what the first transaction needed for a moment.
fn resident() -> usize {
    const PAGE: usize = 4096;
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.unwrap_or_default() * PAGE
}

/// CPU time of this process, in user space and in the kernel.
fn cpu_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("the process's usage");
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Duration::from_micros(micros.try_into().unwrap_or_default())
}
