//! WebSocket: the channels of exec and attach, log streams, and a tunnel
//! of bytes.

use crate::remote_command::{self, ClientInput, ClientOutput, Outcome, RemoteCommand};
use crate::response::Response;
use crate::upgrade::{Io, Upgrade};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use bytes::Bytes;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use runtime::Output;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::sync::{mpsc, oneshot};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};

/// Limit of a message from a client.
const MESSAGE_MAX: usize = 16 << 20;
/// How long a client may take to close the connection after our close message.
const CLOSE_MAX: Duration = Duration::from_secs(10);
/// How long we wait for the answer to our first ping before we send output anyway.
const PONG_MAX: Duration = Duration::from_secs(1);
/// Messages queued for the process.
const QUEUE: usize = 16;
/// Bytes per message.
const CHUNK: usize = 32 * 1024;

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
/// v5: the next byte is the number of a channel that the client closes.
const CLOSE: u8 = 255;

const EXEC_PROTOCOLS: &[&str] = &[
    "v5.channel.k8s.io",
    "v4.channel.k8s.io",
    "v4.base64.channel.k8s.io",
    "channel.k8s.io",
    "base64.channel.k8s.io",
];

pub(crate) type Sink = SplitSink<WebSocketStream<Io>, Message>;
pub(crate) type Source = SplitStream<WebSocketStream<Io>>;

pub(crate) async fn open(io: Io) -> (Sink, Source) {
    let config = WebSocketConfig::default()
        .max_message_size(Some(MESSAGE_MAX))
        .max_frame_size(Some(MESSAGE_MAX));
    WebSocketStream::from_raw_socket(io, Role::Server, Some(config)).await.split()
}

/// How a message contains a channel number and data.
#[derive(Clone, Copy)]
pub(crate) struct Framing {
    base64: bool,
}

impl Framing {
    pub(crate) fn of(protocol: &str) -> Framing {
        Framing { base64: protocol.contains("base64") }
    }

    pub(crate) fn encode(self, channel: u8, bytes: &[u8]) -> Message {
        if self.base64 {
            return Message::text(format!("{channel}{}", BASE64.encode(bytes)));
        }
        let mut message = Vec::with_capacity(bytes.len() + 1);
        message.push(channel);
        message.extend_from_slice(bytes);
        Message::binary(message)
    }

