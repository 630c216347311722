//! DNS over TCP: several requests per connection, also before the first is answered.

use super::limits::Shares;
use super::message::Transport;
use super::server::{Outcome, Peer, Responder};
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

/// Connections at the same time, in total and per client.
pub(crate) const CONNECTIONS_MAX: usize = 512;
pub(crate) const CLIENT_CONNECTIONS_MAX: usize = 32;

/// A connection is closed if no complete request arrives for this long.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// A connection is closed if the client does not take a reply for this long.
const SEND_MAX: Duration = Duration::from_secs(5);

/// Requests of one connection that wait for upstream. No more are read until one is answered.
const FORWARDED_MAX: usize = 16;

/// Read at least this much at once.
const READ_SIZE: usize = 2048;

/// The wait after accepting failed, for example because there are too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections until it is dropped, which closes them. A connection above the limits is closed at once.
pub(crate) async fn serve(listener: TcpListener, responder: Arc<Responder>, shares: Arc<Shares>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, client)) => {
                    if let Some(share) = shares.take(client.ip()) {
                        let connection = Connection::new(stream, client.ip(), responder.clone());
                        connections.spawn(async move {
                            let _share = share;
                            let ended = connection.run().await;
                            tracing::trace!(%client, ?ended, "DNS connection ended");
                        });
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "accepting a DNS connection failed");
                    tokio::time::sleep(PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => (),
        }
    }
}

struct Connection {
    stream: TcpStream,
    peer: Peer,
    responder: Arc<Responder>,
    /// What was received and not yet answered; at most one request that is not complete.
    received: Vec<u8>,
    reply: Vec<u8>,
    forwarded: FuturesUnordered<BoxFuture<'static, Vec<u8>>>,
}

impl Connection {
    fn new(stream: TcpStream, client: IpAddr, responder: Arc<Responder>) -> Connection {
        Connection {
            stream,
            peer: Peer { address: client, transport: Transport::Tcp },
            responder,
            received: Vec::new(),
            reply: Vec::new(),
            forwarded: FuturesUnordered::new(),
        }
    }

    async fn run(mut self) -> std::io::Result<()> {
        let mut idle_at = Instant::now() + IDLE_MAX;
        let mut open = true;
        loop {
            while self.forwarded.len() < FORWARDED_MAX
                && let Some(request) = take_request(&mut self.received)
            {
                self.answer(&request).await?;
                idle_at = Instant::now() + IDLE_MAX;
            }
            if !open && self.forwarded.is_empty() {
                return Ok(());
            }
            self.received.reserve(READ_SIZE);
            tokio::select! {
                Some(reply) = self.forwarded.next() => {
                    send(&mut self.stream, &reply).await?;
                    idle_at = Instant::now() + IDLE_MAX;
                }
                read = self.stream.read_buf(&mut self.received),
                    if open && self.forwarded.len() < FORWARDED_MAX =>
                {
                    // The client may close its side and still wait for replies.
                    open = read? > 0;
                }
                () = sleep_until(idle_at), if self.forwarded.is_empty() => return Ok(()),
            }
        }
    }

    async fn answer(&mut self, request: &[u8]) -> std::io::Result<()> {
        match self.responder.respond(request, self.peer, &mut self.reply) {
            Outcome::Ignored => Err(std::io::ErrorKind::InvalidData.into()),
            Outcome::Answered => send(&mut self.stream, &self.reply).await,
            Outcome::Forwarded(pending) => {
                let responder = self.responder.clone();
                self.forwarded.push(Box::pin(async move {
                    let mut reply = Vec::new();
                    responder.complete(*pending, &mut reply).await;
                    reply
                }));
                Ok(())
            }
        }
    }
}

/// Removes a complete request, without its length, from the front.
fn take_request(received: &mut Vec<u8>) -> Option<Vec<u8>> {
    let length = usize::from(u16::from_be_bytes([*received.first()?, *received.get(1)?]));
    let request = received.get(2..2 + length)?.to_vec();
    received.drain(..2 + length);
    Some(request)
}

async fn send(stream: &mut TcpStream, reply: &[u8]) -> std::io::Result<()> {
    let length = u16::try_from(reply.len()).map_err(|_| std::io::ErrorKind::InvalidData)?;
    let mut framed = Vec::with_capacity(2 + reply.len());
    framed.extend_from_slice(&length.to_be_bytes());
    framed.extend_from_slice(reply);
    timeout(SEND_MAX, stream.write_all(&framed)).await?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dns::dns_metrics::DnsMetrics;
    use crate::dns::forward::Forwarder;
    use crate::dns::resolv_conf::Sources;
    use crate::dns::zone::tests::incomplete_zone;

    /// A client that sends a part of a request from time to time does not keep its connection.
    #[tokio::test(start_paused = true)]
    async fn connection_without_a_complete_request_is_closed() {
        let sources = Sources {
            resolv_conf: "/nonexistent".into(),
            systemd_resolv_conf: "/nonexistent".into(),
            port: 53,
            own: Vec::new(),
        };
        let forwarder = Forwarder::new(sources);
        let (zone, metrics) = (incomplete_zone(), DnsMetrics::new());
        let responder = Arc::new(Responder { zone, forwarder, metrics });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let server = tokio::spawn(serve(listener, responder, Shares::new(1, 1)));
        let started = Instant::now();
        client.write_all(&[0, 50, 1]).await.unwrap();
        assert_eq!(client.read(&mut [0; 1]).await.unwrap_or_default(), 0);
        assert!(started.elapsed() >= IDLE_MAX && started.elapsed() < 2 * IDLE_MAX);
        server.abort();
    }
}
