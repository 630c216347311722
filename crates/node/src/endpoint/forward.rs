//! Port-forward: a connection to a port of the pod for each pair of streams or
//! channels, made inside the pod's network namespace (N-166).

use super::answer::{self, Answer};
use super::exec;
use super::remote::BEGIN_MAX;
use super::routes::Call;
use super::spdy::{Connection, Sender, Stream};
use super::upgrade::{self, Io, Manner};
use super::websocket::{self, Framing};
use bytes::Bytes;
use futures::{SinkExt as _, StreamExt as _};
use http::StatusCode;
use runtime::Runtime;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_tungstenite::tungstenite::Message;

const SPDY_PROTOCOL: &str = "portforward.k8s.io";
const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";
/// v5 is not defined here: a client that offers it first gets the next that is.
const WEBSOCKET_PROTOCOLS: &[&str] = &[TUNNEL, "v4.channel.k8s.io", "v4.base64.channel.k8s.io"];
const PIECE: usize = 32 * 1024;
const WAITING: usize = 16;
/// Pairs of streams of which one half is there.
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

pub(super) async fn answer(call: Call, namespace: &str, name: &str, uid: Option<&str>) -> Answer {
    let pod = match exec::pod(&call, namespace, name, uid) {
        Ok(pod) => pod,
        Err(refused) => return *refused,
    };
    let sandbox = match exec::sandbox(&call, &pod).await {
        Ok(sandbox) => sandbox,
        Err(refused) => return *refused,
    };
    let pod = Pod {
        runtime: call.state.endpoint.runtime.clone(),
        sandbox,
        name: name.to_owned(),
        uid: pod.metadata.uid.clone().unwrap_or_default(),
    };
    let Some(upgrade) = call.upgrade else { return upgrade::required() };
    if upgrade.manner == Manner::Spdy {
        return match upgrade.choose(&[SPDY_PROTOCOL]) {
            Err(refused) => *refused,
            Ok(protocol) => upgrade.accept(protocol, move |io| streams(Connection::new(io), pod)),
        };
    }
    let protocol = match upgrade.choose(WEBSOCKET_PROTOCOLS) {
        Ok(protocol) => protocol,
        Err(refused) => return *refused,
    };
    if protocol == TUNNEL {
        return upgrade.accept(protocol, move |io| async move {
            let bytes = websocket::bytes(websocket::open(io).await);
            streams(Connection::new(bytes), pod).await;
        });
    }
    match ports(call.query.all("port").chain(call.query.all("ports"))) {
        Err(why) => answer::text(StatusCode::BAD_REQUEST, why),
        Ok(ports) => {
            upgrade.accept(protocol, move |io| channels(io, Framing::of(protocol), ports, pod))
        }
    }
}

/// `80`, or `80,443`, or several of them.
fn ports<'a>(given: impl Iterator<Item = &'a str>) -> Result<Vec<u16>, String> {
    let given = given.flat_map(|value| value.split(',')).filter(|port| !port.is_empty());
    let ports: Vec<u16> = given
        .map(|text| {
            let port = text.parse().ok().filter(|port| *port > 0);
            port.ok_or_else(|| format!("unable to parse {text:?} as a port"))
        })
        .collect::<Result<_, _>>()?;
    // A channel is one byte, and each port has two.
    match ports.len() {
        0 => Err("query parameter \"ports\" is required".to_owned()),
        1..=127 => Ok(ports),
        _ => Err("too many ports".to_owned()),
    }
}

/// Pairs of SPDY streams.
async fn streams(mut connection: Connection, pod: Pod) {
    let mut halves: HashMap<String, (Instant, Stream)> = HashMap::new();
    while let Some(stream) = connection.next().await {
        halves.retain(|_, (since, _)| since.elapsed() < BEGIN_MAX);
        let data = match stream.header("streamtype") {
            "data" => true,
            "error" => false,
            _ => continue,
        };
        // Old clients send no id: their data stream is the one after the error stream.
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
        let mut piece = vec![0; PIECE];
        while let Ok(count @ 1..) = read.read(&mut piece).await {
            if !output.send(Bytes::copy_from_slice(&piece[..count])).await {
                return;
            }
        }
        output.end().await;
    };
    // The pod has said everything: what the client still sends has no reader.
    let mut upload = std::pin::pin!(upload);
    let mut download = std::pin::pin!(download);
    tokio::select! {
        () = &mut download => {}
        () = &mut upload => download.await,
    }
    error.end().await;
}

/// Two channels of one WebSocket for each port: data, and errors as text.
async fn channels(io: Io, framing: Framing, ports: Vec<u16>, pod: Pod) {
    let (mut sink, mut source) = websocket::open(io).await;
    let (said, mut messages) = mpsc::channel::<Message>(WAITING);
    let writing = tokio::spawn(async move {
        while let Some(message) = messages.recv().await {
            if sink.send(message).await.is_err() {
                return;
            }
        }
        let _ = sink.send(websocket::goodbye()).await;
    });
    let mut feeds = Vec::new();
    for (place, port) in ports.into_iter().enumerate() {
        let channel = 2 * place as u8;
        for channel in [channel, channel + 1] {
            let _ = said.send(framing.encode(channel, &port.to_le_bytes())).await;
        }
        let (feed, input) = mpsc::channel(WAITING);
        feeds.push(feed);
        tokio::spawn(port_channels(port, channel, framing, input, said.clone(), pod.clone()));
    }
    drop(said);
    let reading = async {
        while let Some(Ok(message)) = source.next().await {
            let Some((channel, bytes)) = framing.decode(message) else { continue };
            // Whatever comes on the error channels is nothing.
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
    // The client left: the connections end with their feeds.
    drop(feeds);
    writing.abort();
}

async fn port_channels(
    port: u16,
    channel: u8,
    framing: Framing,
    mut input: mpsc::Receiver<Bytes>,
    said: mpsc::Sender<Message>,
    pod: Pod,
) {
    let socket = match pod.connect(port).await {
        Ok(socket) => socket,
        Err(why) => {
            let _ = said.send(framing.encode(channel + 1, why.as_bytes())).await;
            return;
        }
    };
    let (mut read, mut write) = socket.into_split();
    let mut piece = vec![0; PIECE];
    let upload = async {
        while let Some(bytes) = input.recv().await {
            if write.write_all(&bytes).await.is_err() {
                return;
            }
        }
    };
    let download = async {
        while let Ok(count @ 1..) = read.read(&mut piece).await {
            if said.send(framing.encode(channel, &piece[..count])).await.is_err() {
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
    fn a_241_ports_come_one_by_one_or_in_a_list() {
        assert_eq!(ports(["80", "443"].into_iter()), Ok(vec![80, 443]));
        assert_eq!(ports(["80,443"].into_iter()), Ok(vec![80, 443]));
        assert_eq!(ports([].into_iter()), Err("query parameter \"ports\" is required".into()));
        assert!(ports(["0"].into_iter()).is_err() && ports(["x"].into_iter()).is_err());
    }
}