    /// Clients may send text or binary messages. None for other messages and malformed ones.
    pub(crate) fn decode(self, message: Message) -> Option<(u8, Bytes)> {
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
pub(crate) fn remote(upgrade: Upgrade, command: RemoteCommand) -> Response {
    let protocol = match upgrade.choose(EXEC_PROTOCOLS) {
        Ok(protocol) => protocol,
        Err(rejection) => return *rejection,
    };
    upgrade.accept(protocol, move |io| async move {
        let framing = Framing::of(protocol);
        let (mut sink, source) = open(io).await;
        // An empty message tells the client that the stream is open.
        let first = match (command.exec.stdout, command.exec.stderr) {
            (true, _) => STDOUT,
            (false, true) => STDERR,
            (false, false) => ERROR,
        };
        // If the client has left already, the command runs all the same, as if it left a moment later (N-164).
        let _ = sink.send(framing.encode(first, b"")).await;
        let _ = sink.send(Message::Ping(Bytes::new())).await;
        let (to_command, input) = mpsc::channel(QUEUE);
        let (reads, pong) = oneshot::channel();
        tokio::spawn(read_input(source, framing, protocol.starts_with("v5"), to_command, reads));
        let to = Channels {
            sink,
            pong: Some(pong),
            framing,
            status: protocol.starts_with('v'),
            stdout: command.exec.stdout,
            stderr: command.exec.stderr,
        };
        remote_command::run(command, input, to).await;
    })
}

async fn read_input(
    mut source: Source,
    framing: Framing,
    v5: bool,
    to_command: mpsc::Sender<ClientInput>,
    reads: oneshot::Sender<()>,
) {
    let mut reads = Some(reads);
    while let Some(Ok(message)) = source.next().await {
        if message.is_pong() {
            reads.take().map(|reads| reads.send(()));
        }
        let input = match framing.decode(message) {
            Some((STDIN, bytes)) => ClientInput::Stdin(bytes),
            Some((RESIZE, bytes)) => match remote_command::size(&bytes) {
                Some(size) => ClientInput::Resize(size),
                None => continue,
            },
            Some((CLOSE, channel)) if v5 && *channel == [STDIN] => ClientInput::StdinEnd,
            _ => continue,
        };
        if to_command.send(input).await.is_err() {
            break;
        }
    }
    drop((to_command, reads));
    drain(source).await;
}

/// Reads until the client closes. Closing before would reset the connection, and our last messages
/// could be lost.
pub(crate) async fn drain(mut source: Source) {
    let rest = async { while let Some(Ok(_)) = source.next().await {} };
    let _ = tokio::time::timeout(CLOSE_MAX, rest).await;
}

pub(crate) fn close_message() -> Message {
    Message::Close(Some(CloseFrame { code: CloseCode::Normal, reason: "".into() }))
}

struct Channels {
    sink: Sink,
    /// Resolves when the client has answered our first ping; taken when output starts.
    pong: Option<oneshot::Receiver<()>>,
    framing: Framing,
    /// Send the outcome as a Status, not as text.
    status: bool,
    stdout: bool,
    stderr: bool,
}

impl Channels {
    /// Waits until the client has created its streams. kubectl up to 1.33 starts to read before
    /// that and discards what arrives in between: without this, the output and the exit code of a
    /// short command are lost if they arrive together with the response to the upgrade.
    async fn wait_for_client(&mut self) {
        if let Some(pong) = self.pong.take() {
            let _ = tokio::time::timeout(PONG_MAX, pong).await;
        }
    }
}

impl ClientOutput for Channels {
    async fn send(&mut self, output: Output) -> bool {
        let (channel, bytes, requested) = match output {
            Output::Stdout(bytes) => (STDOUT, bytes, self.stdout),
            Output::Stderr(bytes) => (STDERR, bytes, self.stderr),
        };
        self.wait_for_client().await;
        !requested || self.sink.send(self.framing.encode(channel, &bytes)).await.is_ok()
    }

    async fn finish(mut self, outcome: Outcome) {
        self.wait_for_client().await;
        let text = match self.status {
            true => outcome.status().to_string(),
            false => outcome.text(),
        };
        if !text.is_empty() {
            let _ = self.sink.send(self.framing.encode(ERROR, text.as_bytes())).await;
        }
        let _ = self.sink.send(close_message()).await;
    }
}

/// Streams `chunks` to a client that sends nothing. Aborts `feeding`, which produces them, when the
/// client leaves.
pub(crate) fn stream(
    upgrade: Upgrade,
    feeding: impl Future<Output = ()> + Send + 'static,
    mut chunks: mpsc::Receiver<Bytes>,
) -> Response {
    let protocol = match upgrade.choose(&["binary.k8s.io", "base64.binary.k8s.io"]) {
        Ok(protocol) => protocol,
        Err(rejection) => return *rejection,
    };
    let base64 = protocol.starts_with("base64");
    let encode = move |bytes: Bytes| match base64 {
        true => Message::text(BASE64.encode(bytes)),
        false => Message::binary(bytes),
    };
    upgrade.accept(protocol, move |io| async move {
        let (mut sink, source) = open(io).await;
        let feeding = tokio::spawn(feeding);
        let mut reading = tokio::spawn(read_to_end(source));
        let mut next = Some(Bytes::new());
        while let Some(chunk) = next {
            if sink.send(encode(chunk)).await.is_err() {
                break;
            }
            next = tokio::select! {
                chunk = chunks.recv() => chunk,
                _ = &mut reading => None,
            };
        }
        feeding.abort();
        let _ = sink.send(close_message()).await;
        let _ = tokio::time::timeout(CLOSE_MAX, &mut reading).await;
        reading.abort();
    })
}

async fn read_to_end(mut source: Source) {
    while let Some(Ok(_)) = source.next().await {}
}

/// The data of all messages as one byte stream in each direction.
pub(crate) fn tunnel((mut sink, mut source): (Sink, Source)) -> DuplexStream {
    let (ours, theirs) = tokio::io::duplex(2 * CHUNK);
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
        let mut chunk = vec![0; CHUNK];
        while let Ok(count @ 1..) = read.read(&mut chunk).await {
            if sink.send(Message::binary(chunk[..count].to_vec())).await.is_err() {
                return;
            }
        }
        let _ = sink.send(close_message()).await;
    });
    ours
}
