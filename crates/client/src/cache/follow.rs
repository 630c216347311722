//! Follows the server: list, watch, and after a break go on where it broke, or list again.
//!
//! Not kube's own `watcher`: its waits follow a random source of their own, and a simulated cluster
//! must be repeatable. And it does not say how far it has come.

use super::Shared;
use super::event::Event;
use crate::client::ANSWER_MAX;
use crate::object::Decoder;
use crate::read::Selection;
use crate::{Client, Error, Object};
use futures::io::AsyncBufReadExt;
use futures::pin_mut;
use http::HeaderValue;
use http::header::ACCEPT_ENCODING;
use kube::core::{Request, Status};
use std::sync::Arc;
use std::time::Duration;

/// How long one watch lasts, at most. The next goes on where it ended.
const WATCH_SECONDS: u32 = 290;

/// Servers send a bookmark every minute. After this long without anything, nobody is there.
const SILENCE_MAX: Duration = Duration::from_secs(150);

/// The wait after a first failure; it doubles.
const BACKOFF_FIRST: Duration = Duration::from_millis(100);

/// The longest wait. Short, because all that a component does while it waits is outdated.
const BACKOFF_MAX: Duration = Duration::from_secs(10);

/// Why a watch came to its end.
#[derive(Debug)]
enum End {
    /// In the order of things: its time was up, or the server stops.
    Closed,
    /// The connection broke, or could not be made.
    Broken(Error),
    /// There is an answer, and it is no.
    Refused(Box<Status>),
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            End::Closed => f.write_str("closed"),
            End::Broken(error) => f.write_str(&crate::error::chain(error)),
            End::Refused(status) => f.write_str(&status.message),
        }
    }
}

/// How to go on.
#[derive(Debug, PartialEq, Clone, Copy)]
enum Go {
    Resume,
    List,
}

impl End {
    fn go(&self) -> Go {
        match self {
            End::Closed | End::Broken(_) => Go::Resume,
            // Too many requests: the version is as good as before.
            End::Refused(status) if status.code == 429 => Go::Resume,
            // 410: history does not reach back that far. Anything else (a version that the server
            // has not reached, since it lost its data, say): begin from what is there now.
            End::Refused(_) => Go::List,
        }
    }
}

/// Doubles, up to a bound, with jitter so that a thousand clients do not come back as one.
#[derive(Default)]
struct Backoff {
    failures: u32,
}

impl Backoff {
    fn next(&mut self, chance: u64) -> Duration {
        let full = BACKOFF_FIRST.saturating_mul(1 << self.failures.min(16)).min(BACKOFF_MAX);
        self.failures += 1;
        full / 2 + (full / 2).mul_f64((chance >> 11) as f64 / (1u64 << 53) as f64)
    }

    async fn wait(&mut self) {
        tokio::time::sleep(self.next(clock::random_u64())).await;
    }
}

/// What is followed, in the words of a request. It does not know the Rust type of the kind.
pub(super) struct Followed {
    path: String,
    plural: String,
    which: Selection,
    metadata_only: bool,
    decoder: Decoder,
}

impl Followed {
    pub(super) fn new<K: Object>(
        kind: &K::DynamicType,
        which: Selection,
        metadata_only: bool,
    ) -> Followed {
        Followed {
            path: K::url_path(kind, which.namespace.as_deref()),
            plural: K::plural(kind).into_owned(),
            which,
            metadata_only,
            decoder: Decoder::of::<K>(),
        }
    }

    async fn list(&self, client: &Client, shared: &Shared) -> crate::Result<String> {
        let mut objects = Vec::new();
        let mut add = |item: &str| {
            objects.push(self.decoder.decode(item)?);
            Ok(())
        };
        let (path, which) = (&self.path, &self.which);
        let version =
            client.list_items(path, &self.plural, which, self.metadata_only, &mut add).await?;
        shared.replace(objects, &version);
        Ok(version)
    }
}

/// Runs until it is aborted.
pub(super) async fn follow(client: Client, followed: Followed, shared: Arc<Shared>) {
    let mut backoff = Backoff::default();
    let mut version = None;
    loop {
        let Some(from) = version.take() else {
            match followed.list(&client, &shared).await {
                Ok(listed) => version = Some(listed),
                Err(error) => {
                    tracing::warn!(
                        error = crate::error::chain(&error),
                        "cannot list; trying again"
                    );
                    backoff.wait().await;
                }
            }
            continue;
        };
        let mut watch = Watch { version: from, heard: false, shared: &shared };
        let end = watch.run(&client, &followed).await;
        if watch.heard {
            backoff = Backoff::default();
        }
        if !(watch.heard && matches!(end, End::Closed)) {
            tracing::debug!(kind = followed.plural, %end, "watch ended");
            backoff.wait().await;
        }
        version = (end.go() == Go::Resume).then_some(watch.version);
    }
}

