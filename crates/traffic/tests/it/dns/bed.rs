//! An API server, a DNS server that watches it, and a client that asks.

use client::{Client, ObjectKey};
use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query};
use hickory_proto::rr::{Name, RecordType};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;
use testbed::TestServer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;
use traffic::Watched;
use traffic::dns::{Config, Running};

/// No reply takes that long. The limit makes a failing test end.
const WAIT_MAX: Duration = Duration::from_secs(30);

pub(super) struct Bed {
    pub(super) address: SocketAddr,
    pub(super) client: Client,
    pub(super) watched: Watched,
    config: Config,
    running: Option<Running>,
    directory: TempDir,
    pub(super) server: TestServer,
}

impl Bed {
    /// A DNS server without resolvers behind it.
    pub(super) async fn start() -> Bed {
        Bed::with_upstream(53, "").await
    }

    /// A DNS server that forwards to the servers in `resolv_conf`, at `port`.
    pub(super) async fn with_upstream(port: u16, resolv_conf: &str) -> Bed {
        Bed::of(TestServer::start().await, port, resolv_conf).await
    }

    /// The same, for this API server.
    pub(super) async fn of(server: TestServer, port: u16, resolv_conf: &str) -> Bed {
        let client = server.admin();
        let watched = Watched::start(&client);
        watched.synced().await;
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("resolv.conf"), resolv_conf).unwrap();
        let mut config = Config {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            resolv_conf: directory.path().join("resolv.conf"),
            systemd_resolv_conf: directory.path().join("systemd.conf"),
            upstream_port: port,
            ..Config::default()
        };
        let running = traffic::dns::start(watched.clone(), config.clone()).unwrap();
        let address = running.addresses()[0];
        config.listen = vec![address];
        let running = Some(running);
        Bed { address, client, watched, config, running, directory, server }
    }

    pub(super) fn resolv_conf(&self) -> PathBuf {
        self.directory.path().join("resolv.conf")
    }

    pub(super) async fn stop(&mut self) {
        self.running.take().unwrap().stop().await;
    }

    /// Starts another server at the same address.
    pub(super) fn restart(&mut self) {
        self.running =
            Some(traffic::dns::start(self.watched.clone(), self.config.clone()).unwrap());
    }

    pub(super) fn metrics(&self) -> String {
        let mut page = metrics::Page::default();
        self.running.as_ref().unwrap().metrics().write(&mut page, |_| true);
        page.into_text()
    }

    pub(super) async fn create(&self, slice: EndpointSlice) {
        self.client.create(&slice).await.unwrap();
    }

    pub(super) async fn service(&self, name: &str, spec: Value) {
        self.client.create(&service(name, spec)).await.unwrap();
    }

    pub(super) async fn patch_service(&self, name: &str, patch: Value) {
        let key = ObjectKey::new("default", name);
        self.client.patch_merge::<Service>(&key, &patch).await.unwrap();
    }

    pub(super) async fn replace_endpoints(&self, slice: &str, endpoints: Value) {
        let key = ObjectKey::new("default", slice);
        let patch = json!({ "endpoints": endpoints });
        self.client.patch_merge::<EndpointSlice>(&key, &patch).await.unwrap();
    }

    /// Creates Services and returns their names and cluster IPs.
    pub(super) async fn services(&self, count: usize) -> Vec<(String, String)> {
        let spec = json!({ "ports": [{ "port": 80 }] });
        let all = (0..count).map(|number| service(&format!("svc-{number}"), spec.clone()));
        let created = self.client.create_all(all).await.unwrap();
        let created = created.into_iter().map(|service| {
            let ip = service.spec.and_then(|spec| spec.cluster_ip).unwrap();
            (service.metadata.name.unwrap(), ip)
        });
        created.collect()
    }

    pub(super) async fn udp(&self, name: &str, kind: RecordType) -> Message {
        self.udp_with(name, kind, None).await.1
    }

    /// Asks with an EDNS size, and returns the size of the reply too.
    pub(super) async fn udp_with(
        &self,
        name: &str,
        kind: RecordType,
        edns: Option<u16>,
    ) -> (usize, Message) {
        let reply = self.udp_raw(&request(name, kind, edns)).await.expect("a reply");
        (reply.len(), Message::from_vec(&reply).unwrap())
    }

    /// `None` if there is no reply before the reply to the next request.
    pub(super) async fn udp_raw(&self, request: &[u8]) -> Option<Vec<u8>> {
        let socket = self.socket().await;
        socket.send(request).await.unwrap();
        receive(&socket).await
    }

    pub(super) async fn socket(&self) -> UdpSocket {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        socket.connect(self.address).await.unwrap();
        socket
    }

    pub(super) async fn tcp(&self, name: &str, kind: RecordType) -> Message {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        ask_over(&mut stream, &request(name, kind, None)).await
    }

    /// Asks until the answer matches: the caches of the server follow the API server with a delay.
    pub(super) async fn until(
        &self,
        name: &str,
        kind: RecordType,
        matches: impl Fn(&Message) -> bool,
    ) {
        let mut last = None;
        let found = async {
            loop {
                let answer = self.udp(name, kind).await;
                if matches(&answer) {
                    return;
                }
                last = Some(answer);
            }
        };
        if timeout(WAIT_MAX, found).await.is_err() {
            panic!("{name} {kind} is {last:?}");
        }
    }

    pub(super) async fn until_tcp(
        &self,
        name: &str,
        kind: RecordType,
        matches: impl Fn(&Message) -> bool,
    ) {
        let found = async { while !matches(&self.tcp(name, kind).await) {} };
        timeout(WAIT_MAX, found).await.expect("the answer matches in time");
    }
}

