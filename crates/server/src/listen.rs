//! Serves connections: TLS, HTTP/1.1 and HTTP/2, and their end when the server stops.
//!
//! Not here: limits on the number and idle time of connections (`tls::Connections`).

use crate::response::ApiResponse;
use crate::response::body::Body;
use crate::server::{Peer, Server};
use access::authn::user_of_certificate;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tls::{ActiveBody, ActiveRequest, Admitted, Connections};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

/// The time from the end of one request to the headers of the next. `tls::Connections` limits the time to the first
/// request.
const HEADERS_MAX: Duration = Duration::from_secs(90);
/// The buffer of a connection; larger bodies pass through in chunks.
const BUFFER_MAX: usize = 64 * 1024;
/// Upstream's limit of streams on one HTTP/2 connection.
const STREAMS_MAX: u32 = 250;
/// How long closing an expired connection may take.
const CLOSE_MAX: Duration = Duration::from_secs(1);
/// How long requests in flight may take to finish when the server stops.
const DRAIN_MAX: Duration = Duration::from_secs(10);

/// Everything that serves connections, for any number of listeners.
pub(crate) struct Listeners {
    server: Server,
    acceptor: TlsAcceptor,
    connections: Connections,
    http: Arc<auto::Builder<TokioExecutor>>,
    /// Every listener has a receiver, so the sender notices when the last one is closed.
    closing: watch::Sender<bool>,
    /// The same for every connection.
    stopping: watch::Sender<bool>,
}

impl Listeners {
    pub(crate) fn new(server: Server, config: Arc<rustls::ServerConfig>) -> Arc<Listeners> {
        Arc::new(Listeners {
            server,
            acceptor: TlsAcceptor::from(config),
            connections: Connections::new(tls::connections_max()),
            http: Arc::new(builder()),
            closing: watch::Sender::new(false),
            stopping: watch::Sender::new(false),
        })
    }

    /// Accepts connections on this listener too, until the server stops.
    pub(crate) fn accept_on(self: &Arc<Self>, listener: TcpListener) {
        let (this, mut closing) = (self.clone(), self.closing.subscribe());
        tokio::spawn(async move {
            let mut closed = std::pin::pin!(closing.wait_for(|closing| *closing));
            loop {
                let accepted = tokio::select! {
                    _ = &mut closed => break,
                    accepted = tls::accept(&listener, &this.connections) => accepted,
                };
                let stopped = this.stopping.subscribe();
                let (server, acceptor) = (this.server.clone(), this.acceptor.clone());
                tokio::spawn(connection(server, acceptor, this.http.clone(), stopped, accepted));
            }
        });
    }

    /// Waits until `stop` resolves. Then closes the listeners and lets requests in flight finish.
    pub(crate) async fn serve_until(self: Arc<Self>, stop: impl Future<Output = ()>) {
        stop.await;
        self.closing.send_replace(true);
        self.closing.closed().await;
        self.server.close_watches();
        self.stopping.send_replace(true);
        if tokio::time::timeout(DRAIN_MAX, self.stopping.closed()).await.is_err() {
            tracing::warn!("cancelled requests that did not finish in time");
        }
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
    mut stopped: watch::Receiver<bool>,
    (stream, address, admitted): (TcpStream, SocketAddr, Admitted),
) {
    let Some((stream, usage)) = tls::handshake(&acceptor, stream, address, admitted).await else {
        return;
    };
    let certificates = stream.get_ref().get_ref().1.peer_certificates();
    let certificate = certificates.and_then(|chain| chain.first());
    let user = match certificate.map(|certificate| user_of_certificate(certificate)) {
        None => None,
        Some(Ok(user)) => Some(Arc::new(user)),
        Some(Err(error)) => {
            tracing::warn!(%address, %error, "refused a client certificate without a user");
            return;
        }
    };
    let peer = Arc::new(Peer { user, address: address.ip().to_string(), in_process: false });
    let requests = usage.clone();
    let service = service_fn(move |request| {
        let (server, peer, active) = (server.clone(), peer.clone(), requests.begin());
        // Boxed: otherwise idle connections and watches would keep the memory that the largest request needs.
        Box::pin(async move {
            Ok::<_, Infallible>(active_until_sent(active, server.handle(request, &peer).await))
        })
    });
    let connection = http.serve_connection_with_upgrades(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let closed = tokio::select! {
        closed = connection.as_mut() => Some(closed),
        () = usage.expired() => {
            connection.as_mut().graceful_shutdown();
            tokio::time::timeout(CLOSE_MAX, connection).await.ok()
        }
        () = async { drop(stopped.wait_for(|stopped| *stopped).await) } => {
            connection.as_mut().graceful_shutdown();
            Some(connection.await)
        }
    };
    // If the connection still exists, it was upgraded.
    usage.upgraded();
    if let Some(Err(error)) = closed {
        tracing::debug!(%address, %error, "connection failed");
    }
}

/// Counts the request as active until its response is sent.
fn active_until_sent(
    request: ActiveRequest,
    response: ApiResponse,
) -> http::Response<ActiveBody<Body>> {
    response.map(|body| {
        let request = if matches!(body, Body::Stream(_)) { request.stream() } else { request };
        ActiveBody::new(body, request)
    })
}
