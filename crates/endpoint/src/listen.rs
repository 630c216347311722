//! Accepts connections: TLS, HTTP/1.1, upgrades, and when they are closed.

use crate::access::{self, Access, User};
use crate::endpoint::{Endpoint, State};
use crate::{response, routes};
use http_body::Body as _;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tls::{ActiveBody, Admitted, Connections};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// Time from the end of one request to the headers of the next. `tls::Connections` gives the
/// first request less.
const HEADERS_MAX: Duration = Duration::from_secs(90);

/// Connections to the endpoint: one per log, exec or port-forward stream, and those of scrapers.
/// Fewer if the limit of open files is low.
const CONNECTIONS_MAX: usize = 1000;
/// Connections to the health endpoint.
const HEALTH_CONNECTIONS_MAX: usize = 64;

/// A running endpoint. It keeps running if this is dropped; [`Serving::stop`] stops it.
pub struct Serving {
    pub address: SocketAddr,
    stop: watch::Sender<bool>,
    accepting: JoinHandle<()>,
}

impl Serving {
    /// Accepts no more connections and closes the open ones.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        let _ = self.accepting.await;
    }
}

pub(crate) async fn serve(endpoint: Endpoint) -> std::io::Result<Serving> {
    let listener = TcpListener::bind(endpoint.listen).await?;
    let address = listener.local_addr()?;
    let acceptor = TlsAcceptor::from(endpoint.tls.clone());
    let access = Access::new(endpoint.node.clone(), endpoint.client.clone());
    let state =
        Arc::new(State { endpoint, access, started: clock::now(), rates: Default::default() });
    let (stop, stopped) = watch::channel(false);
    let accepting = tokio::spawn(accept(listener, acceptor, state, stopped));
    Ok(Serving { address, stop, accepting })
}

/// Serves `/healthz` over plain HTTP without authentication, for a supervisor of this process
/// (N-168). Stops when the returned handle is dropped.
pub async fn serve_health(listen: SocketAddr) -> std::io::Result<Health> {
    let listener = TcpListener::bind(listen).await?;
    let address = listener.local_addr()?;
    let accepting = tokio::spawn(async move {
        let connections = Connections::new(HEALTH_CONNECTIONS_MAX);
        loop {
            let (stream, _, admitted) = tls::accept(&listener, &connections).await;
            let usage = admitted.usage();
            let requests = usage.clone();
            let service = service_fn(move |request: http::Request<hyper::body::Incoming>| {
                let in_use = requests.begin();
                async move {
                    let response = match request.uri().path() {
                        "/healthz" => response::text(http::StatusCode::OK, "ok"),
                        _ => response::text(http::StatusCode::NOT_FOUND, "404 page not found\n"),
                    };
                    Ok::<_, Infallible>(response.map(|body| ActiveBody::new(body, in_use)))
                }
            });
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(HEADERS_MAX);
            let connection =
                http.serve_connection(TokioIo::new(admitted.count_until_closed(stream)), service);
            tokio::spawn(async move {
                tokio::select! {
                    _ = connection => {}
                    () = usage.expired() => {}
                }
            });
        }
    });
    Ok(Health { address, accepting })
}

/// See [`serve_health`].
pub struct Health {
    pub address: SocketAddr,
    accepting: JoinHandle<()>,
}

impl Drop for Health {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    state: Arc<State>,
    mut stopped: watch::Receiver<bool>,
) {
    let connections = Connections::new(CONNECTIONS_MAX.min(tls::connections_max() / 4));
    loop {
        let accepted = tokio::select! {
            _ = stopped.changed() => return,
            accepted = tls::accept(&listener, &connections) => accepted,
        };
        let (acceptor, state, mut stopped) = (acceptor.clone(), state.clone(), stopped.clone());
        tokio::spawn(async move {
            tokio::select! {
                _ = stopped.changed() => {}
                () = connection(acceptor, state, accepted) => {}
            }
        });
    }
}

async fn connection(
    acceptor: TlsAcceptor,
    state: Arc<State>,
    (stream, address, admitted): (TcpStream, SocketAddr, Admitted),
) {
    let Some((stream, usage)) = tls::handshake(&acceptor, stream, address, admitted).await else {
        return;
    };
    let certificates = stream.get_ref().get_ref().1.peer_certificates();
    let certificate = certificates.and_then(|chain| chain.first());
    let user: Option<Arc<User>> =
        certificate.and_then(|certificate| access::user_of_certificate(certificate)).map(Arc::new);
    let requests = usage.clone();
    let service = service_fn(move |request| {
        let (state, user, in_use) = (state.clone(), user.clone(), requests.begin());
        async move {
            let response = routes::handle(state, user, request).await;
            // A response of unknown length is a stream, which may be idle for long.
            let in_use = match response.body().size_hint().exact() {
                Some(_) => in_use,
                None => in_use.stream(),
            };
            Ok::<_, Infallible>(response.map(|body| ActiveBody::new(body, in_use)))
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADERS_MAX).half_close(false);
    let connection = http.serve_connection(TokioIo::new(stream), service).with_upgrades();
    let closed = tokio::select! {
        closed = connection => closed,
        () = usage.expired() => return,
    };
    // If the connection is still open, it was upgraded to a stream of exec, attach or port-forward.
    usage.upgraded();
    if let Err(error) = closed {
        tracing::debug!(%address, %error, "a connection to the node's endpoint failed");
    }
}