pub(super) async fn receive(socket: &UdpSocket) -> Option<Vec<u8>> {
    let mut reply = vec![0; 65535];
    let length = timeout(WAIT_MAX, socket.recv(&mut reply)).await.ok()?.ok()?;
    reply.truncate(length);
    Some(reply)
}

/// Sends a request over a connection and reads one reply.
pub(super) async fn ask_over(stream: &mut TcpStream, request: &[u8]) -> Message {
    stream.write_all(&framed(request)).await.unwrap();
    Message::from_vec(&read_reply(stream).await.expect("a reply")).unwrap()
}

/// `None` if the server closed the connection.
pub(super) async fn read_reply(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let read = async {
        let length = stream.read_u16().await.ok()?;
        let mut reply = vec![0; usize::from(length)];
        stream.read_exact(&mut reply).await.ok()?;
        Some(reply)
    };
    timeout(WAIT_MAX, read).await.expect("a reply, or the end of the connection")
}

pub(super) fn framed(request: &[u8]) -> Vec<u8> {
    [&(request.len() as u16).to_be_bytes()[..], request].concat()
}

pub(super) fn request(name: &str, kind: RecordType, edns: Option<u16>) -> Vec<u8> {
    let id = clock::random_u64() as u16;
    let mut message = Message::new(id, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(format!("{name}.")).unwrap(), kind));
    if let Some(size) = edns {
        let mut edns = Edns::new();
        edns.set_max_payload(size);
        message.set_edns(edns);
    }
    message.to_vec().unwrap()
}

/// The data of the answers, in their order.
pub(super) fn data(message: &Message) -> Vec<String> {
    message.answers.iter().map(|record| record.data.to_string()).collect()
}

pub(super) fn addresses(message: &Message) -> impl Iterator<Item = String> {
    data(message).into_iter()
}

fn service(name: &str, spec: Value) -> Service {
    let metadata = json!({ "namespace": "default", "name": name });
    typed::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
}

/// A slice of a Service with one port, `http` or `p`, 80 or 1.
pub(super) fn slice(service: &str, number: usize, endpoints: Value) -> EndpointSlice {
    let ports = json!([
        { "name": "http", "port": 80, "protocol": "TCP" },
        { "name": "p", "port": 1, "protocol": "TCP" },
    ]);
    let metadata = json!({
        "namespace": "default", "name": format!("{service}-{number}"),
        "labels": { "kubernetes.io/service-name": service },
    });
    typed::from_value(json!({
        "metadata": metadata, "addressType": "IPv4", "ports": ports, "endpoints": endpoints,
    }))
    .unwrap()
}