struct Watch<'a> {
    /// What the next watch goes on from.
    version: String,
    /// Whether anything came at all.
    heard: bool,
    shared: &'a Shared,
}

impl Watch<'_> {
    async fn run(&mut self, client: &Client, followed: &Followed) -> End {
        let request = Request::new(followed.path.clone());
        let params = followed.which.watch_params(WATCH_SECONDS);
        let request = match followed.metadata_only {
            true => request.watch_metadata(&params, &self.version),
            false => request.watch(&params, &self.version),
        };
        let doing = || format!("watch {}", followed.plural);
        let mut request = match request {
            Ok(request) => request,
            Err(error) => {
                return End::Broken(Error::Unsendable { doing: doing(), why: error.to_string() });
            }
        };
        // What is packed arrives when the packet is full, not when it happens.
        request.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let begun = client.kube().request_stream(request);
        let events = match tokio::time::timeout(ANSWER_MAX, begun).await {
            Ok(Ok(events)) => events,
            Ok(Err(kube::Error::Api(status))) => return End::Refused(status),
            Ok(Err(error)) => return End::Broken(Error::from_kube(doing(), error)),
            Err(_) => return End::Broken(Error::Timeout { doing: doing() }),
        };
        pin_mut!(events);
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = events.read_until(b'\n', &mut line);
            match tokio::time::timeout(SILENCE_MAX, read).await {
                Ok(Ok(0)) => return End::Closed,
                // A line without an end was cut off.
                Ok(Ok(_)) if line.pop() != Some(b'\n') => return End::Closed,
                Ok(Ok(_)) => {}
                Ok(Err(error)) => {
                    return End::Broken(Error::from_kube(doing(), kube::Error::ReadEvents(error)));
                }
                Err(_) => return End::Broken(Error::Timeout { doing: doing() }),
            }
            match Event::read(&line, followed.decoder) {
                Ok(event) => {
                    if let Some(status) = self.take(event) {
                        return End::Refused(status);
                    }
                }
                Err(error) => {
                    return End::Broken(Error::from_kube(doing(), kube::Error::SerdeError(error)));
                }
            }
        }
    }

    /// The status, if that is what came.
    fn take(&mut self, event: Event) -> Option<Box<Status>> {
        let version = match &event {
            Event::There(object) | Event::Gone(object) => {
                object.metadata().resource_version.clone()
            }
            Event::Bookmark(version) => Some(version.clone()),
            Event::Refused(_) => None,
        };
        if let Some(version) = version {
            self.version = version;
            self.heard = true;
        }
        match event {
            Event::There(object) => self.shared.put(object, &self.version),
            Event::Gone(object) => self.shared.remove(object.metadata(), &self.version),
            Event::Bookmark(_) => self.shared.advance(&self.version, false),
            Event::Refused(status) => return Some(status),
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_break_is_resumed_and_a_refusal_is_listed_again() {
        let refused = |code| End::Refused(Status::failure("", "").with_code(code).boxed());
        let broken = End::Broken(Error::Timeout { doing: "watch".into() });
        assert_eq!(End::Closed.go(), Go::Resume);
        assert_eq!(broken.go(), Go::Resume);
        assert_eq!(refused(429).go(), Go::Resume);
        for code in [410, 403, 500, 504] {
            assert_eq!(refused(code).go(), Go::List, "{code}");
        }
    }

    #[test]
    fn the_wait_grows_and_stays_within_its_bounds() {
        for chance in [0, u64::MAX / 2, u64::MAX] {
            let mut backoff = Backoff::default();
            let waits: Vec<_> = (0..40).map(|_| backoff.next(chance)).collect();
            assert!(waits[0] >= BACKOFF_FIRST / 2 && waits[0] <= BACKOFF_FIRST, "{waits:?}");
            assert!(waits.is_sorted(), "{waits:?}");
            assert!(waits[39] >= BACKOFF_MAX / 2 && waits[39] <= BACKOFF_MAX, "{waits:?}");
        }
    }
}
