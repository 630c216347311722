//! DNS over UDP: several loops on one socket.

use super::message::{Transport, UDP_REPLY_MAX, UDP_REQUEST_MAX};
use super::server::{Outcome, Peer, Pending, Responder};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UdpSocket;

/// The wait after the socket failed, so that a lasting failure does not use a whole core.
const PAUSE: Duration = Duration::from_millis(10);

/// Answers requests until it is dropped. The number of forwarded requests is bounded by the forwarder.
pub(crate) async fn serve(socket: Arc<UdpSocket>, responder: Arc<Responder>) {
    let mut request = vec![0; usize::from(UDP_REQUEST_MAX)];
    let mut reply = Vec::with_capacity(usize::from(UDP_REPLY_MAX));
    let mut forwarded = FuturesUnordered::new();
    loop {
        let (length, client) = tokio::select! {
            received = socket.recv_from(&mut request) => match received {
                Ok(received) => received,
                Err(error) => {
                    tracing::debug!(%error, "receiving a DNS request failed");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            },
            Some(()) = forwarded.next() => continue,
        };
        let peer = Peer { address: client.ip(), transport: Transport::Udp };
        match responder.respond(&request[..length], peer, &mut reply) {
            Outcome::Ignored => (),
            Outcome::Answered => send(&socket, &reply, client),
            Outcome::Forwarded(pending) => {
                forwarded.push(forward(&socket, &responder, *pending, client));
            }
        }
    }
}

async fn forward(socket: &UdpSocket, responder: &Responder, pending: Pending, client: SocketAddr) {
    let mut reply = Vec::new();
    responder.complete(pending, &mut reply).await;
    send(socket, &reply, client);
}

/// UDP may lose a reply, so a reply that cannot be sent at once is dropped: the client asks again.
fn send(socket: &UdpSocket, reply: &[u8], client: SocketAddr) {
    if let Err(error) = socket.try_send_to(reply, client) {
        tracing::debug!(%error, %client, "sending a DNS reply failed");
    }
}
