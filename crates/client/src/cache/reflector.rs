//! Lists and watches the objects of a cache. After an error it resumes the watch, or lists again.
//!
//! It does not use kube's `watcher`, which draws its waits from its own random source (a simulation must be
//! repeatable) and does not report the resource version it has reached.

use super::Shared;
use super::event::Event;
use super::undecodable::{Identity, SkipLog};
use crate::client::RESPONSE_TIMEOUT;
use crate::object::Decoder;
use crate::read::Selection;
use crate::{Client, Error, Object, ObjectKey};
use futures::io::AsyncBufReadExt;
use futures::pin_mut;
use http::HeaderValue;
use http::header::{ACCEPT_ENCODING, USER_AGENT};
use kube::core::{Request, Status};
use std::sync::Arc;
use std::time::Duration;

/// How long one watch lasts at most. The next one continues where it ended.
const WATCH_SECONDS: u32 = 290;

/// Servers send a bookmark every minute. After this long without any event the connection is dead.
const SILENCE_MAX: Duration = Duration::from_secs(150);

/// The wait after a first failure; it doubles.
const BACKOFF_FIRST: Duration = Duration::from_millis(100);

/// The longest wait. It is short because components work with outdated objects meanwhile.
const BACKOFF_MAX: Duration = Duration::from_secs(10);

/// The longest wait while there is no connection to the server. An attempt costs the server nothing then, and
/// components must have current objects within two seconds of its return.
const RECONNECT_MAX: Duration = Duration::from_millis(500);

/// Why a watch ended.
#[derive(Debug)]
enum WatchEnd {
    /// As planned: its time was up, or the server stops.
    Closed,
    /// The connection failed or could not be established.
    Broken(Error),
    /// The server answered with an error.
    Refused(Box<Status>),
    /// A line was not an event. Resuming would return the same line.
    Garbled(serde_json::Error),
}

impl std::fmt::Display for WatchEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            WatchEnd::Closed => f.write_str("closed"),
            WatchEnd::Broken(error) => f.write_str(&crate::error::chain(error)),
            WatchEnd::Refused(status) => f.write_str(&status.message),
            WatchEnd::Garbled(error) => write!(f, "not an event: {error}"),
        }
    }
}

/// How to continue after a watch ended.
#[derive(Debug, PartialEq, Clone, Copy)]
enum Recovery {
    Resume,
    Relist,
}

impl WatchEnd {
    fn recovery(&self) -> Recovery {
        match self {
            WatchEnd::Closed | WatchEnd::Broken(_) => Recovery::Resume,
            // Too many requests: the resource version is still valid.
            WatchEnd::Refused(status) if status.code == 429 => Recovery::Resume,
            // 410: the server no longer has the changes since that version. Any other error: for example, the
            // server lost data and has not reached that version.
            WatchEnd::Refused(_) | WatchEnd::Garbled(_) => Recovery::Relist,
        }
    }

    fn max_wait(&self) -> Duration {
        match self {
            WatchEnd::Broken(error) => max_wait(error),
            WatchEnd::Closed | WatchEnd::Refused(_) | WatchEnd::Garbled(_) => BACKOFF_MAX,
        }
    }
}

/// The longest wait after a request without a response, or with one that is an error.
fn max_wait(error: &Error) -> Duration {
    if error.is_disconnected() { RECONNECT_MAX } else { BACKOFF_MAX }
}

/// Doubles up to a bound, with jitter so that many clients do not reconnect at the same time.
#[derive(Default)]
struct Backoff {
    failures: u32,
}

impl Backoff {
    /// `fraction` is a random number of at least 0 and less than 1.
    fn next(&mut self, max: Duration, fraction: f64) -> Duration {
        let full = BACKOFF_FIRST.saturating_mul(1 << self.failures.min(16)).min(max);
        self.failures += 1;
        full / 2 + (full / 2).mul_f64(fraction)
    }

    async fn wait(&mut self, max: Duration) {
        tokio::time::sleep(self.next(max, clock::random_fraction())).await;
    }
}

/// What to list and watch, without the Rust type of the kind.
pub(super) struct WatchTarget {
    path: String,
    plural: String,
    which: Selection,
    metadata_only: bool,
    decoder: Decoder,
}

impl WatchTarget {
    pub(super) fn new<K: Object>(
        kind: &K::DynamicType,
        which: Selection,
        metadata_only: bool,
    ) -> WatchTarget {
        WatchTarget {
            path: K::url_path(kind, which.namespace.as_deref()),
            plural: K::plural(kind).into_owned(),
            which,
            metadata_only,
            decoder: Decoder::of::<K>(),
        }
    }

