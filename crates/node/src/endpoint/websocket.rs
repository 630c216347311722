//! WebSocket: channels of an exec or attach, logs, and messages as bytes
//!

use super::answer::Answer;
use super::remote::{self, Ended, FromClient, ToClient, Wanted};
use super::upgrade::{Io, Upgrade};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use bytes::Bytes;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use runtime::Output;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};

/// The largest message taken from a client.
const MESSAGE_MAX: usize = 16 << 20;
/// How long a client may take to close after we have.
const CLOSE_MAX: Duration = Duration::from_secs(10);
/// Messages waiting for the process to take them.
const WAITING: usize = 16;
const PIECE: usize = 32 * 1024;

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
/// v5: the next byte names a channel on which nothing more will come.
const CLOSE: u8 = 255;

const EXEC_PROTOCOLS: &[&str] = &[
    "v5.channel.k8s.io",
    "v4.channel.k8s.io",
    "v4.base64.channel.k8s.io",
    "channel.k8s.io",
    "base64.channel.k8s.io",
];

pub(super) type Sink = SplitSink<WebSocketStream<Io>, Message>;
pub(super) type Source = SplitStream<WebSocketStream<Io>>;

pub(super) async fn open(io: Io) -> (Sink, Source) {
    let config = WebSocketConfig::default()
        .max_message_size(Some(MESSAGE_MAX))
        .max_frame_size(Some(MESSAGE_MAX));
    WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await.split()
}

/// How a channel and its bytes become a message.
#[derive(Clone, Copy)]
pub(super) struct Framing {
    base64: bool,
}

impl Framing {
    pub(super) fn of(protocol: &str) -> Framing {
        Framing { base64: protocol.contains("base64") }
    }

    pub(super) fn encode(self, channel: u8, bytes: &[u8]) -> Message {
        if self.base64 {
            return Message::text(format!("{channel}{}", BASE64.encode(bytes)));
        }
        let mut message = Vec::with_capacity(bytes.len() + 1);
        message.push(channel);
        message.extend_from_slice(bytes);
        Message::binary(message)
    }

    /// Clients send text or binary as they like. None: nothing for us in it.
    pub(super) fn decode(self, message: Message) -> Option<(u8, Bytes)> {
        let mut data = match message {
            Message::Text(_) | Message::Binary(_) => message.into_data(),
            _ => return None,
        };
        let channel = *data.first()?;
        let rest = data.split_off(1);
        match self.base64 {
            false => Some((channel, rest)),
            true => Some((channel.checked_sub(b'0')?, BASE64.decode(&rest).ok()?.into())),
        }
    }
}

/// Exec or attach over channels.
pub(super) fn remote(upgrade: Upgrade, wanted: Wanted) -> Answer {
    let protocol = match upgrade.choose(EXEC_PROTOCOLS) {
        Ok(protocol) => protocol,
        Err(refused) => return *refused,
    };
    upgrade.accept(protocol, move |io| async move {
        let framing = Framing::of(protocol);
        let (mut sink, source) = open(io).await;
        // Tells the client that we have begun.
        let first = match (wanted.exec.stdout, wanted.exec.stderr) {
            (true, _) => STDOUT,
            (false, true) => STDERR,
            (false, false) => ERROR,
        };
        if sink.send(framing.encode(first, b"")).await.is_err() {
            return;
        }
        let (said, from) = mpsc::channel(WAITING);
        tokio::spawn(listen(source, framing, protocol.starts_with("v5"), said));
        let to = Channels {
            sink,
            framing,
            status: protocol.starts_with('v'),
            stdout: wanted.exec.stdout,
            stderr: wanted.exec.stderr,
        };
        remote::run(wanted, from, to).await;
    })
}

async fn listen(mut source: Source, framing: Framing, v5: bool, said: mpsc::Sender<FromClient>) {
    while let Some(Ok(message)) = source.next().await {
        let heard = match framing.decode(message) {
            Some((STDIN, bytes)) => FromClient::Stdin(bytes),
            Some((RESIZE, bytes)) => match remote::size(&bytes) {
                Some(size) => FromClient::Resize(size),
                None => continue,
            },
            Some((CLOSE, channel)) if v5 && *channel == [STDIN] => FromClient::StdinEnd,
            _ => continue,
        };
        if said.send(heard).await.is_err() {
            break;
        }
    }
    drop(said);
    drain(source).await;
}

