//! A small HTTP/1 server: any number of listeners, each with a function that answers a path.

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// Connections of one listener at the same time; further ones wait.
const CONNECTIONS_MAX: usize = 64;
/// A connection without a complete request is closed after this time.
const REQUEST_MAX: Duration = Duration::from_secs(10);
/// The wait after a connection could not be accepted, for example because there are too many open files.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

type Answer = dyn Fn(&str) -> Reply + Send + Sync;

pub(super) struct Reply {
    status: u16,
    content_type: &'static str,
    headers: Vec<(&'static str, String)>,
    body: String,
}

impl Reply {
    pub(super) fn json(status: u16, body: String) -> Reply {
        Reply { status, content_type: "application/json", headers: Vec::new(), body }
    }

    pub(super) fn text(status: u16, body: String) -> Reply {
        Reply { status, content_type: "text/plain; charset=utf-8", headers: Vec::new(), body }
    }

    pub(super) fn not_found() -> Reply {
        Reply::text(404, "404 page not found\n".to_owned())
    }

    pub(super) fn header(mut self, name: &'static str, value: String) -> Reply {
        self.headers.push((name, value));
        self
    }

    fn into_response(self) -> Response<Full<Bytes>> {
        let mut response = Response::builder()
            .status(self.status)
            .header("content-type", self.content_type)
            .header("x-content-type-options", "nosniff");
        for (name, value) in self.headers {
            response = response.header(name, value);
        }
        response.body(Full::from(self.body)).unwrap_or_default()
    }
}

/// An open port. Dropping it closes the port.
pub(super) struct Listener {
    task: JoinHandle<()>,
}

impl Listener {
    pub(super) async fn open(
        address: SocketAddr,
        answer: impl Fn(&str) -> Reply + Send + Sync + 'static,
    ) -> io::Result<Listener> {
        let listener = TcpListener::bind(address).await?;
        Ok(Listener { task: tokio::spawn(accept(listener, Arc::new(answer))) })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, answer: Arc<Answer>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_RETRY).await;
            continue;
        };
        let answer = answer.clone();
        tokio::spawn(async move {
            // A client may hold its place for one request only.
            let _ = tokio::time::timeout(REQUEST_MAX, serve(stream, &*answer)).await;
            drop(place);
        });
    }
}

async fn serve(stream: TcpStream, answer: &Answer) {
    let service = service_fn(|request: Request<Incoming>| {
        let reply = answer(request.uri().path());
        async move { Ok::<_, Infallible>(reply.into_response()) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    let _ = connection.await;
}