    async fn list(
        &self,
        client: &Client,
        shared: &Shared,
        skip_log: &mut SkipLog,
    ) -> crate::Result<String> {
        let mut objects = Vec::new();
        let mut add = |item: &str| {
            match self.decoder.decode(item) {
                Ok(object) => objects.push(object),
                Err(error) => {
                    let which = Identity::read(item)?;
                    skip_log.skipped(&self.plural, &which, &error);
                    objects.extend(shared.last_decoded(&which));
                }
            }
            Ok(())
        };
        let (path, which) = (&self.path, &self.which);
        let version =
            client.list_items(path, &self.plural, which, self.metadata_only, &mut add).await?;
        shared.replace(objects, &version);
        Ok(version)
    }
}

/// Lists and watches until the task is aborted.
pub(super) async fn run(client: Client, target: WatchTarget, shared: Arc<Shared>) {
    let mut backoff = Backoff::default();
    let mut version = None;
    let mut skip_log = SkipLog::default();
    loop {
        let Some(from) = version.take() else {
            match target.list(&client, &shared, &mut skip_log).await {
                Ok(listed) => version = Some(listed),
                Err(error) => {
                    let (kind, error_text) = (&target.plural, crate::error::chain(&error));
                    match is_worth_a_warning(&error) {
                        true => {
                            tracing::warn!(kind, error = error_text, "cannot list; retrying")
                        }
                        false => tracing::debug!(kind, "kind is not served; retrying"),
                    }
                    backoff.wait(max_wait(&error)).await;
                }
            }
            continue;
        };
        let mut watch =
            Watch { version: from, received: false, shared: &shared, skip_log: &mut skip_log };
        let end = watch.run(&client, &target).await;
        if watch.received {
            backoff = Backoff::default();
        }
        if !(watch.received && matches!(end, WatchEnd::Closed)) {
            tracing::debug!(kind = target.plural, %end, "watch ended");
            backoff.wait(end.max_wait()).await;
        }
        version = (end.recovery() == Recovery::Resume).then_some(watch.version);
    }
}

/// Listing a kind fails after its CustomResourceDefinition was deleted. That is expected: controllers that watch
/// custom kinds stop this cache at their next discovery.
fn is_worth_a_warning(error: &Error) -> bool {
    !error.is_not_served()
}

struct Watch<'a> {
    /// The next watch continues from here.
    version: String,
    /// Whether any event was received.
    received: bool,
    shared: &'a Shared,
    skip_log: &'a mut SkipLog,
}

