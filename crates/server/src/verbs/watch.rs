//! Watch: streams the events of a collection from a position in the store's history.
//!
//! In the common case (JSON, whole objects) an event is sent as its stored bytes. Events are encoded only for a watch
//! whose selector starts or stops matching an object, or that requests tables or metadata.

use crate::flow::Hold;
use crate::object::{self, ENVELOPE, Event, Object};
use crate::request::call::{Call, invalid_options};
use crate::request::negotiate::{Form, Offer, View};
use crate::response::body::{self, Body};
use crate::response::error::{ApiError, Result};
use crate::response::views::{self, IncludeObject};
use crate::response::{self, ApiResponse};
use crate::verbs::list::Filter;
use crate::verbs::unread::{Next, Unread};
use api::Errors;
use api::status::Status;
use api::value::ValueExt;
use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use store::EventKind;
use tokio::time::{Instant, Sleep};

/// How many events are read at a time, and how many bytes are sent in one chunk.
const BATCH: usize = 256;
const PIECE: usize = 64 * 1024;
/// Capacity for lines that an idle watch keeps.
const LINES_KEPT: usize = 4;

const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// The last bookmark is sent this long before the end, so that the client can resume close to it.
const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);
/// Without `timeoutSeconds` a watch lasts between this and twice this.
const DEFAULT_TIMEOUT: u64 = 30 * 60;

/// The maximum, because a client may request any number of seconds.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

enum From {
    /// Existing objects as ADDED first, followed by a bookmark if requested.
    Beginning {
        marked: bool,
    },
    After(u64),
}

pub(crate) async fn watch(call: &Call) -> Result<ApiResponse> {
    let form = call.form(Offer::Watch)?;
    let filter = Filter::of(call)?;
    let include = IncludeObject::parse(call.query.text("includeObject"))?;
    let bookmarks = call.query.flag("allowWatchBookmarks");
    let from = from(call)?;
    let lasts = match call.query.number("timeoutSeconds").map_err(ApiError::bad_request)? {
        Some(seconds) if seconds > 0 => Duration::from_secs(seconds as u64).min(LONGEST),
        _ => Duration::from_secs(DEFAULT_TIMEOUT + clock::random_u64() % DEFAULT_TIMEOUT),
    };
    call.server.barrier().await?;

    let collection = call.kind.storage.collection.clone();
    let shape = Shape { filter, form, include, columns_sent: false };
    let (watcher, initial) = match from {
        From::After(revision) => {
            let watcher = match shape.filter.partition() {
                Some(partition) => call.store().watch_of(&collection, partition, revision),
                None => call.store().watch(&collection, revision),
            };
            match watcher {
                Ok(watcher) => (watcher, None),
                Err(_) => return Ok(too_old(revision, call.store().revision())),
            }
        }
        From::Beginning { marked } => {
            let prefix = &shape.filter.prefix;
            let (revision, objects, watcher) = match shape.filter.partition() {
                Some(partition) => call.store().list_and_watch_of(&collection, partition, prefix),
                None => call.store().list_and_watch(&collection, prefix),
            };
            (watcher, Some((revision, objects, marked)))
        }
    };
    let ends = Instant::now() + lasts;
    let (initial, marks) = match initial {
        None => (Unread::default(), None),
        Some((revision, objects, marked)) => {
            (Unread::of(objects), (marked && bookmarks).then_some(revision))
        }
    };
    let stream = WatchStream {
        watcher: watcher.limit_bytes(PIECE),
        initial,
        marks,
        lines: VecDeque::new(),
        shape,
        bookmarks,
        ends,
        next_bookmark: next_bookmark(ends),
        timer: Box::pin(tokio::time::sleep_until(next_bookmark(ends))),
        over: Box::pin(over(call)),
        done: false,
        _held: call.held.clone(),
    };
    let stream = futures::stream::unfold(stream, |mut stream| async move {
        let piece = stream.next().await?;
        Some((piece, stream))
    });
    Ok(response::build(StatusCode::OK, response::JSON, Body::stream(stream)))
}

/// Resolves when the server stops, or stops serving the kind.
fn over(call: &Call) -> impl Future<Output = ()> + Send + use<> {
    let mut closing = call.server.closing();
    let mut gone = call.server.custom_resources().gone(&call.kind);
    async move {
        tokio::select! {
            biased;
            _ = closing.wait_for(|closing| *closing) => {}
            () = gone.wait() => {}
        }
    }
}

