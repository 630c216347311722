//! SPDY/3.1, which kubectl before 1.30 speaks for everything and later ones fall back to (A-236 to
//!
//!
//! `frame` is bytes to frames, `headers` the compressed blocks in them, `connection` turns a
//! connection into streams. Here: the streams of an exec or attach.

mod connection;
mod frame;
mod headers;

pub(super) use connection::{Connection, Sender, Stream};

use super::answer::Answer;
use super::remote::{self, BEGIN_MAX, Ended, FromClient, ToClient, Wanted};
use super::upgrade::Upgrade;
use bytes::Bytes;
use runtime::{Exec, Output};
use std::collections::BTreeMap;
use tokio::sync::mpsc;

const PROTOCOLS: &[&str] =
    &["v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"];
/// Pieces waiting for the process to take them.
const WAITING: usize = 16;

/// Exec or attach over streams.
pub(super) fn remote(upgrade: Upgrade, wanted: Wanted) -> Answer {
    let protocol = match upgrade.choose(PROTOCOLS) {
        Ok(protocol) => protocol,
        Err(refused) => return *refused,
    };
    upgrade.accept(protocol, move |io| async move {
        let mut connection = Connection::new(io);
        let sizes =
            wanted.exec.tty && matches!(protocol, "v4.channel.k8s.io" | "v3.channel.k8s.io");
        let expected = expected(&wanted.exec, sizes);
        let collected = collect(&mut connection, &expected);
        let Ok(Some(mut streams)) = tokio::time::timeout(BEGIN_MAX, collected).await else {
            tracing::debug!("a client did not open its streams in time");
            return connection.close().await;
        };
        let (said, from) = mpsc::channel(WAITING);
        let stdin = streams.remove("stdin").map(|stream| stream.input);
        let sizes = streams.remove("resize").map(|stream| stream.input);
        let mut writer = |name: &str| streams.remove(name).map(|stream| stream.output);
        let Some(error) = writer("error") else { return };
        let (stdout, stderr) = (writer("stdout"), writer("stderr"));
        let ended = connection.ended();
        let listening = tokio::spawn(listen(stdin, sizes, said, ended));
        let to = Streams { stdout, stderr, error, status: protocol.starts_with("v4") };
        remote::run(wanted, from, to).await;
        connection.close().await;
        listening.abort();
    })
}

fn expected(exec: &Exec, sizes: bool) -> Vec<&'static str> {
    let wanted = [
        ("error", true),
        ("stdin", exec.stdin),
        ("stdout", exec.stdout),
        ("stderr", exec.stderr),
        ("resize", sizes),
    ];
    wanted.into_iter().filter(|(_, wanted)| *wanted).map(|(name, _)| name).collect()
}

/// All streams that were announced by the query, whatever their order.
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

async fn listen(
    stdin: Option<mpsc::Receiver<Bytes>>,
    sizes: Option<mpsc::Receiver<Bytes>>,
    said: mpsc::Sender<FromClient>,
    ended: impl Future<Output = ()>,
) {
    let input = async {
        let Some(mut stdin) = stdin else { return };
        while let Some(bytes) = stdin.recv().await {
            if said.send(FromClient::Stdin(bytes)).await.is_err() {
                return;
            }
        }
        let _ = said.send(FromClient::StdinEnd).await;
    };
    let sizes = async {
        let Some(mut sizes) = sizes else { return };
        let mut begun = Vec::new();
        while let Some(bytes) = sizes.recv().await {
            begun.extend_from_slice(&bytes);
            // One object per line; a terminal has no long ones.
            while let Some(end) = begun.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = begun.drain(..=end).collect();
                if let Some(size) = remote::size(&line) {
                    let _ = said.send(FromClient::Resize(size)).await;
                }
            }
            if begun.len() > 1024 {
                return;
            }
        }
    };
    // `said` is dropped when the connection has ended, not when the client has no more to say.
    tokio::join!(input, sizes, ended);
}

struct Streams {
    stdout: Option<Sender>,
    stderr: Option<Sender>,
    error: Sender,
    /// The end is told as a Status.
    status: bool,
}

impl ToClient for Streams {
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

    async fn finish(self, ended: Ended) {
        let said = match self.status {
            true => ended.status().to_string(),
            false => ended.text(),
        };
        if !said.is_empty() {
            self.error.send(said.into()).await;
        }
        for stream in [Some(self.error), self.stdout, self.stderr].into_iter().flatten() {
            stream.end().await;
        }
    }
}
