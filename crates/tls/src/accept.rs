//! Accepts connections and does the TLS handshake.

use crate::connections::{Admitted, Connections, CountedStream, Usage};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// How long a handshake may take.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// The pause after a failed accept.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// The next connection within the limits; others are closed. Cancel-safe.
pub async fn accept(
    listener: &TcpListener,
    connections: &Connections,
) -> (TcpStream, SocketAddr, Admitted) {
    loop {
        match listener.accept().await {
            Ok((stream, address)) => match connections.admit(address.ip()) {
                Some(admitted) => return (stream, address, admitted),
                None => {
                    tracing::debug!(%address, "closed a new connection: too many connections are busy")
                }
            },
            Err(error) => {
                // Probably out of file descriptors: wait until some are closed.
                tracing::warn!(%error, "accepting a connection failed");
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
    }
}

/// Does the handshake; None if it fails or takes too long.
pub async fn handshake(
    acceptor: &TlsAcceptor,
    stream: TcpStream,
    address: SocketAddr,
    admitted: Admitted,
) -> Option<(CountedStream<TlsStream<TcpStream>>, Usage)> {
    let _ = stream.set_nodelay(true);
    let usage = admitted.usage();
    let result = tokio::select! {
        result = tokio::time::timeout(HANDSHAKE_MAX, acceptor.accept(stream)) => result,
        () = usage.expired() => return None,
    };
    match result {
        Ok(Ok(stream)) => Some((admitted.count_until_closed(stream), usage)),
        Ok(Err(error)) => {
            tracing::debug!(%address, %error, "TLS handshake failed");
            None
        }
        Err(_) => None,
    }
}
