//! Port-forward: one connection to a port of the pod for each pair of SPDY streams
//! or WebSocket channels, opened inside the pod's network namespace (N-166).

use crate::exec;
use crate::remote_command::{BEGIN_MAX, IDLE_MAX};
use crate::response::{self, Response};
use crate::routes::Call;
use crate::upgrade::{self, Io, Transport};
use crate::websocket::{self, Framing};
use bytes::Bytes;
use futures::{SinkExt as _, StreamExt as _};
use http::StatusCode;
use runtime::Runtime;
use spdy::server::{Connection, Sender, Stream};
use std::collections::HashMap;
use std::sync::Arc;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::Message;

const SPDY_PROTOCOL: &str = "portforward.k8s.io";
const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";
/// There is no v5 for port-forward: a client that offers it gets the next protocol of its list.
const WEBSOCKET_PROTOCOLS: &[&str] = &[TUNNEL, "v4.channel.k8s.io", "v4.base64.channel.k8s.io"];
/// Bytes per chunk.
const CHUNK: usize = 32 * 1024;
/// Chunks queued per connection.
const QUEUE: usize = 16;
/// Streams that wait for the second stream of their pair.
const HALVES_MAX: usize = 1024;

/// The pod to connect to.
#[derive(Clone)]
struct Pod {
    runtime: Arc<dyn Runtime>,
    sandbox: String,
    name: String,
    uid: String,
}

impl Pod {
    async fn connect(&self, port: u16) -> Result<TcpStream, String> {
        self.runtime.connect(&self.sandbox, port).await.map_err(|error| {
            let Pod { name, uid, .. } = self;
            format!("error forwarding port {port} to pod {name}, uid {uid}: {error}")
        })
    }
}

pub(crate) async fn serve(call: Call, namespace: &str, name: &str, uid: Option<&str>) -> Response {
    let pod = match exec::pod(&call, namespace, name, uid) {
        Ok(pod) => pod,
        Err(rejection) => return *rejection,
    };
    let sandbox = match exec::sandbox(&call, &pod).await {
        Ok(sandbox) => sandbox,
        Err(rejection) => return *rejection,
    };
    let pod = Pod {
        runtime: call.state.endpoint.runtime.clone(),
        sandbox,
        name: name.to_owned(),
        uid: pod.metadata.uid.clone().unwrap_or_default(),
    };
    let Some(upgrade) = call.upgrade else { return upgrade::required() };
    if upgrade.transport == Transport::Spdy {
        return match upgrade.choose(&[SPDY_PROTOCOL]) {
            Err(rejection) => *rejection,
            Ok(protocol) => {
                upgrade.accept(protocol, move |io| streams(Connection::new(io, IDLE_MAX), pod))
            }
        };
    }
    let protocol = match upgrade.choose(WEBSOCKET_PROTOCOLS) {
        Ok(protocol) => protocol,
        Err(rejection) => return *rejection,
    };
    if protocol == TUNNEL {
        return upgrade.accept(protocol, move |io| async move {
            let bytes = websocket::tunnel(websocket::open(io).await);
            streams(Connection::new(bytes, IDLE_MAX), pod).await;
        });
    }
    match ports(call.query.all("port").chain(call.query.all("ports"))) {
        Err(why) => response::text(StatusCode::BAD_REQUEST, why),
        Ok(ports) => {
            upgrade.accept(protocol, move |io| channels(io, Framing::of(protocol), ports, pod))
        }
    }
}

/// Parses `80` or `80,443`, which may be repeated.
fn ports<'a>(given: impl Iterator<Item = &'a str>) -> Result<Vec<u16>, String> {
    let given = given.flat_map(|value| value.split(',')).filter(|port| !port.is_empty());
    let ports: Vec<u16> = given
        .map(|text| {
            let port = text.parse().ok().filter(|port| *port > 0);
            port.ok_or_else(|| format!("unable to parse {text:?} as a port"))
        })
        .collect::<Result<_, _>>()?;
    // Each port needs two channels, and a channel number is one byte.
    match ports.len() {
        0 => Err("query parameter \"ports\" is required".to_owned()),
        1..=127 => Ok(ports),
        _ => Err("too many ports".to_owned()),
    }
}

/// Forwards pairs of SPDY streams.
async fn streams(mut connection: Connection, pod: Pod) {
    let mut halves: HashMap<String, (Instant, Stream)> = HashMap::new();
    while let Some(stream) = connection.next().await {
        halves.retain(|_, (since, _)| since.elapsed() < BEGIN_MAX);
        let data = match stream.header("streamtype") {
            "data" => true,
            "error" => false,
            _ => continue,
        };
        // Old clients send no request id. Their data stream follows the error stream.
        let id = match stream.header("requestid") {
            "" if data => stream.id.wrapping_sub(2).to_string(),
            "" => stream.id.to_string(),
            id => id.to_owned(),
        };
        match halves.remove(&id) {
            Some((_, other)) if (other.header("streamtype") == "data") != data => {
                let (data, error) = if data { (stream, other) } else { (other, stream) };
                tokio::spawn(pair(data, error.output, pod.clone()));
            }
            _ if halves.len() >= HALVES_MAX => {}
            _ => drop(halves.insert(id, (Instant::now(), stream))),
        }
    }
    connection.close().await;
}

