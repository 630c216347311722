//! WebSocket clients other than kubectl: old subprotocols, text messages, logs, port-forward without
//! SPDY, and nodes/proxy.

use crate::access::{connect, token_of};
use crate::cluster::{Cluster, TIMEOUT, dead_port};
use futures::{SinkExt as _, StreamExt as _};
use http::{HeaderMap, Request, header};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::{self, Message};

type Socket = WebSocketStream<TlsStream<TcpStream>>;

async fn open(cluster: &Cluster, path: &str, protocols: &str) -> (Socket, HeaderMap) {
    let stream = connect(&cluster.ca, cluster.server.running.address).await;
    let mut request = Request::get(format!("wss://{}{path}", cluster.server.running.address))
        .header(header::HOST, "server")
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "websocket")
        .header(header::SEC_WEBSOCKET_VERSION, "13")
        .header(header::SEC_WEBSOCKET_KEY, generate_key())
        .header(header::AUTHORIZATION, format!("Bearer {}", cluster.token()));
    if !protocols.is_empty() {
        request = request.header(header::SEC_WEBSOCKET_PROTOCOL, protocols);
    }
    let opened = tokio_tungstenite::client_async(request.body(()).unwrap(), stream).await;
    let (socket, response) = opened.unwrap_or_else(|error| panic!("{path}: {}", explained(&error)));
    (socket, response.headers().clone())
}

/// The error, with what the server said if it refused the upgrade.
fn explained(error: &tungstenite::Error) -> String {
    let said = match error {
        tungstenite::Error::Http(response) => response.body().as_deref().unwrap_or_default(),
        _ => &[],
    };
    format!("{error}: {}", String::from_utf8_lossy(said))
}

/// All messages except pings until the connection is closed, and the close code.
async fn read_all(socket: &mut Socket) -> (Vec<Message>, Option<u16>) {
    let mut messages = Vec::new();
    let reading = async {
        while let Some(Ok(message)) = socket.next().await {
            match message {
                Message::Close(frame) => return frame.map(|frame| frame.code.into()),
                Message::Ping(_) => {}
                message => messages.push(message),
            }
        }
        None
    };
    let code = tokio::time::timeout(TIMEOUT, reading).await.expect("an end in time");
    (messages, code)
}

fn joined(messages: &[Message], channel: u8) -> String {
    let of = messages.iter().map(|message| message.clone().into_data());
    let of = of.filter(|data| data.first() == Some(&channel));
    of.map(|data| String::from_utf8_lossy(&data[1..]).into_owned()).collect()
}

const POD: &str = "/api/v1/namespaces/default/pods/p";

