//! WebSocket as other clients than kubectl speak it: old subprotocols, text, logs, plain
//! port-forward, and nodes/proxy.

use super::access::{connect, token_of};
use super::cluster::{Cluster, PATIENCE, dead_port};
use futures::{SinkExt as _, StreamExt as _};
use http::{HeaderMap, Request, header};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;

type Socket = WebSocketStream<TlsStream<TcpStream>>;

async fn open(cluster: &Cluster, path: &str, protocols: &str) -> (Socket, HeaderMap) {
    let stream = connect(&cluster.ca, cluster.running.address).await;
    let mut request = Request::get(format!("wss://{}{path}", cluster.running.address))
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
    let (socket, answer) = opened.unwrap_or_else(|error| panic!("{path}: {error}"));
    (socket, answer.headers().clone())
}

/// All messages until the close, and its code.
async fn all(socket: &mut Socket) -> (Vec<Message>, Option<u16>) {
    let mut messages = Vec::new();
    let reading = async {
        while let Some(Ok(message)) = socket.next().await {
            match message {
                Message::Close(frame) => return frame.map(|frame| frame.code.into()),
                message => messages.push(message),
            }
        }
        None
    };
    let code = tokio::time::timeout(PATIENCE, reading).await.expect("an end in time");
    (messages, code)
}

fn joined(messages: &[Message], channel: u8) -> String {
    let of = messages.iter().map(|message| message.clone().into_data());
    let of = of.filter(|data| data.first() == Some(&channel));
    of.map(|data| String::from_utf8_lossy(&data[1..]).into_owned()).collect()
}

const POD: &str = "/api/v1/namespaces/default/pods/p";

/// A-230, A-231, A-233
#[tokio::test(flavor = "multi_thread")]
async fn a_233_the_first_protocol_says_nothing_on_success() {
    let cluster = Cluster::start().await;
    cluster.pod("p", &["c"], "").await;
    let path = format!("{POD}/exec?command=echo&command=hello&stdout=1&stderr=1");
    for protocols in ["channel.k8s.io", ""] {
        let (mut socket, headers) = open(&cluster, &path, protocols).await;
        assert_eq!(headers[header::UPGRADE], "websocket");
        assert_eq!(headers[header::CONNECTION], "Upgrade");
        let (messages, code) = all(&mut socket).await;
        assert_eq!(messages[0], Message::binary([1].to_vec()), "it has begun");
        assert_eq!(joined(&messages, 1), "hello\n");
        assert!(messages.iter().all(|message| message.clone().into_data()[0] == 1));
        assert_eq!(code, Some(1000));
    }
}

/// A-230, A-232
#[tokio::test(flavor = "multi_thread")]
async fn a_232_the_status_comes_last_on_channel_three() {
    let cluster = Cluster::start().await;
    cluster.pod("p", &["c"], "").await;
    let path = format!("{POD}/exec?command=sh&command=-c&command=echo+a;exit+3&stdout=1&stderr=1");
    let (mut socket, headers) =
        open(&cluster, &path, "unknown, v4.channel.k8s.io, v5.channel.k8s.io").await;
    assert_eq!(headers[header::SEC_WEBSOCKET_PROTOCOL], "v4.channel.k8s.io");
    let (messages, code) = all(&mut socket).await;
    let last = messages.last().unwrap().clone().into_data();
    let status: serde_json::Value = serde_json::from_slice(&last[1..]).unwrap();
    assert_eq!((last[0], &status["reason"]), (3, &"NonZeroExitCode".into()));
    assert_eq!(status["details"]["causes"][0]["message"], "3");
    assert_eq!((joined(&messages, 1).as_str(), code), ("a\n", Some(1000)));
    let (mut socket, _) = open(&cluster, &path, "v4.base64.channel.k8s.io").await;
    let (messages, _) = all(&mut socket).await;
    assert!(messages.contains(&Message::text("1YQo=")), "{messages:?}");
}

