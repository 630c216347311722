//! Exec and attach over SPDY/3.1, which kubectl before 1.30 always speaks and later versions fall
//! back to. The protocol itself is the crate `spdy`.

use crate::remote_command::{
    self, BEGIN_MAX, ClientInput, ClientOutput, IDLE_MAX, Outcome, RemoteCommand,
};
use crate::response::Response;
use crate::upgrade::Upgrade;
use bytes::Bytes;
use runtime::{Exec, Output};
use spdy::server::{Connection, Sender, Stream};
use std::collections::BTreeMap;
use tokio::sync::mpsc;

const PROTOCOLS: &[&str] =
    &["v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"];
/// Chunks queued for the process.
const QUEUE: usize = 16;

/// Limit of a line with a terminal size.
const SIZE_LINE_MAX: usize = 1024;

/// Runs an exec or attach over SPDY streams.
pub(crate) fn remote(upgrade: Upgrade, command: RemoteCommand) -> Response {
    let protocol = match upgrade.choose(PROTOCOLS) {
        Ok(protocol) => protocol,
        Err(rejection) => return *rejection,
    };
    upgrade.accept(protocol, move |io| async move {
        let mut connection = Connection::new(io, IDLE_MAX);
        let sizes =
            command.exec.tty && matches!(protocol, "v4.channel.k8s.io" | "v3.channel.k8s.io");
        let expected = expected(&command.exec, sizes);
        let collected = collect(&mut connection, &expected);
        let Ok(Some(mut streams)) = tokio::time::timeout(BEGIN_MAX, collected).await else {
            tracing::debug!("a client did not open its SPDY streams in time");
            return connection.close().await;
        };
        let (to_command, input) = mpsc::channel(QUEUE);
        let stdin = streams.remove("stdin").map(|stream| stream.input);
        let sizes = streams.remove("resize").map(|stream| stream.input);
        let mut writer = |name: &str| streams.remove(name).map(|stream| stream.output);
        let Some(error) = writer("error") else { return };
        let (stdout, stderr) = (writer("stdout"), writer("stderr"));
        let ended = connection.ended();
        let reading = tokio::spawn(read_input(stdin, sizes, to_command, ended));
        let to = Streams { stdout, stderr, error, status: protocol.starts_with("v4") };
        remote_command::run(command, input, to).await;
        connection.close().await;
        reading.abort();
    })
}

fn expected(exec: &Exec, sizes: bool) -> Vec<&'static str> {
    let names = [
        ("error", true),
        ("stdin", exec.stdin),
        ("stdout", exec.stdout),
        ("stderr", exec.stderr),
        ("resize", sizes),
    ];
    names.into_iter().filter(|(_, expected)| *expected).map(|(name, _)| name).collect()
}

/// Waits until the client has opened all expected streams, in any order.
async fn collect(
    connection: &mut Connection,
    expected: &[&'static str],
) -> Option<BTreeMap<String, Stream>> {
    let mut streams = BTreeMap::new();
    while !expected.iter().all(|name| streams.contains_key(*name)) {
        let stream = connection.next().await?;
        streams.insert(stream.header("streamtype").to_owned(), stream);
    }
    Some(streams)
}

async fn read_input(
    stdin: Option<mpsc::Receiver<Bytes>>,
    sizes: Option<mpsc::Receiver<Bytes>>,
    to_command: mpsc::Sender<ClientInput>,
    ended: impl Future<Output = ()>,
) {
    let input = async {
        let Some(mut stdin) = stdin else { return };
        while let Some(bytes) = stdin.recv().await {
            if to_command.send(ClientInput::Stdin(bytes)).await.is_err() {
                return;
            }
        }
        let _ = to_command.send(ClientInput::StdinEnd).await;
    };
    let sizes = async {
        let Some(mut sizes) = sizes else { return };
        let mut buffer = Vec::new();
        while let Some(bytes) = sizes.recv().await {
            buffer.extend_from_slice(&bytes);
            // One JSON object per line, and lines are short.
            while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = buffer.drain(..=end).collect();
                if let Some(size) = remote_command::size(&line) {
                    let _ = to_command.send(ClientInput::Resize(size)).await;
                }
            }
            if buffer.len() > SIZE_LINE_MAX {
                return;
            }
        }
    };
    // `to_command` is dropped when the connection is closed, not at the end of stdin.
    tokio::join!(input, sizes, ended);
}

struct Streams {
    stdout: Option<Sender>,
    stderr: Option<Sender>,
    error: Sender,
    /// Send the outcome as a Status, not as text.
    status: bool,
}

impl ClientOutput for Streams {
    async fn send(&mut self, output: Output) -> bool {
        let (stream, bytes) = match output {
            Output::Stdout(bytes) => (&self.stdout, bytes),
            Output::Stderr(bytes) => (&self.stderr, bytes),
        };
        match stream {
            Some(stream) => stream.send(bytes).await,
            None => true,
        }
    }

    async fn finish(self, outcome: Outcome) {
        let text = match self.status {
            true => outcome.status().to_string(),
            false => outcome.text(),
        };
        if !text.is_empty() {
            self.error.send(text.into()).await;
        }
        for stream in [Some(self.error), self.stdout, self.stderr].into_iter().flatten() {
            stream.end().await;
        }
    }
}