/// The oldest protocol: negotiation (A-230), channels (A-231), no status (A-233).
#[tokio::test(flavor = "multi_thread")]
async fn a_233_the_oldest_protocol_sends_no_status_on_success() {
    let cluster = Cluster::start().await;
    cluster.pod("p", &["c"], "").await;
    let path = format!("{POD}/exec?command=echo&command=hello&stdout=1&stderr=1");
    for protocols in ["channel.k8s.io", ""] {
        let (mut socket, headers) = open(&cluster, &path, protocols).await;
        assert_eq!(headers[header::UPGRADE], "websocket");
        assert_eq!(headers[header::CONNECTION], "Upgrade");
        let (messages, code) = read_all(&mut socket).await;
        assert_eq!(messages[0], Message::binary([1].to_vec()), "the first message is empty");
        assert_eq!(joined(&messages, 1), "hello\n");
        assert!(messages.iter().all(|message| message.clone().into_data()[0] == 1));
        assert_eq!(code, Some(1000));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_230_a_232_the_status_is_the_last_message_on_channel_three() {
    let cluster = Cluster::start().await;
    cluster.pod("p", &["c"], "").await;
    let path = format!("{POD}/exec?command=sh&command=-c&command=echo+a;exit+3&stdout=1&stderr=1");
    let (mut socket, headers) =
        open(&cluster, &path, "unknown, v4.channel.k8s.io, v5.channel.k8s.io").await;
    assert_eq!(headers[header::SEC_WEBSOCKET_PROTOCOL], "v4.channel.k8s.io");
    let (messages, code) = read_all(&mut socket).await;
    let last = messages.last().unwrap().clone().into_data();
    let status: serde_json::Value = serde_json::from_slice(&last[1..]).unwrap();
    assert_eq!((last[0], &status["reason"]), (3, &"NonZeroExitCode".into()));
    assert_eq!(status["details"]["causes"][0]["message"], "3");
    assert_eq!((joined(&messages, 1).as_str(), code), ("a\n", Some(1000)));
    let (mut socket, _) = open(&cluster, &path, "v4.base64.channel.k8s.io").await;
    let (messages, _) = read_all(&mut socket).await;
    assert!(messages.contains(&Message::text("1YQo=")), "{messages:?}");
}

/// A-232: kubectl up to 1.33 discards what arrives before it has created its streams, so output
/// waits until the client has answered a ping.
#[tokio::test(flavor = "multi_thread")]
async fn a_232_output_waits_until_the_client_reads() {
    let cluster = Cluster::start().await;
    cluster.pod("p", &["c"], "").await;
    let mut finished = cluster.runtime.finished_commands();
    let path = format!("{POD}/exec?command=echo&command=hello&stdout=1");
    let (mut socket, _) = open(&cluster, &path, "v5.channel.k8s.io").await;
    tokio::time::timeout(TIMEOUT, finished.recv()).await.unwrap().unwrap();
    let begun = socket.next().await.unwrap().unwrap();
    let ping = socket.next().await.unwrap().unwrap();
    assert_eq!((begun, ping.is_ping()), (Message::binary([1].to_vec()), true));
    let (messages, code) = read_all(&mut socket).await;
    assert_eq!((joined(&messages, 1).as_str(), code), ("hello\n", Some(1000)));
}

/// Text messages (A-231), pings (A-234) and the end of input in v5 (A-235).
#[tokio::test(flavor = "multi_thread")]
async fn a_235_text_messages_are_input_and_v5_can_end_it() {
    let cluster = Cluster::start().await;
    cluster.pod("p", &["c"], "").await;
    let path = format!("{POD}/exec?command=cat&stdin=1&stdout=1");
    let (mut socket, _) = open(&cluster, &path, "v5.channel.k8s.io").await;
    socket.send(Message::Ping("are you there".into())).await.unwrap();
    socket.send(Message::text("\0typed")).await.unwrap();
    socket.send(Message::binary(vec![255, 0])).await.unwrap();
    let (messages, code) = read_all(&mut socket).await;
    assert!(messages.contains(&Message::Pong("are you there".into())), "{messages:?}");
    assert_eq!((joined(&messages, 1).as_str(), code), ("typed", Some(1000)));
    assert_eq!(joined(&messages, 3), r#"{"metadata":{},"status":"Success"}"#);
}

#[tokio::test(flavor = "multi_thread")]
async fn n_164_the_process_keeps_running_when_the_client_leaves() {
    let cluster = Cluster::start().await;
    cluster.pod("p", &["c"], "").await;
    let mut finished = cluster.runtime.finished_commands();
    let path = format!("{POD}/exec?command=sh&command=-c&command=read+x;+exit+5&stdin=1&stdout=1");
    let (socket, _) = open(&cluster, &path, "v4.channel.k8s.io").await;
    drop(socket);
    let (_, code) = tokio::time::timeout(TIMEOUT, finished.recv()).await.unwrap().unwrap();
    assert_eq!(code, 5, "the process saw the end of its input and was not killed");
}

/// The start of the response to a request for an upgrade.
async fn handshake(cluster: &Cluster, path: &str, protocol: &str, token: &str) -> String {
    let mut stream = connect(&cluster.ca, cluster.server.running.address).await;
    let request = format!(
        "GET {POD}/{path} HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\
         Sec-WebSocket-Protocol: {protocol}\r\nAuthorization: Bearer {token}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = vec![0; 4096];
    let count = stream.read(&mut response).await.unwrap();
    String::from_utf8_lossy(&response[..count]).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_189_exec_over_a_websocket_needs_the_verb_create() {
    let cluster = Cluster::start().await;
    cluster.pod("p", &["c"], "").await;
    let resources = ["pods/exec", "pods/attach", "pods/portforward"];
    let reader = token_of(&cluster, "reader", &resources, &["get"]).await;
    let runner = token_of(&cluster, "runner", &resources, &["get", "create"]).await;
    let path = "exec?command=true&stdout=1";
    let refused = handshake(&cluster, path, "v4.channel.k8s.io", &reader).await;
    assert!(refused.starts_with("HTTP/1.1 403"), "{refused}");
    let allowed = handshake(&cluster, path, "v4.channel.k8s.io", &runner).await;
    assert!(allowed.starts_with("HTTP/1.1 101"), "{allowed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_226_requests_without_streams_or_with_unknown_protocols_are_errors() {
    let cluster = Cluster::start().await;
    cluster.pod("p", &["c"], "").await;
    let token = cluster.token();
    let response = |path, protocol| handshake(&cluster, path, protocol, &token);
    let none = response("exec?command=true", "v4.channel.k8s.io").await;
    assert!(none.starts_with("HTTP/1.1 400"), "{none}");
    let unknown = response("exec?command=true&stdout=1", "v9.channel.k8s.io").await;
    assert!(unknown.starts_with("HTTP/1.1 403"), "{unknown}");
    let ports = response("portforward", "v4.channel.k8s.io").await;
    assert!(ports.starts_with("HTTP/1.1 400"), "{ports}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_244_logs_are_streamed_over_a_websocket() {
    let cluster = Cluster::start().await;
    cluster.pod("p", &["c"], "2026-01-02T03:04:05Z stdout F hi\n").await;
    for (protocol, expected) in [
        ("binary.k8s.io", Message::binary(b"hi\n".to_vec())),
        ("base64.binary.k8s.io", Message::text("aGkK")),
    ] {
        let (mut socket, headers) = open(&cluster, &format!("{POD}/log"), protocol).await;
        assert_eq!(headers[header::SEC_WEBSOCKET_PROTOCOL], protocol);
        let (messages, code) = read_all(&mut socket).await;
        assert!(messages[0].is_empty(), "{messages:?}");
        assert_eq!((messages.last(), code), (Some(&expected), Some(1000)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_241_each_port_has_two_channels() {
    let cluster = Cluster::start().await;
    cluster.pod("p", &["c"], "").await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (_held, dead) = dead_port();
    let path = format!("{POD}/portforward?ports={port}&ports={dead}");
    let (mut socket, headers) = open(&cluster, &path, "v5.channel.k8s.io, v4.channel.k8s.io").await;
    assert_eq!(headers[header::SEC_WEBSOCKET_PROTOCOL], "v4.channel.k8s.io");
    let (mut peer, _) = listener.accept().await.unwrap();
    socket.send(Message::binary(b"\0question".to_vec())).await.unwrap();
    let mut question = [0; 8];
    peer.read_exact(&mut question).await.unwrap();
    peer.write_all(b"answer").await.unwrap();
    drop(peer);
    let (messages, code) = read_all(&mut socket).await;
    let first = |channel: u8| {
        let mut data = messages.iter().map(|message| message.clone().into_data());
        data.find(|data| data.first() == Some(&channel)).unwrap()
    };
    for (channel, port) in [(0, port), (1, port), (2, dead), (3, dead)] {
        assert_eq!(first(channel)[1..], port.to_le_bytes(), "{channel}");
    }
    assert_eq!(&question, b"question");
    assert!(joined(&messages, 0).ends_with("answer"), "{messages:?}");
    assert!(joined(&messages, 3).contains(&format!("error forwarding port {dead} to pod p")));
    assert_eq!(code, Some(1000));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_189_a_89_the_endpoint_is_reached_through_nodes_proxy() {
    let cluster = Cluster::start().await;
    cluster.pod("p", &["c"], "").await;
    let kubectl = &cluster.kubectls()[0];
    assert_eq!(kubectl.ok("kubectl get --raw /api/v1/nodes/n1/proxy/healthz"), "ok");
    let config = kubectl.ok("kubectl get --raw /api/v1/nodes/n1/proxy/configz");
    assert_eq!(config, r#"{"kubeletconfig":{"maxPods":110}}"#);
    let missing = "the server could not find the requested resource";
    kubectl.fails("kubectl get --raw /api/v1/nodes/n1/proxy/nothing", missing);
}