/// Hears the client out, so that what we said last is not lost with a connection that is reset.
pub(super) async fn drain(mut source: Source) {
    let rest = async { while let Some(Ok(_)) = source.next().await {} };
    let _ = tokio::time::timeout(CLOSE_MAX, rest).await;
}

pub(super) fn goodbye() -> Message {
    Message::Close(Some(CloseFrame { code: CloseCode::Normal, reason: "".into() }))
}

struct Channels {
    sink: Sink,
    framing: Framing,
    /// The end is told as a Status.
    status: bool,
    stdout: bool,
    stderr: bool,
}

impl ToClient for Channels {
    async fn send(&mut self, output: Output) -> bool {
        let (channel, bytes, wanted) = match output {
            Output::Stdout(bytes) => (STDOUT, bytes, self.stdout),
            Output::Stderr(bytes) => (STDERR, bytes, self.stderr),
        };
        !wanted || self.sink.send(self.framing.encode(channel, &bytes)).await.is_ok()
    }

    async fn finish(mut self, ended: Ended) {
        let said = match self.status {
            true => ended.status().to_string(),
            false => ended.text(),
        };
        if !said.is_empty() {
            let _ = self.sink.send(self.framing.encode(ERROR, said.as_bytes())).await;
        }
        let _ = self.sink.send(goodbye()).await;
    }
}

/// A stream of bytes to a client that only listens. `feeding` runs until the client leaves.
pub(super) fn stream(
    upgrade: Upgrade,
    feeding: impl Future<Output = ()> + Send + 'static,
    mut pieces: mpsc::Receiver<Bytes>,
) -> Answer {
    let protocol = match upgrade.choose(&["binary.k8s.io", "base64.binary.k8s.io"]) {
        Ok(protocol) => protocol,
        Err(refused) => return *refused,
    };
    let base64 = protocol.starts_with("base64");
    let encode = move |bytes: Bytes| match base64 {
        true => Message::text(BASE64.encode(bytes)),
        false => Message::binary(bytes),
    };
    upgrade.accept(protocol, move |io| async move {
        let (mut sink, source) = open(io).await;
        let feeding = tokio::spawn(feeding);
        let mut listening = tokio::spawn(heard_out(source));
        let mut next = Some(Bytes::new());
        while let Some(piece) = next {
            if sink.send(encode(piece)).await.is_err() {
                break;
            }
            next = tokio::select! {
                piece = pieces.recv() => piece,
                _ = &mut listening => None,
            };
        }
        feeding.abort();
        let _ = sink.send(goodbye()).await;
        let _ = tokio::time::timeout(CLOSE_MAX, &mut listening).await;
        listening.abort();
    })
}

async fn heard_out(mut source: Source) {
    while let Some(Ok(_)) = source.next().await {}
}

/// The bytes of all messages as one stream, both ways.
pub(super) fn bytes((mut sink, mut source): (Sink, Source)) -> DuplexStream {
    let (ours, theirs) = tokio::io::duplex(2 * PIECE);
    let (mut read, mut write) = tokio::io::split(theirs);
    tokio::spawn(async move {
        while let Some(Ok(message)) = source.next().await {
            let data = match message {
                Message::Text(_) | Message::Binary(_) => message.into_data(),
                _ => continue,
            };
            if write.write_all(&data).await.is_err() {
                break;
            }
        }
        drop(write.shutdown().await);
        drain(source).await;
    });
    tokio::spawn(async move {
        let mut piece = vec![0; PIECE];
        while let Ok(count @ 1..) = read.read(&mut piece).await {
            if sink.send(Message::binary(piece[..count].to_vec())).await.is_err() {
                return;
            }
        }
        let _ = sink.send(goodbye()).await;
    });
    ours
}