/// A-231, A-234, A-235
#[tokio::test(flavor = "multi_thread")]
async fn a_235_text_is_input_pings_are_answered_and_v5_closes_it() {
    let cluster = Cluster::start().await;
    cluster.pod("p", &["c"], "").await;
    let path = format!("{POD}/exec?command=cat&stdin=1&stdout=1");
    let (mut socket, _) = open(&cluster, &path, "v5.channel.k8s.io").await;
    socket.send(Message::Ping("are you there".into())).await.unwrap();
    socket.send(Message::text("\0typed")).await.unwrap();
    socket.send(Message::binary(vec![255, 0])).await.unwrap();
    let (messages, code) = all(&mut socket).await;
    assert!(messages.contains(&Message::Pong("are you there".into())), "{messages:?}");
    assert_eq!((joined(&messages, 1).as_str(), code), ("typed", Some(1000)));
    assert_eq!(joined(&messages, 3), r#"{"metadata":{},"status":"Success"}"#);
}

/// N-164: the process outlives its client.
#[tokio::test(flavor = "multi_thread")]
async fn n_164_a_client_that_leaves_does_not_end_the_process() {
    let cluster = Cluster::start().await;
    cluster.pod("p", &["c"], "").await;
    let mut ended = cluster.runtime.ended.subscribe();
    let path = format!("{POD}/exec?command=sh&command=-c&command=read+x;+exit+5&stdin=1&stdout=1");
    let (socket, _) = open(&cluster, &path, "v4.channel.k8s.io").await;
    drop(socket);
    let (_, code) = tokio::time::timeout(PATIENCE, ended.recv()).await.unwrap().unwrap();
    assert_eq!(code, 5, "it saw the end of its input and was not killed");
}

/// The first words of the answer to a request for an upgrade.
async fn handshake(cluster: &Cluster, path: &str, protocol: &str, token: &str) -> String {
    let mut stream = connect(&cluster.ca, cluster.running.address).await;
    let request = format!(
        "GET {POD}/{path} HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\
         Sec-WebSocket-Protocol: {protocol}\r\nAuthorization: Bearer {token}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = vec![0; 4096];
    let count = stream.read(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer[..count]).into_owned()
}

/// A-189
#[tokio::test(flavor = "multi_thread")]
async fn a_189_who_may_only_get_may_not_run_commands_over_a_websocket() {
    let cluster = Cluster::start().await;
    cluster.pod("p", &["c"], "").await;
    let what = ["pods/exec", "pods/attach", "pods/portforward"];
    let reader = token_of(&cluster, "reader", &what, &["get"]).await;
    let runner = token_of(&cluster, "runner", &what, &["get", "create"]).await;
    let path = "exec?command=true&stdout=1";
    let refused = handshake(&cluster, path, "v4.channel.k8s.io", &reader).await;
    assert!(refused.starts_with("HTTP/1.1 403"), "{refused}");
    let allowed = handshake(&cluster, path, "v4.channel.k8s.io", &runner).await;
    assert!(allowed.starts_with("HTTP/1.1 101"), "{allowed}");
}

/// A-226
#[tokio::test(flavor = "multi_thread")]
async fn a_226_no_streams_and_no_known_protocol_are_refused() {
    let cluster = Cluster::start().await;
    cluster.pod("p", &["c"], "").await;
    let token = cluster.token();
    let refused = |path, protocol| handshake(&cluster, path, protocol, &token);
    let none = refused("exec?command=true", "v4.channel.k8s.io").await;
    assert!(none.starts_with("HTTP/1.1 400"), "{none}");
    let unknown = refused("exec?command=true&stdout=1", "v9.channel.k8s.io").await;
    assert!(unknown.starts_with("HTTP/1.1 403"), "{unknown}");
    let ports = refused("portforward", "v4.channel.k8s.io").await;
    assert!(ports.starts_with("HTTP/1.1 400"), "{ports}");
}

/// A-244
#[tokio::test(flavor = "multi_thread")]
async fn a_244_logs_come_over_a_websocket() {
    let cluster = Cluster::start().await;
    cluster.pod("p", &["c"], "2026-01-02T03:04:05Z stdout F hi\n").await;
    for (protocol, said) in [
        ("binary.k8s.io", Message::binary(b"hi\n".to_vec())),
        ("base64.binary.k8s.io", Message::text("aGkK")),
    ] {
        let (mut socket, headers) = open(&cluster, &format!("{POD}/log"), protocol).await;
        assert_eq!(headers[header::SEC_WEBSOCKET_PROTOCOL], protocol);
        let (messages, code) = all(&mut socket).await;
        assert!(messages[0].is_empty(), "{messages:?}");
        assert_eq!((messages.last(), code), (Some(&said), Some(1000)));
    }
}

/// A-241
#[tokio::test(flavor = "multi_thread")]
async fn a_241_ports_are_pairs_of_channels() {
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
    let (messages, code) = all(&mut socket).await;
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

/// A-89, A-189
#[tokio::test(flavor = "multi_thread")]
async fn a_89_the_node_is_reached_through_its_proxy() {
    let cluster = Cluster::start().await;
    cluster.pod("p", &["c"], "").await;
    let shell = &super::shell::shells(&cluster)[0];
    assert_eq!(shell.ok("kubectl get --raw /api/v1/nodes/n1/proxy/healthz").await, "ok");
    let config = shell.ok("kubectl get --raw /api/v1/nodes/n1/proxy/configz").await;
    assert_eq!(config, r#"{"kubeletconfig":{"maxPods":110}}"#);
    let missing = "the server could not find the requested resource";
    shell.fails("kubectl get --raw /api/v1/nodes/n1/proxy/nothing", missing).await;
}
