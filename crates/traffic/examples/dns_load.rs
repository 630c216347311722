//! Measures the DNS server: answers per second and their delay, with many Services, while Services change.
//!
//!     cargo run --release -p traffic --example dns_load -- <services> <requests/s> <seconds>
//!
//! The API server, the DNS server and the clients share this process and its cores.

use client::{Client, ObjectKey};
use hickory_proto::op::{Message, MessageType, OpCode, Query};
use hickory_proto::rr::{Name, RecordType};
use k8s_openapi::api::core::v1::Service;
use serde_json::json;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;
use testbed::TestServer;
use traffic::Watched;
use traffic::dns::Config;

/// Threads that ask, each with its own socket.
const CLIENTS: u64 = 2;

const SECOND: i64 = 1_000_000_000;

/// What one client saw.
#[derive(Default)]
struct Measured {
    sent: u64,
    wrong: u64,
    delays: Vec<i64>,
}

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>().unwrap());
    let services = arguments.next().unwrap_or(5000);
    let rate = arguments.next().unwrap_or(20_000);
    let seconds = arguments.next().unwrap_or(10) as i64;

    let server = TestServer::start().await;
    let client = server.admin();
    let names = create_services(&client, services).await;
    let watched = Watched::start(&client);
    watched.synced().await;
    let listen = vec!["127.0.0.1:0".parse().unwrap()];
    let dns = traffic::dns::start(watched, Config { listen, ..Config::default() }).unwrap();
    let address = dns.addresses()[0];

    let changes = tokio::spawn(change_services(client));
    let names = Arc::new(names);
    let threads = (0..CLIENTS).map(|number| {
        let names = names.clone();
        std::thread::spawn(move || ask(address, &names, number, rate / CLIENTS, seconds))
    });
    let threads: Vec<_> = threads.collect();
    let measured = tokio::task::spawn_blocking(|| {
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<Measured>>()
    });
    let measured = measured.await.unwrap();
    changes.abort();
    report(services, seconds, measured);
    dns.stop().await;
}

/// Returns the requests for all names and the address that each must be answered with.
async fn create_services(client: &Client, count: u64) -> Vec<(Vec<u8>, [u8; 4])> {
    let service = |number: u64| -> Service {
        let metadata = json!({ "namespace": "default", "name": format!("svc-{number}") });
        let spec = json!({ "ports": [{ "name": "http", "port": 80 }] });
        typed::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
    };
    let created = client.create_all((0..count).map(service)).await.unwrap();
    let requests = created.iter().map(|service| {
        let name = service.metadata.name.as_ref().unwrap();
        let name = Name::from_ascii(format!("{name}.default.svc.cluster.local.")).unwrap();
        let mut message = Message::new(0, MessageType::Query, OpCode::Query);
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(name, RecordType::A));
        let ip = service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_ref()).unwrap();
        let ip: std::net::Ipv4Addr = ip.parse().unwrap();
        (message.to_vec().unwrap(), ip.octets())
    });
    requests.collect()
}

/// Other work of the process: writes, and caches that follow them.
async fn change_services(client: Client) {
    for number in 0.. {
        let key = ObjectKey::new("default", &format!("svc-{}", number % 100));
        let patch = json!({ "metadata": { "annotations": { "number": number.to_string() } } });
        client.patch_merge::<Service>(&key, &patch).await.unwrap();
    }
}

/// Sends at a constant rate, however long answers take, and matches answers by their id.
fn ask(
    address: SocketAddr,
    names: &[(Vec<u8>, [u8; 4])],
    number: u64,
    rate: u64,
    seconds: i64,
) -> Measured {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_micros(500))).unwrap();
    let mut measured = Measured::default();
    let mut pending: Vec<Option<(i64, usize)>> = vec![None; 1 << 16];
    let start = clock::monotonic();
    let mut buffer = [0; 512];
    loop {
        let passed = clock::monotonic() - start;
        // A second to collect the last answers.
        if passed > (seconds + 1) * SECOND {
            return measured;
        }
        let due = (passed.min(seconds * SECOND) as u64).saturating_mul(rate) / SECOND as u64;
        // A few at a time, so that sending never delays receiving.
        let batch = (due - measured.sent).min(8);
        for _ in 0..batch {
            let id = measured.sent as u16;
            let which = (measured.sent * 7919 + number * 104_729) as usize % names.len();
            let mut request = names[which].0.clone();
            request[..2].copy_from_slice(&id.to_be_bytes());
            pending[usize::from(id)] = Some((clock::monotonic(), which));
            socket.send(&request).unwrap();
            measured.sent += 1;
        }
        while let Ok(length) = socket.recv(&mut buffer) {
            let id = u16::from_be_bytes([buffer[0], buffer[1]]);
            let Some((sent, which)) = pending[usize::from(id)].take() else {
                continue;
            };
            measured.delays.push(clock::monotonic() - sent);
            measured.wrong += u64::from(!buffer[..length].ends_with(&names[which].1));
            if measured.delays.len() as u64 + 32 > measured.sent || batch == 8 {
                break;
            }
        }
    }
}

fn report(services: u64, seconds: i64, measured: Vec<Measured>) {
    let (sent, wrong) =
        measured.iter().fold((0, 0), |(sent, wrong), one| (sent + one.sent, wrong + one.wrong));
    let mut delays: Vec<i64> = measured.into_iter().flat_map(|one| one.delays).collect();
    delays.sort_unstable();
    let at = |share: f64| {
        let index = ((delays.len() as f64 * share) as usize).min(delays.len().saturating_sub(1));
        delays.get(index).copied().unwrap_or_default() as f64 / 1e6
    };
    println!(
        "{services} Services: {} answers/s of {} asked/s, {wrong} wrong, {} lost; \
         delay in ms: median {:.2}, 99 % {:.2}, 99.9 % {:.2}, max {:.2}",
        delays.len() as i64 / seconds,
        sent as i64 / seconds,
        sent - delays.len() as u64,
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0),
    );
}
