//! Measures the packet rules of Services on this kernel, in network namespaces of its own. Needs root.
//!
//!     cargo run --release -p network --example service_rules
//!
//! Prints what one change of an endpoint costs with 100, 1,000 and 5,000 Services of ten endpoints, how much memory a
//! Service takes in this process, and how many connections per second a client opens directly and through a Service.

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
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const CHANGES: usize = 1000;
const ENDPOINTS: u32 = 10;
const CONNECTIONS: usize = 5000;
const ROUNDS: usize = 5;
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
    println!("Services   first sync    p50        p99      CPU    elements   memory per Service");
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
    let before = resident();
    let mut services = Services::open(&config()).expect("the tables");
    let name = |number: u32| -> Arc<str> { format!("default/service-{number}").into() };
    let all: HashMap<Arc<str>, ServiceRules> =
        (0..count).map(|number| (name(number), rules(number, ENDPOINTS))).collect();
    let start = Instant::now();
    services.replace_all(all).expect("all Services");
    let first = start.elapsed();
    let memory = resident().saturating_sub(before) / u64::from(count);
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
        "{count:>8} {first:>12.1?} {:>10.1?} {:>10.1?} {cpu:>8.1?} {:>8.1} {memory:>14} bytes",
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
    let mut rates = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (rates, to) in rates.iter_mut().zip([direct, through]) {
            rates.push(inside(&client.netns, move || connect_many(to)));
        }
    }
    let [direct, through] = rates.map(|mut rates| {
        rates.sort_by(f64::total_cmp);
        rates[ROUNDS / 2]
    });
    let share = 100.0 * through / direct;
    println!(
        "new connections per second: {direct:.0} directly, {through:.0} through a Service ({share:.0} %)"
    );
}

fn connect_many(to: SocketAddr) -> f64 {
    let start = Instant::now();
    for _ in 0..CONNECTIONS {
        let stream = TcpStream::connect_timeout(&to, Duration::from_secs(3)).expect("a connection");
        // A reset instead of an orderly end, so that no source port stays in use.
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

/// Resident memory of this process in bytes.
fn resident() -> u64 {
    const PAGE: u64 = 4096;
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or_default() * PAGE
}

/// CPU time of this process, in user space and in the kernel.
fn cpu_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("the process's usage");
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Duration::from_micros(micros.try_into().unwrap_or_default())
}
