//! The first second of a connection: taking it, and the handshake.

use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// A client that opens a connection and says nothing does not hold it for longer.
const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
/// Before trying to take a connection again.
const TAKE_AGAIN: Duration = Duration::from_millis(50);

/// The next connection. Cancel-safe.
pub async fn accepted(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) => {
                // Out of file descriptors, most likely: wait for some to be closed.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(TAKE_AGAIN).await;
            }
        }
    }
}

/// The connection after its handshake; None if there was none in time.
pub async fn shaken(
    acceptor: &TlsAcceptor,
    stream: TcpStream,
    address: SocketAddr,
) -> Option<TlsStream<TcpStream>> {
    let _ = stream.set_nodelay(true);
    match tokio::time::timeout(HANDSHAKE_MAX, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(%address, %error, "a TLS handshake failed");
            None
        }
        Err(_) => None,
    }
}
