//! Sends requests at planned times and records what became of each.
//!
//! One task per stream of requests starts each request on time and does not wait for it. If this machine cannot keep up,
//! the recorded lag shows it (`saturation`). Not here: when to send (`schedule`), how to send (`connection`).

use crate::connection::{Finished, Requester};
use crate::outcome::{ConnectionKind, Failure};
use crate::schedule::Stream;
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Requests that are open at the same time, at most. More than that and the machine or the server is overloaded.
const OPEN_MAX: usize = 5000;
/// Requests that one run records, at most.
const SAMPLES_MAX: usize = 2_000_000;

/// One request. Times are seconds since the load began.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    pub kind: ConnectionKind,
    /// When it was to be sent.
    pub due: f64,
    /// How long after that it really was.
    pub lag: f64,
    /// From when it was to be sent until its end.
    pub latency: f64,
    pub reused: bool,
    pub result: Result<u16, Failure>,
}

/// Paths of requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Paths {
    pub(crate) usual: String,
    pub(crate) slow: String,
}

impl Paths {
    pub(crate) fn of(&self, kind: ConnectionKind) -> &str {
        match kind {
            ConnectionKind::Slow => &self.slow,
            ConnectionKind::New | ConnectionKind::Keepalive => &self.usual,
        }
    }
}

/// A running load. It stops when this is dropped.
pub(crate) struct Load {
    /// Wall time of its start.
    pub(crate) began: Timestamp,
    start: Instant,
    shared: Arc<Shared>,
    stop: watch::Sender<bool>,
    streams: JoinSet<()>,
}

struct Shared {
    requester: Requester,
    paths: Paths,
    samples: Mutex<Vec<Sample>>,
    open: AtomicUsize,
    /// Requests that were not sent because too many were open.
    skipped: AtomicUsize,
}

/// What a load has recorded.
pub(crate) struct Recorded {
    pub(crate) samples: Vec<Sample>,
    pub(crate) skipped: usize,
}

impl Load {
    pub(crate) fn start(requester: Requester, paths: Paths, streams: &[Stream]) -> Load {
        let (stop, stopped) = watch::channel(false);
        let shared = Arc::new(Shared {
            requester,
            paths,
            samples: Mutex::default(),
            open: AtomicUsize::new(0),
            skipped: AtomicUsize::new(0),
        });
        let (began, start) = (clock::now(), Instant::now());
        let mut tasks = JoinSet::new();
        for stream in streams {
            tasks.spawn(send_all(shared.clone(), *stream, start, stopped.clone()));
        }
        Load { began, start, shared, stop, streams: tasks }
    }

    /// Seconds since it began.
    pub(crate) fn elapsed(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// Failures and requests that have ended so far.
    pub(crate) fn count(&self) -> (usize, usize) {
        let samples = self.shared.locked();
        (samples.iter().filter(|sample| sample.result.is_err()).count(), samples.len())
    }

    /// How many requests failed so far, by class.
    pub(crate) fn failures(&self) -> BTreeMap<Failure, usize> {
        let mut classes = BTreeMap::new();
        for failure in self.shared.locked().iter().filter_map(|sample| sample.result.err()) {
            *classes.entry(failure).or_default() += 1;
        }
        classes
    }

    /// Sends no more requests, waits for the open ones, and returns all.
    pub(crate) async fn finish(mut self) -> Recorded {
        let _ = self.stop.send(true);
        while self.streams.join_next().await.is_some() {}
        let mut samples = std::mem::take(&mut *self.shared.locked());
        samples.sort_by(|a, b| a.due.total_cmp(&b.due));
        Recorded { samples, skipped: self.shared.skipped.load(Ordering::Relaxed) }
    }
}

impl Shared {
    fn locked(&self) -> std::sync::MutexGuard<'_, Vec<Sample>> {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts the requests of one stream until it is stopped, and waits for them.
async fn send_all(
    shared: Arc<Shared>,
    stream: Stream,
    start: Instant,
    mut stopped: watch::Receiver<bool>,
) {
    let mut requests = JoinSet::new();
    for number in 0.. {
        let due = start + stream.due(number);
        tokio::select! {
            () = tokio::time::sleep_until(due) => {}
            _ = stopped.wait_for(|stop| *stop) => break,
        }
        while requests.try_join_next().is_some() {}
        if shared.open.load(Ordering::Relaxed) >= OPEN_MAX {
            shared.skipped.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        shared.open.fetch_add(1, Ordering::Relaxed);
        requests.spawn(send_one(shared.clone(), stream.kind, start, due));
    }
    while requests.join_next().await.is_some() {}
}

async fn send_one(shared: Arc<Shared>, kind: ConnectionKind, start: Instant, due: Instant) {
    let lag = due.elapsed();
    let deadline = due + shared.requester.timeout().max(Duration::from_millis(1));
    let path = shared.paths.of(kind);
    let Finished { reused, result } = shared.requester.get(kind, path, deadline).await;
    shared.open.fetch_sub(1, Ordering::Relaxed);
    let sample = Sample {
        kind,
        due: due.duration_since(start).as_secs_f64(),
        lag: lag.as_secs_f64(),
        latency: due.elapsed().as_secs_f64(),
        reused,
        result,
    };
    let mut samples = shared.locked();
    if samples.len() < SAMPLES_MAX {
        samples.push(sample);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::Address;
    use crate::schedule::streams;
    use tokio::net::TcpListener;

    /// The server never answers, and every request is still sent on time. Runs on a paused clock.
    #[tokio::test(start_paused = true)]
    async fn requests_are_sent_on_time_although_none_is_answered() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address =
            Address { host: "127.0.0.1".into(), port: listener.local_addr().unwrap().port() };
        let requester = Requester::new(address, Duration::from_secs(3));
        let paths = Paths { usual: "/".into(), slow: "/".into() };
        let load = Load::start(requester, paths, &streams(&[ConnectionKind::New], 10.0));
        tokio::time::sleep(Duration::from_millis(1950)).await;
        let recorded = load.finish().await;
        assert_eq!(recorded.samples.len(), 20);
        assert_eq!(recorded.skipped, 0);
        for (number, sample) in recorded.samples.iter().enumerate() {
            assert!((sample.due - number as f64 / 10.0).abs() < 1e-6);
            assert!(sample.lag < 0.01, "{sample:?}");
            assert_eq!(sample.result, Err(Failure::Timeout));
            assert!((sample.latency - 3.0).abs() < 0.01, "{sample:?}");
        }
    }
}
