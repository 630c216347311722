//! Connections: TLS, HTTP/1.1, upgrades, and how they end.

use super::access::{self, Access, User};
use super::{Endpoint, State, answer, routes};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// A client that opens a connection and asks nothing does not hold it for longer.
const HEADERS_MAX: Duration = Duration::from_secs(30);

/// An endpoint that answers. Dropped, it goes on; [`Serving::stop`] ends it.
pub struct Serving {
    pub address: SocketAddr,
    stop: watch::Sender<bool>,
    accepting: JoinHandle<()>,
}

impl Serving {
    /// Takes no more connections and cuts those there are: whoever streams here knows that nodes
    /// go away.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        let _ = self.accepting.await;
    }
}

pub(super) async fn serve(endpoint: Endpoint) -> std::io::Result<Serving> {
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

/// The plain page for whoever watches over this process: `http://127.0.0.1:10248/healthz`, for which
/// nobody is asked who they are (N-168). Answers until it is dropped.
pub async fn serve_health(listen: SocketAddr) -> std::io::Result<Health> {
    let listener = TcpListener::bind(listen).await?;
    let address = listener.local_addr()?;
    let accepting = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = service_fn(|request: http::Request<hyper::body::Incoming>| async move {
                Ok::<_, Infallible>(match request.uri().path() {
                    "/healthz" => answer::text(http::StatusCode::OK, "ok"),
                    _ => answer::text(http::StatusCode::NOT_FOUND, "404 page not found\n"),
                })
            });
            let mut http = http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(HEADERS_MAX);
            tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
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
    loop {
        let (stream, address) = tokio::select! {
            _ = stopped.changed() => return,
            accepted = tls::accepted(&listener) => accepted,
        };
        let (acceptor, state, mut stopped) = (acceptor.clone(), state.clone(), stopped.clone());
        tokio::spawn(async move {
            tokio::select! {
                _ = stopped.changed() => {}
                () = connection(acceptor, state, stream, address) => {}
            }
        });
    }
}

async fn connection(
    acceptor: TlsAcceptor,
    state: Arc<State>,
    stream: TcpStream,
    address: SocketAddr,
) {
    let Some(stream) = tls::shaken(&acceptor, stream, address).await else { return };
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let user: Option<Arc<User>> =
        certificate.and_then(|certificate| access::user_of_certificate(certificate)).map(Arc::new);
    let service = service_fn(move |request| {
        let (state, user) = (state.clone(), user.clone());
        async move { Ok::<_, Infallible>(routes::handle(state, user, request).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEADERS_MAX).half_close(false);
    let connection = http.serve_connection(TokioIo::new(stream), service).with_upgrades();
    if let Err(error) = connection.await {
        tracing::debug!(%address, %error, "a connection to the node ended badly");
    }
}
