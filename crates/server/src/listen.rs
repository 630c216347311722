//! Connections: TLS, HTTP/1.1 and HTTP/2, and how they end when the server does.

use crate::authn::user_of_certificate;
use crate::server::{Peer, Server};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// A client that opens a connection and asks nothing does not hold it for longer.
const HEADERS_MAX: Duration = Duration::from_secs(30);
/// What a connection may buffer of requests and answers; larger bodies pass through in pieces.
const BUFFER_MAX: usize = 64 * 1024;
/// Upstream's limit of streams on one HTTP/2 connection.
const STREAMS_MAX: u32 = 250;
/// How long requests in flight may take to finish once the server was told to stop.
const DRAIN_MAX: Duration = Duration::from_secs(10);

/// Accepts connections until `stop` resolves, then lets requests in flight finish.
pub(crate) async fn serve(
    server: Server,
    listener: TcpListener,
    config: Arc<rustls::ServerConfig>,
    stop: impl Future<Output = ()>,
) {
    let acceptor = TlsAcceptor::from(config);
    let graceful = Arc::new(GracefulShutdown::new());
    let http = Arc::new(builder());
    let mut stop = std::pin::pin!(stop);
    loop {
        let (stream, address) = tokio::select! {
            () = &mut stop => break,
            accepted = tls::accepted(&listener) => accepted,
        };
        let (server, acceptor) = (server.clone(), acceptor.clone());
        let (http, watcher) = (http.clone(), graceful.watcher());
        tokio::spawn(connection(server, acceptor, http, watcher, stream, address));
    }
    drop(listener);
    server.close_watches();
    let Ok(graceful) = Arc::try_unwrap(graceful) else { return };
    if tokio::time::timeout(DRAIN_MAX, graceful.shutdown()).await.is_err() {
        tracing::warn!("some requests did not finish in time and were cut");
    }
}

fn builder() -> auto::Builder<TokioExecutor> {
    let mut http = auto::Builder::new(TokioExecutor::new());
    http.http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_MAX)
        .half_close(false)
        .max_buf_size(BUFFER_MAX);
    http.http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(64 * 1024)
        .initial_stream_window_size(256 * 1024)
        .initial_connection_window_size(1024 * 1024)
        .keep_alive_interval(Some(Duration::from_secs(30)));
    http
}

async fn connection(
    server: Server,
    acceptor: TlsAcceptor,
    http: Arc<auto::Builder<TokioExecutor>>,
    watcher: hyper_util::server::graceful::Watcher,
    stream: TcpStream,
    address: SocketAddr,
) {
    let Some(stream) = tls::shaken(&acceptor, stream, address).await else { return };
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let user = match certificate.map(|certificate| user_of_certificate(certificate)) {
        None => None,
        Some(Ok(user)) => Some(Arc::new(user)),
        Some(Err(error)) => {
            tracing::warn!(%address, %error, "a client certificate names nobody");
            return;
        }
    };
    let peer = Arc::new(Peer { user, address: address.ip().to_string() });
    let service = service_fn(move |request| {
        let (server, peer) = (server.clone(), peer.clone());
        // Boxed: a connection that waits for its next request, or streams a watch, would keep room
        // for everything the largest request needs.
        Box::pin(async move { Ok::<_, Infallible>(server.handle(request, &peer).await) })
    });
    let connection = http.serve_connection_with_upgrades(TokioIo::new(stream), service);
    if let Err(error) = watcher.watch(connection.into_owned()).await {
        tracing::debug!(%address, %error, "a connection ended badly");
    }
}
