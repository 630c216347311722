//! Measures the Service proxy: from a change of an EndpointSlice in the API until the kernel has the rules. Needs root.
//!
//!     cargo run --release -p traffic --example proxy_load
//!
//! The API server, the proxy and the writer share this process and its cores. The rules are written in a network
//! namespace of their own. docs/BENCHMARKS.md explains the figures.

use client::{Client, ObjectKey};
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use network::{Ranges, ServiceRules, Services, ServicesConfig};
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;
use testbed::TestServer;
use tokio::sync::watch;
use tokio::time::Instant;
use traffic::Watched;
use traffic::services::{self, Forgotten, PacketRules, UdpPort};

const NODE: &str = "n1";
const SIZES: [u32; 3] = [100, 1000, 5000];
const ENDPOINTS: u32 = 10;
const CHANGES: u32 = 1000;
/// Fewer changes are made at one size if they take longer than this.
const LIMIT: Duration = Duration::from_secs(8);

/// What the kernel has been told so far.
#[derive(Default)]
struct Committed {
    transactions: u64,
    elements: usize,
    /// The end of the last transaction, and how long it took.
    last: Option<(Instant, Duration)>,
}

/// The kernel's rules, which report every transaction.
struct Observed {
    rules: Services,
    committed: watch::Sender<Committed>,
}

impl PacketRules for Observed {
    fn replace_all(&mut self, services: HashMap<Arc<str>, ServiceRules>) -> network::Result<usize> {
        self.rules.replace_all(services)
    }

    fn apply(&mut self, changes: Vec<(Arc<str>, Option<ServiceRules>)>) -> network::Result<usize> {
        let began = Instant::now();
        let sent = self.rules.apply(changes)?;
        self.committed.send_modify(|committed| {
            committed.transactions += u64::from(sent > 0);
            committed.elements += sent;
            committed.last = Some((Instant::now(), began.elapsed()));
        });
        Ok(sent)
    }

    fn set_ranges(&mut self, ranges: Ranges) -> network::Result<()> {
        self.rules.set_ranges(ranges)
    }

    fn sweep(&mut self) -> network::Result<()> {
        self.rules.sweep()
    }

    fn needs_sweep(&self) -> bool {
        self.rules.needs_sweep()
    }

    fn verify(&mut self) -> network::Result<bool> {
        self.rules.verify()
    }

    fn forget_udp_clients(&mut self, ports: &[UdpPort]) -> Vec<Forgotten> {
        self.rules.forget_udp_clients(ports)
    }
}

#[tokio::main]
async fn main() {
    println!(
        "one endpoint of {ENDPOINTS} terminates or becomes ready: API request to committed rules"
    );
    println!(
        "Services      p50      p99      max   transaction p99   CPU/change   elements/change"
    );
    for services in SIZES {
        measure(services).await;
    }
}

async fn measure(count: u32) {
    let server = TestServer::start().await;
    let client = server.admin();
    let node = json!({ "metadata": { "name": NODE } });
    client.create::<Node>(&typed::from_value(node).unwrap()).await.unwrap();
    create_services(&client, count).await;
    let watched = Watched::start(&server.node(NODE));
    watched.synced().await;
    let (sender, mut committed) = watch::channel(Committed::default());
    let rules = Box::new(Observed { rules: open(&watched), committed: sender });
    let config = services::Config { node_name: NODE.into(), pod_ranges: Vec::new(), delay: None };
    let proxy = services::start(watched, rules, config);
    proxy.synced().await;

    let (mut delays, mut transactions) = (Vec::new(), Vec::new());
    let (began, cpu) = (Instant::now(), cpu_time());
    for change in 0..CHANGES {
        if began.elapsed() > LIMIT {
            break;
        }
        let number = change / 2 * 7919 % count;
        let key = ObjectKey::new("default", &format!("svc-{number}-1"));
        let patch = json!({ "endpoints": endpoints(number, change % 2 == 0) });
        let before = committed.borrow_and_update().transactions;
        let start = Instant::now();
        client.patch_merge::<EndpointSlice>(&key, &patch).await.unwrap();
        let now = committed.wait_for(|committed| committed.transactions > before).await.unwrap();
        let (at, took) = now.last.unwrap();
        delays.push(at.saturating_duration_since(start));
        transactions.push(took);
    }
    let done = delays.len() as u32;
    let cpu = (cpu_time() - cpu) / done;
    let elements = committed.borrow().elements as f64 / f64::from(done);
    delays.sort();
    transactions.sort();
    let at = |all: &[Duration], percent: usize| all[(all.len() * percent / 100).min(all.len() - 1)];
    println!(
        "{count:>8} {:>8.2?} {:>8.2?} {:>8.2?} {:>17.2?} {cpu:>12.2?} {elements:>17.1}",
        at(&delays, 50),
        at(&delays, 99),
        at(&delays, 100),
        at(&transactions, 99),
    );
    drop(proxy);
    server.stop().await;
}

/// The rules in a new network namespace, which exists as long as they are open.
fn open(watched: &Watched) -> Services {
    let config = ServicesConfig {
        table: "measured".into(),
        service_ranges: watched.service_ranges(),
        pod_ranges: Vec::new(),
        gateways: Vec::new(),
    };
    let opened = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("run it as root");
        Services::open(&config).expect("the tables")
    });
    opened.join().unwrap()
}

async fn create_services(client: &Client, count: u32) {
    let services = (0..count).map(|number| -> Service {
        let metadata = json!({ "namespace": "default", "name": format!("svc-{number}") });
        let spec = json!({ "ports": [{ "name": "http", "port": 80 }] });
        typed::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
    });
    client.create_all(services).await.unwrap();
    let slices = (0..count).map(|number| -> EndpointSlice {
        let slice = json!({
            "metadata": { "namespace": "default", "name": format!("svc-{number}-1"),
                "labels": { "kubernetes.io/service-name": format!("svc-{number}") } },
            "addressType": "IPv4", "endpoints": endpoints(number, false),
            "ports": [{ "name": "http", "port": 8080, "protocol": "TCP" }],
        });
        typed::from_value(slice).unwrap()
    });
    client.create_all(slices).await.unwrap();
}

/// The endpoints of a Service, of which the first terminates or not.
fn endpoints(service: u32, first_terminates: bool) -> Vec<Value> {
    let endpoint = |number: u32| {
        let address = Ipv4Addr::from(0x0a4d_0000 + service * 16 + number);
        let ready = number > 0 || !first_terminates;
        json!({ "addresses": [address.to_string()], "nodeName": "other",
            "conditions": { "ready": ready, "serving": true, "terminating": !ready } })
    };
    (0..ENDPOINTS).map(endpoint).collect()
}

/// CPU time of this process, in user space and in the kernel.
fn cpu_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("the process's usage");
    let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Duration::from_micros(micros.try_into().unwrap_or_default())
}