fn from(call: &Call) -> Result<From> {
    let version = call.query.text("resourceVersion");
    let matching = call.query.text("resourceVersionMatch");
    let initial =
        call.query.text("sendInitialEvents").map(|_| call.query.flag("sendInitialEvents"));
    let options = json!({});
    let root = api::At::root(&options);
    let mut errors = Errors::default();
    if let Some(text) = matching {
        let field = root.field("resourceVersionMatch");
        if initial.is_none() {
            errors.forbidden(
                &field,
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            );
        } else if text != "NotOlderThan" {
            errors.not_supported(&field, &["NotOlderThan"]);
        }
    } else if initial.is_some() {
        let field = root.field("resourceVersionMatch");
        errors.forbidden(
            &field,
            "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        );
    }
    if !errors.is_empty() {
        return Err(invalid_options("ListOptions", errors));
    }
    let revision = match version {
        None => 0,
        // Upstream returns a plain 500 here.
        Some(text) => text.parse().map_err(|_| {
            ApiError::Status(Box::new(Status::failure(
                500,
                "",
                format!("strconv.ParseUint: parsing \"{text}\": invalid syntax"),
            )))
        })?,
    };
    Ok(match (initial, revision) {
        (Some(true), _) => From::Beginning { marked: true },
        (None, 0) => From::Beginning { marked: false },
        (Some(false), 0) => From::After(call.store().revision()),
        (_, revision) => From::After(revision),
    })
}

/// A stream with one error event for an expired version.
fn too_old(requested: u64, oldest: u64) -> ApiResponse {
    let status = Status::failure(
        410,
        "Expired",
        format!("too old resource version: {requested} ({oldest})"),
    );
    response::build(StatusCode::OK, response::JSON, error_line(&status).to_vec())
}

fn error_line(status: &Status) -> Bytes {
    [b"{\"type\":\"ERROR\",\"object\":", status.to_bytes().as_slice(), b"}\n"].concat().into()
}

fn line(kind: &str, object: &Value) -> Bytes {
    Bytes::from(format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n"))
}

/// [`views::partial`], as text.
fn partial_line(kind: &str, metadata: &[u8], beta: bool) -> Bytes {
    let version = views::meta_version(beta);
    let head = format!(
        "{{\"type\":\"{kind}\",\"object\":{{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"{version}\",\"metadata\":"
    );
    [head.as_bytes(), metadata, b"}}\n"].concat().into()
}

fn next_bookmark(ends: Instant) -> Instant {
    let now = Instant::now();
    let last = ends.checked_sub(BOOKMARK_BEFORE_END).filter(|last| *last > now);
    last.unwrap_or(ends).min(now + BOOKMARK_EVERY)
}

struct WatchStream {
    watcher: store::Watcher<crate::object::Index>,
    /// Initial objects that are not sent yet. They are encoded while sending, so a slow reader of many objects holds no
    /// copy of all.
    initial: Unread,
    /// The bookmark after the initial objects, if requested.
    marks: Option<u64>,
    /// Lines that are ready to be sent.
    lines: VecDeque<Bytes>,
    shape: Shape,
    bookmarks: bool,
    ends: Instant,
    next_bookmark: Instant,
    /// Reused between events: a new timer for each would cost more than the event.
    timer: Pin<Box<Sleep>>,
    /// Also reused: it is polled before every event.
    over: Pin<Box<dyn Future<Output = ()> + Send>>,
    done: bool,
    /// Its share of the user's limit of watches.
    _held: Option<Arc<Hold>>,
}

impl WatchStream {
    /// Encodes enough initial objects for one chunk.
    fn take_initial(&mut self) {
        let mut size: usize = self.lines.iter().map(Bytes::len).sum();
        let begun = self.lines.len();
        while size < PIECE {
            let before = self.lines.len();
            match self.initial.next() {
                Next::Object(object) if !self.shape.filter.matches(&object) => continue,
                Next::Object(object) => self.shape.synthetic(&object, &mut self.lines),
                Next::Gone => {
                    self.done = true;
                    self.lines.push_back(error_line(&Status::failure(
                        410,
                        "Expired",
                        "The client took too long to read the first objects: watch again",
                    )));
                    return;
                }
                Next::End => match self.marks.take() {
                    Some(revision) => self.lines.push_back(self.shape.bookmark(revision, true)),
                    None => return,
                },
            }
            size += self.lines.range(before..).map(Bytes::len).sum::<usize>();
        }
        if self.lines.len() > begun {
            self.initial.guard();
        }
    }

    /// The next bytes to send; none when the watch has ended.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if !self.done {
                self.take_initial();
            }
            if let Some(piece) = body::join(&mut self.lines, PIECE) {
                return Some(piece);
            }
            if self.done {
                return None;
            }
            self.lines.shrink_to(LINES_KEPT);
            let events = tokio::select! {
                biased;
                events = self.watcher.next(BATCH) => events,
                () = self.timer.as_mut() => {
                    let now = Instant::now();
                    if now >= self.ends {
                        return None;
                    }
                    self.next_bookmark = next_bookmark(self.ends);
                    self.timer.as_mut().reset(self.next_bookmark.max(now + Duration::from_millis(1)));
                    if self.bookmarks {
                        return Some(self.shape.bookmark(self.watcher.revision(), false));
                    }
                    continue;
                }
                () = self.over.as_mut() => return None,
            };
            match events {
                Ok(events) => {
                    self.lines.extend(events.iter().filter_map(|event| self.shape.show(event)));
                }
                Err(_) => {
                    self.done = true;
                    let status = Status::failure(
                        410,
                        "Expired",
                        "The watch fell too far behind the events: list again and watch from there",
                    );
                    return Some(error_line(&status));
                }
            }
        }
    }
}

