//! The simulated connection between a client and the API server, with delays, losses and interruptions.
//!
//!     request ──▶ delay ──▶ server ──▶ (response lost?) ──▶ delay ──▶ response, or a stream that may break
//!
//! `watch_observer` reads what passes on the connection of a node's agent, because the checker has to know what an
//! agent has received, and when.

mod request_counter;
mod response_body;
mod watch_observer;

pub(crate) use request_counter::{RequestCounter, RequestCounts};

use crate::event_log::{Agent, EventLog};
use crate::process_run::ProcessRun;
use crate::random::Random;
use http::{Request, Response};
use kube::client::Body;
use response_body::ResponseBody;
use server::authn::User;
use server::{InProcessService, Server};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::watch;
use tower::Service as _;
use watch_observer::WatchObserver;

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ConnectionError(&'static str);

/// The state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Up,
    /// New connections are refused and open ones are reset.
    Refused,
    /// Packets are dropped without an error.
    Silent,
}

/// What may happen to single requests while the connection is up.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct NetworkFaults {
    /// Milliseconds, each way.
    pub(crate) delay: u64,
    /// Percent of requests that the server handles but whose response is lost.
    pub(crate) lost_responses: u64,
    /// Percent of requests that never arrive at the server.
    pub(crate) lost_requests: u64,
}

/// The server that connections lead to. It changes when the server restarts.
#[derive(Clone)]
pub(crate) struct ServerHandle {
    pub(crate) server: watch::Receiver<Option<Server>>,
    pub(crate) counter: RequestCounter,
}

/// The connection of one client. Clones share its state.
#[derive(Clone)]
pub(crate) struct Connection {
    inner: Arc<Inner>,
    /// The client's process, if it can crash.
    process: Option<Arc<ProcessRun>>,
    observer: Option<WatchObserver>,
}

struct Inner {
    server: ServerHandle,
    user: User,
    state: watch::Sender<State>,
    faults: Mutex<(NetworkFaults, Random)>,
    /// How often all open streams were broken.
    breaks: watch::Sender<u64>,
}

impl Connection {
    pub(crate) fn new(server: ServerHandle, user: User, random: Random) -> Connection {
        let inner = Inner {
            server,
            user,
            state: watch::Sender::new(State::Up),
            faults: Mutex::new((NetworkFaults::default(), random)),
            breaks: watch::Sender::new(0),
        };
        Connection { inner: Arc::new(inner), process: None, observer: None }
    }

    /// The same connection, used by one run of a process.
    pub(crate) fn of_process(&self, process: Arc<ProcessRun>) -> Connection {
        Connection { process: Some(process), ..self.clone() }
    }

    /// The same connection, on which the event log records what this agent receives about its pods.
    pub(crate) fn observed_for(&self, log: EventLog, agent: Agent) -> Connection {
        Connection { observer: Some(WatchObserver::new(log, agent)), ..self.clone() }
    }

    pub(crate) fn set_state(&self, state: State) {
        self.inner.state.send_replace(state);
    }

    pub(crate) fn set_faults(&self, faults: NetworkFaults) {
        self.inner.faults().0 = faults;
    }

    /// Breaks all open streams.
    pub(crate) fn break_streams(&self) {
        self.inner.breaks.send_modify(|breaks| *breaks += 1);
    }

    async fn send(self, request: Request<Body>) -> Result<Response<ResponseBody>, ConnectionError> {
        if let Some(process) = &self.process {
            process.step().await;
        }
        let observer =
            self.observer.as_ref().and_then(|observer| observer.of_request(request.uri()));
        let fate = self.inner.draw_fate();
        self.inner.check_state().await?;
        delay(fate.delay_to).await;
        if fate.request_lost {
            return Err(ConnectionError("the request was lost"));
        }
        self.inner.check_state().await?;
        self.inner.server.counter.count(&self.inner.user.name, &request);
        let mut server = self.inner.server.server.clone();
        let door = server.borrow_and_update().as_ref().map(|server| self.door(server));
        let Some(mut door) = door else { return Err(ConnectionError("connection refused")) };
        let response = tokio::select! {
            biased;
            _ = server.changed() => return Err(ConnectionError("the server crashed")),
            response = door.call(request) => response,
        };
        let Ok(response) = response;
        delay(fate.delay_back).await;
        self.inner.check_state().await?;
        if fate.response_lost || server.has_changed().unwrap_or(true) {
            return Err(ConnectionError("the response was lost"));
        }
        if let Some(process) = &self.process {
            process.step().await;
        }
        let (parts, body) = response.into_parts();
        let observer = observer.filter(|_| parts.status.is_success());
        Ok(Response::from_parts(
            parts,
            ResponseBody::new(body, &self.inner, fate.delay_back, observer),
        ))
    }

    fn door(&self, server: &Server) -> InProcessService {
        server.in_process(self.inner.user.clone())
    }
}

/// What happens to one request.
struct RequestFate {
    delay_to: Duration,
    delay_back: Duration,
    response_lost: bool,
    request_lost: bool,
}

impl Inner {
    fn faults(&self) -> MutexGuard<'_, (NetworkFaults, Random)> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn draw_fate(&self) -> RequestFate {
        let (faults, random) = &mut *self.faults();
        RequestFate {
            delay_to: random.millis(0, faults.delay),
            delay_back: random.millis(0, faults.delay),
            response_lost: faults.lost_responses > 0 && random.percent(faults.lost_responses),
            request_lost: faults.lost_requests > 0 && random.percent(faults.lost_requests),
        }
    }

    /// Err: the connection is not up. Waits while it is silent, because what was sent meanwhile is lost.
    async fn check_state(&self) -> Result<(), ConnectionError> {
        let mut state = self.state.subscribe();
        let now = *state.borrow_and_update();
        match now {
            State::Up => Ok(()),
            State::Refused => Err(ConnectionError("connection refused")),
            State::Silent => {
                let _ = state.wait_for(|state| *state != State::Silent).await;
                Err(ConnectionError("connection reset"))
            }
        }
    }

    /// Resolves when a stream that is open now would break.
    fn until_broken(self: &Arc<Self>) -> impl Future<Output = ()> + Send + use<> {
        let (mut state, mut breaks, mut server) =
            (self.state.subscribe(), self.breaks.subscribe(), self.server.server.clone());
        breaks.borrow_and_update();
        server.borrow_and_update();
        async move {
            let cut = async {
                let _ = state.wait_for(|state| *state != State::Up).await;
                // While the connection is silent the client receives no error; it learns of the break afterwards.
                let _ = state.wait_for(|state| *state != State::Silent).await;
            };
            tokio::select! {
                biased;
                _ = server.changed() => {}
                _ = breaks.changed() => {}
                () = cut => {}
            }
        }
    }

    fn is_silent(&self) -> bool {
        *self.state.borrow() == State::Silent
    }
}

async fn delay(by: Duration) {
    if !by.is_zero() {
        tokio::time::sleep(by).await;
    }
}

impl tower::Service<Request<Body>> for Connection {
    type Response = Response<ResponseBody>;
    type Error = ConnectionError;
    type Future =
        Pin<Box<dyn Future<Output = Result<Response<ResponseBody>, ConnectionError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectionError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.clone().send(request))
    }
}