async fn pair(data: Stream, error: Sender, pod: Pod) {
    let port = data
        .header("port")
        .parse::<u16>()
        .map_err(|_| format!("unable to parse {:?} as a port", data.header("port")));
    let Stream { mut input, output, .. } = data;
    let connected = match port {
        Ok(port) => pod.connect(port).await,
        Err(why) => Err(why),
    };
    let socket = match connected {
        Ok(socket) => socket,
        Err(why) => {
            error.send(why.into()).await;
            error.end().await;
            return output.end().await;
        }
    };
    let (mut read, mut write) = socket.into_split();
    let upload = async {
        while let Some(bytes) = input.recv().await {
            if write.write_all(&bytes).await.is_err() {
                return;
            }
        }
        let _ = write.shutdown().await;
    };
    let download = async {
        let mut chunk = vec![0; CHUNK];
        while let Ok(count @ 1..) = read.read(&mut chunk).await {
            if !output.send(Bytes::copy_from_slice(&chunk[..count])).await {
                return;
            }
        }
        output.end().await;
    };
    // The connection ends when the pod has closed its side; what the client still sends would have
    // no reader.
    let mut upload = std::pin::pin!(upload);
    let mut download = std::pin::pin!(download);
    tokio::select! {
        () = &mut download => {}
        () = &mut upload => download.await,
    }
    error.end().await;
}

/// Forwards two WebSocket channels per port: one for data, one for errors as text.
async fn channels(io: Io, framing: Framing, ports: Vec<u16>, pod: Pod) {
    let (mut sink, mut source) = websocket::open(io).await;
    let (to_client, mut messages) = mpsc::channel::<Message>(QUEUE);
    let writing = tokio::spawn(async move {
        while let Some(message) = messages.recv().await {
            if sink.send(message).await.is_err() {
                return;
            }
        }
        let _ = sink.send(websocket::close_message()).await;
    });
    let mut feeds = Vec::new();
    for (index, port) in ports.into_iter().enumerate() {
        let channel = 2 * index as u8;
        for channel in [channel, channel + 1] {
            let _ = to_client.send(framing.encode(channel, &port.to_le_bytes())).await;
        }
        let (feed, input) = mpsc::channel(QUEUE);
        feeds.push(feed);
        tokio::spawn(port_channels(port, channel, framing, input, to_client.clone(), pod.clone()));
    }
    drop(to_client);
    let reading = async {
        while let Some(Ok(message)) = source.next().await {
            let Some((channel, bytes)) = framing.decode(message) else { continue };
            // Clients send nothing on error channels; ignore it if they do.
            if channel % 2 == 0
                && let Some(feed) = feeds.get(usize::from(channel / 2))
            {
                let _ = feed.send(bytes).await;
            }
        }
    };
    let mut writing = writing;
    tokio::select! {
        () = reading => {}
        _ = &mut writing => return websocket::drain(source).await,
    }
    // The client left. Dropping the feeds closes the connections.
    drop(feeds);
    writing.abort();
}

async fn port_channels(
    port: u16,
    channel: u8,
    framing: Framing,
    mut input: mpsc::Receiver<Bytes>,
    to_client: mpsc::Sender<Message>,
    pod: Pod,
) {
    let socket = match pod.connect(port).await {
        Ok(socket) => socket,
        Err(why) => {
            let _ = to_client.send(framing.encode(channel + 1, why.as_bytes())).await;
            return;
        }
    };
    let (mut read, mut write) = socket.into_split();
    let mut chunk = vec![0; CHUNK];
    let upload = async {
        while let Some(bytes) = input.recv().await {
            if write.write_all(&bytes).await.is_err() {
                return;
            }
        }
    };
    let download = async {
        while let Ok(count @ 1..) = read.read(&mut chunk).await {
            if to_client.send(framing.encode(channel, &chunk[..count])).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = upload => {}
        () = download => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_241_ports_are_separate_parameters_or_a_list() {
        assert_eq!(ports(["80", "443"].into_iter()), Ok(vec![80, 443]));
        assert_eq!(ports(["80,443"].into_iter()), Ok(vec![80, 443]));
        assert_eq!(ports([].into_iter()), Err("query parameter \"ports\" is required".into()));
        assert!(ports(["0"].into_iter()).is_err() && ports(["x"].into_iter()).is_err());
    }
}