/// Selects and encodes events for one watch.
struct Shape {
    filter: Filter,
    form: Form,
    include: IncludeObject,
    columns_sent: bool,
}

impl Shape {
    fn show(&mut self, event: &Arc<Event>) -> Option<Bytes> {
        let now = self.filter.matches(&event.object);
        let everything = self.filter.selects_everything();
        let before = match &event.previous {
            Some(previous) if !everything => self.filter.matches(previous),
            Some(_) => now,
            None => false,
        };
        let seen = match (event.kind, before, now) {
            (EventKind::Deleted, _, true) => EventKind::Deleted,
            (EventKind::Deleted, _, false) => return None,
            (_, false, true) => EventKind::Created,
            (_, true, true) => EventKind::Updated,
            (_, true, false) => EventKind::Deleted,
            (_, false, false) => return None,
        };
        let plain = self.is_plain(&event.object);
        if plain && seen == event.kind {
            return Some(event.object.frame());
        }
        // If the object no longer matches, the event is DELETED with the last matching state and the version of the
        // update.
        let object = match (&event.previous, now) {
            (Some(previous), false) => {
                let mut object = views::value(&self.filter.kind, previous);
                object["metadata"]["resourceVersion"] = event.revision.to_string().into();
                object
            }
            _ => return Some(self.as_it_is(name(seen), &event.object)),
        };
        Some(self.made(name(seen), object))
    }

    /// The ADDED event of an object that existed before the watch. Uses the stored bytes without copying.
    fn synthetic(&mut self, object: &Arc<Object>, lines: &mut VecDeque<Bytes>) {
        if !self.is_plain(object) {
            lines.push_back(self.as_it_is("ADDED", object));
        } else if object.kind() == EventKind::Created {
            lines.push_back(object.frame());
        } else {
            lines.push_back(Bytes::from_static(ENVELOPE.created));
            lines.push_back(object.bytes());
            lines.push_back(Bytes::from_static(ENVELOPE.end));
        }
    }

    fn is_plain(&self, object: &Object) -> bool {
        self.form.view == View::Whole && self.filter.is_stored_form(object)
    }

    /// For metadata-only watches the metadata is usually cut out of the stored text: the garbage collector watches all
    /// objects this way.
    fn as_it_is(&mut self, kind: &str, object: &Object) -> Bytes {
        if let View::Partial { beta } = self.form.view
            && self.filter.is_stored_form(object)
            && let Some(metadata) = object::metadata(object.as_slice())
        {
            return partial_line(kind, metadata, beta);
        }
        self.made(kind, views::value(&self.filter.kind, object))
    }

    fn made(&mut self, kind: &str, object: Value) -> Bytes {
        let shown = match self.form.view {
            View::Table { beta } => {
                let columns = !std::mem::replace(&mut self.columns_sent, true);
                let version = object.text(&["metadata", "resourceVersion"]).to_owned();
                let metadata = json!({ "resourceVersion": version });
                // A bookmark consists of metadata, so it is always included.
                let include = match self.include {
                    IncludeObject::None if kind == "BOOKMARK" => IncludeObject::Metadata,
                    include => include,
                };
                views::table(&self.filter.kind, &[object], metadata, beta, include, columns)
            }
            View::Partial { beta } => views::partial(&object, beta),
            View::Whole | View::PartialList { .. } | View::Discovery => object,
        };
        line(kind, &shown)
    }

    /// A bookmark: kind, apiVersion and the version up to which all events were sent.
    fn bookmark(&mut self, revision: u64, initial_end: bool) -> Bytes {
        let mut metadata = json!({ "resourceVersion": revision.to_string() });
        if initial_end {
            metadata["annotations"] = json!({ "k8s.io/initial-events-end": "true" });
        }
        let kind = &self.filter.kind;
        let object = json!({
            "kind": kind.kind,
            "apiVersion": kind.api_version(),
            "metadata": metadata,
        });
        self.made("BOOKMARK", object)
    }
}

fn name(kind: EventKind) -> &'static str {
    match kind {
        EventKind::Created => "ADDED",
        EventKind::Updated => "MODIFIED",
        EventKind::Deleted => "DELETED",
    }
}
