//! The line between a client and the server, and what can happen to it.
//!
//!     request ──▶ delay ──▶ server ──▶ (answer lost?) ──▶ delay ──▶ answer, or a stream that may tear
//!
//! What passes on the line of a node's agent is read along: the judge has to know what an agent has
//! been told, and when.

mod ears;
mod meter;
mod stream;

pub(crate) use meter::{Meter, Sent};

use crate::book::{Agent, Book};
use crate::chance::Chance;
use crate::life::Life;
use ears::Ears;
use http::{Request, Response};
use kube::client::Body;
use server::authn::User;
use server::{Door, Server};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use stream::Stream;
use tokio::sync::watch;
use tower::Service as _;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Fault(&'static str);

/// How a line is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Up,
    /// Connections are refused, those that are open are reset.
    Refused,
    /// Nothing comes through and nobody says so.
    Silent,
}

/// What may happen to single requests while the line is up.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Weather {
    /// Milliseconds, each way.
    pub(crate) delay: u64,
    /// Percent of requests that are done but whose answer is lost.
    pub(crate) lost: u64,
    /// Percent of requests that never arrive.
    pub(crate) dropped: u64,
}

/// What a line leads to. The server changes when it starts again.
#[derive(Clone)]
pub(crate) struct Port {
    pub(crate) server: watch::Receiver<Option<Server>>,
    pub(crate) meter: Meter,
}

/// One client's line. Clones share it.
#[derive(Clone)]
pub(crate) struct Line {
    inner: Arc<Inner>,
    /// Whose requests these are, if it can die.
    life: Option<Arc<Life>>,
    ears: Option<Ears>,
}

struct Inner {
    port: Port,
    user: User,
    state: watch::Sender<State>,
    weather: Mutex<(Weather, Chance)>,
    /// Counts the times that all streams were torn.
    torn: watch::Sender<u64>,
}

impl Line {
    pub(crate) fn new(port: Port, user: User, chance: Chance) -> Line {
        let inner = Inner {
            port,
            user,
            state: watch::Sender::new(State::Up),
            weather: Mutex::new((Weather::default(), chance)),
            torn: watch::Sender::new(0),
        };
        Line { inner: Arc::new(inner), life: None, ears: None }
    }

    /// The same line, used by one life of a process.
    pub(crate) fn of(&self, life: Arc<Life>) -> Line {
        Line { life: Some(life), ..self.clone() }
    }

    /// The same line, on which somebody hears what this agent is told of its pods.
    pub(crate) fn heard(&self, book: Book, agent: Agent) -> Line {
        Line { ears: Some(Ears::new(book, agent)), ..self.clone() }
    }

    pub(crate) fn set(&self, state: State) {
        self.inner.state.send_replace(state);
    }

    pub(crate) fn set_weather(&self, weather: Weather) {
        self.inner.weather().0 = weather;
    }

    /// Every stream that is open breaks.
    pub(crate) fn tear(&self) {
        self.inner.torn.send_modify(|torn| *torn += 1);
    }

    async fn send(self, request: Request<Body>) -> Result<Response<Stream>, Fault> {
        if let Some(life) = &self.life {
            life.step().await;
        }
        let ears = self.ears.as_ref().and_then(|ears| ears.on(request.uri()));
        let fate = self.inner.draw();
        self.inner.passes().await?;
        delay(fate.there).await;
        if fate.dropped {
            return Err(Fault("the request was lost"));
        }
        self.inner.passes().await?;
        self.inner.port.meter.count(&self.inner.user.name, &request);
        let mut port = self.inner.port.server.clone();
        let door = port.borrow_and_update().as_ref().map(|server| self.door(server));
        let Some(mut door) = door else { return Err(Fault("connection refused")) };
        let answer = tokio::select! {
            biased;
            _ = port.changed() => return Err(Fault("the server died")),
            answer = door.call(request) => answer,
        };
        let Ok(answer) = answer;
        delay(fate.back).await;
        self.inner.passes().await?;
        if fate.lost || port.has_changed().unwrap_or(true) {
            return Err(Fault("the answer was lost"));
        }
        if let Some(life) = &self.life {
            life.step().await;
        }
        let (parts, body) = answer.into_parts();
        let ears = ears.filter(|_| parts.status.is_success());
        Ok(Response::from_parts(parts, Stream::new(body, &self.inner, fate.back, ears)))
    }

    fn door(&self, server: &Server) -> Door {
        server.door(self.inner.user.clone())
    }
}

/// What becomes of one request.
struct Fate {
    there: Duration,
    back: Duration,
    lost: bool,
    dropped: bool,
}

impl Inner {
    fn weather(&self) -> MutexGuard<'_, (Weather, Chance)> {
        self.weather.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn draw(&self) -> Fate {
        let (weather, chance) = &mut *self.weather();
        Fate {
            there: chance.millis(0, weather.delay),
            back: chance.millis(0, weather.delay),
            lost: weather.lost > 0 && chance.percent(weather.lost),
            dropped: weather.dropped > 0 && chance.percent(weather.dropped),
        }
    }

    /// Err: not any more. Waits while the line is silent, for what was sent into it is lost.
    async fn passes(&self) -> Result<(), Fault> {
        let mut state = self.state.subscribe();
        let now = *state.borrow_and_update();
        match now {
            State::Up => Ok(()),
            State::Refused => Err(Fault("connection refused")),
            State::Silent => {
                let _ = state.wait_for(|state| *state != State::Silent).await;
                Err(Fault("connection reset"))
            }
        }
    }

    /// Resolves when a stream that is open now breaks.
    fn broken(self: &Arc<Self>) -> impl Future<Output = ()> + Send + use<> {
        let (mut state, mut torn, mut port) =
            (self.state.subscribe(), self.torn.subscribe(), self.port.server.clone());
        torn.borrow_and_update();
        port.borrow_and_update();
        async move {
            let cut = async {
                let _ = state.wait_for(|state| *state != State::Up).await;
                // Into silence nothing is said; that it is over is heard at its end.
                let _ = state.wait_for(|state| *state != State::Silent).await;
            };
            tokio::select! {
                biased;
                _ = port.changed() => {}
                _ = torn.changed() => {}
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

impl tower::Service<Request<Body>> for Line {
    type Response = Response<Stream>;
    type Error = Fault;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Stream>, Fault>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Fault>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.clone().send(request))
    }
}