impl Watch<'_> {
    async fn run(&mut self, client: &Client, target: &WatchTarget) -> WatchEnd {
        let request = Request::new(target.path.clone());
        let params = target.which.watch_params(WATCH_SECONDS);
        let request = match target.metadata_only {
            true => request.watch_metadata(&params, &self.version),
            false => request.watch(&params, &self.version),
        };
        let doing = || format!("watch {}", target.plural);
        let mut request = match request {
            Ok(request) => request,
            Err(error) => {
                return WatchEnd::Broken(Error::Unsendable {
                    doing: doing(),
                    why: error.to_string(),
                });
            }
        };
        // A compressed stream would deliver events in blocks instead of immediately.
        request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        request.headers_mut().insert(USER_AGENT, client.user_agent());
        let response = client.reader().request_stream(request);
        let events = match tokio::time::timeout(RESPONSE_TIMEOUT, response).await {
            Ok(Ok(events)) => events,
            Ok(Err(kube::Error::Api(status))) => return WatchEnd::Refused(status),
            Ok(Err(error)) => return WatchEnd::Broken(Error::from_kube(doing(), error)),
            Err(_) => return WatchEnd::Broken(Error::Timeout { doing: doing() }),
        };
        pin_mut!(events);
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = events.read_until(b'\n', &mut line);
            match tokio::time::timeout(SILENCE_MAX, read).await {
                Ok(Ok(0)) => return WatchEnd::Closed,
                // An incomplete line: the connection was cut.
                Ok(Ok(_)) if line.pop() != Some(b'\n') => return WatchEnd::Closed,
                Ok(Ok(_)) => {}
                Ok(Err(error)) => {
                    return WatchEnd::Broken(Error::from_kube(
                        doing(),
                        kube::Error::ReadEvents(error),
                    ));
                }
                Err(_) => return WatchEnd::Broken(Error::Timeout { doing: doing() }),
            }
            match Event::read(&line, target.decoder) {
                Ok(event) => {
                    if let Some(status) = self.apply(event, &target.plural) {
                        return WatchEnd::Refused(status);
                    }
                }
                Err(error) => return WatchEnd::Garbled(error),
            }
        }
    }

    /// Applies an event to the cache. Returns the status if the event is an error.
    fn apply(&mut self, event: Event, resource: &str) -> Option<Box<Status>> {
        let version = match &event {
            Event::Applied(object) | Event::Deleted(object) => {
                object.metadata().resource_version.clone()
            }
            Event::Undecodable { which, .. } => which.resource_version.clone(),
            Event::Bookmark(version) => Some(version.clone()),
            Event::Error(_) => None,
        };
        if let Some(version) = version {
            self.version = version;
            self.received = true;
        }
        match event {
            Event::Applied(object) => self.shared.put(object, &self.version),
            Event::Deleted(object) => self.remove(&ObjectKey::from_meta(object.metadata())),
            Event::Undecodable { which, deleted: true, .. } => self.remove(&which.key()),
            Event::Undecodable { which, deleted: false, error } => {
                self.skip_log.skipped(resource, &which, &error);
                match self.shared.last_decoded(&which) {
                    Some(_) => self.shared.advance(&self.version, false),
                    // The cache has an older object of that name, which has been deleted.
                    None => self.shared.remove(&which.key(), &self.version),
                }
            }
            Event::Bookmark(_) => self.shared.advance(&self.version, false),
            Event::Error(status) => return Some(status),
        }
        None
    }

    fn remove(&mut self, key: &ObjectKey) {
        self.skip_log.forget(key);
        self.shared.remove(key, &self.version);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_errors_resume_and_server_errors_relist() {
        let refused = |code| WatchEnd::Refused(Status::failure("", "").with_code(code).boxed());
        let broken = WatchEnd::Broken(Error::Timeout { doing: "watch".into() });
        assert_eq!(WatchEnd::Closed.recovery(), Recovery::Resume);
        assert_eq!(broken.recovery(), Recovery::Resume);
        assert_eq!(WatchEnd::Garbled(serde::de::Error::custom("")).recovery(), Recovery::Relist);
        assert_eq!(refused(429).recovery(), Recovery::Resume);
        for code in [410, 403, 500, 504] {
            assert_eq!(refused(code).recovery(), Recovery::Relist, "{code}");
        }
    }

    #[test]
    fn kinds_that_are_not_served_cause_no_warning() {
        let api = |code, reason: &str| {
            let status = Status::failure("404 page not found", reason).with_code(code);
            Error::from_kube("list as".into(), kube::Error::Api(status.boxed()))
        };
        // The response for kinds that are not served is plain text without a reason.
        assert!(!is_worth_a_warning(&api(404, "Failed to parse error data")));
        assert!(is_worth_a_warning(&api(404, "NotFound")));
        assert!(is_worth_a_warning(&api(403, "Forbidden")));
        assert!(is_worth_a_warning(&Error::Timeout { doing: "list as".into() }));
    }

    #[test]
    fn backoff_grows_within_its_bounds() {
        for fraction in [0.0, 0.5, 0.999] {
            for max in [BACKOFF_MAX, RECONNECT_MAX] {
                let mut backoff = Backoff::default();
                let waits: Vec<_> = (0..40).map(|_| backoff.next(max, fraction)).collect();
                assert!(waits[0] >= BACKOFF_FIRST / 2 && waits[0] <= BACKOFF_FIRST, "{waits:?}");
                assert!(waits.is_sorted(), "{waits:?}");
                assert!(waits[39] >= max / 2 && waits[39] <= max, "{waits:?}");
            }
        }
    }

    #[test]
    fn attempts_to_reconnect_are_frequent_and_attempts_after_an_error_of_the_server_are_not() {
        let io = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let unreachable = Error::from_kube("list as".into(), kube::Error::ReadEvents(io));
        assert_eq!(max_wait(&unreachable), RECONNECT_MAX);
        assert_eq!(WatchEnd::Broken(unreachable).max_wait(), RECONNECT_MAX);
        let status = Status::failure("", "InternalError").with_code(500).boxed();
        let failed = Error::from_kube("list as".into(), kube::Error::Api(status.clone()));
        assert_eq!(max_wait(&failed), BACKOFF_MAX);
        assert_eq!(WatchEnd::Refused(status).max_wait(), BACKOFF_MAX);
    }
}
