//! Watching a collection: a stream of events from a cursor in the store's ring.
//!
//! In the common case (JSON, whole objects) an event is sent as the bytes it was stored as. Only a
//! watcher whose selector sees an object come into or fall out of view, or who asked for tables or
//! metadata only, gets something made for it.

use crate::answer::{self, Answer};
use crate::body::{self, Body};
use crate::call::{Call, invalid_options};
use crate::customs;
use crate::error::{ApiError, Result};
use crate::negotiate::{Form, Offer, View};
use crate::object::{self, ENVELOPE, Event, Object};
use crate::verbs::list::Filter;
use crate::views::{self, IncludeObject};
use api::Errors;
use api::status::Status;
use api::value::ValueExt;
use bytes::{Bytes, BytesMut};
use http::StatusCode;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use store::EventKind;
use tokio::time::{Instant, Sleep};

/// Events taken from the ring at a time, and how many bytes of them go out in one piece.
const BATCH: usize = 256;
const PIECE: usize = 64 * 1024;
/// Room for lines that a watcher keeps while nothing happens.
const LINES_KEPT: usize = 4;

const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// A last bookmark comes this long before the stream ends, so that the client resumes close to it.
const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);
/// Without `timeoutSeconds` a watch lasts between this and twice this.
const DEFAULT_TIMEOUT: u64 = 30 * 60;

/// A client may ask for more than there is time.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

enum From {
    /// Everything that exists as ADDED first; a bookmark marks their end if asked for.
    Beginning {
        marked: bool,
    },
    After(u64),
}

pub(crate) async fn watch(call: &Call) -> Result<Answer> {
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
            let watcher = match shape.filter.topic() {
                Some(topic) => call.store().watch_of(&collection, topic, revision),
                None => call.store().watch(&collection, revision),
            };
            match watcher {
                Ok(watcher) => (watcher, None),
                Err(_) => return Ok(too_old(revision, call.store().revision())),
            }
        }
        From::Beginning { marked } => {
            let prefix = &shape.filter.prefix;
            let (revision, objects, watcher) = match shape.filter.topic() {
                Some(topic) => call.store().list_and_watch_of(&collection, topic, prefix),
                None => call.store().list_and_watch(&collection, prefix),
            };
            (watcher, Some((revision, objects, marked)))
        }
    };
    let ends = Instant::now() + lasts;
    let (initial, marks) = match initial {
        None => (Vec::new(), None),
        Some((revision, objects, marked)) => (objects, (marked && bookmarks).then_some(revision)),
    };
    let stream = WatchStream {
        watcher,
        initial: initial.into_iter(),
        marks,
        lines: VecDeque::new(),
        shape,
        bookmarks,
        ends,
        next_bookmark: next_bookmark(ends),
        timer: Box::pin(tokio::time::sleep_until(next_bookmark(ends))),
        over: Box::pin(over(call)),
        done: false,
    };
    let stream = futures::stream::unfold(stream, |mut stream| async move {
        let piece = stream.next().await?;
        Some((piece, stream))
    });
    Ok(answer::answer(StatusCode::OK, answer::JSON, Body::stream(stream)))
}

/// Resolves when the server stops, or stops serving the kind.
fn over(call: &Call) -> impl Future<Output = ()> + Send + use<> {
    let mut closing = call.server.closing();
    let mut gone = customs::Gone::of(&call.server, &call.kind);
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
    let asked = json!({});
    let root = api::At::root(&asked);
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
        // Upstream answers this one with a bare 500.
        Some(text) => text.parse().map_err(|_| {
            ApiError::Said(Box::new(Status::failure(
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

/// A stream that says once that the version is gone, and ends.
fn too_old(asked: u64, oldest: u64) -> Answer {
    let said =
        Status::failure(410, "Expired", format!("too old resource version: {asked} ({oldest})"));
    answer::answer(StatusCode::OK, answer::JSON, error_line(&said).to_vec())
}

fn error_line(status: &Status) -> Bytes {
    line("ERROR", &status.to_json())
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
    /// What was there when the watch began and is still to be told. Lines are made of it as they are
    /// sent: a slow reader of many objects holds no copy of all of them.
    initial: std::vec::IntoIter<Arc<Object>>,
    /// What marks its end, if the client asked for that.
    marks: Option<u64>,
    /// Ready to be sent.
    lines: VecDeque<Bytes>,
    shape: Shape,
    bookmarks: bool,
    ends: Instant,
    next_bookmark: Instant,
    /// Kept between events; setting a new timer for each would cost more than the event.
    timer: Pin<Box<Sleep>>,
    /// Kept as well: it is asked before every event and has one thing to say in its life.
    over: Pin<Box<dyn Future<Output = ()> + Send>>,
    done: bool,
}

impl WatchStream {
    /// Enough of what was there at the beginning for one piece.
    fn take_initial(&mut self) {
        let mut size: usize = self.lines.iter().map(Bytes::len).sum();
        while size < PIECE {
            let line = match self.initial.next() {
                Some(object) if !self.shape.filter.matches(&object) => continue,
                Some(object) => self.shape.synthetic(&object),
                None => match self.marks.take() {
                    Some(revision) => self.shape.bookmark(revision, true),
                    None => {
                        self.initial = Vec::new().into_iter();
                        return;
                    }
                },
            };
            size += line.len();
            self.lines.push_back(line);
        }
    }

    /// The next bytes to send; none when the watch is over.
    async fn next(&mut self) -> Option<Bytes> {
        while !self.done {
            self.take_initial();
            if let Some(piece) = body::join(&mut self.lines, PIECE) {
                return Some(piece);
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
                    let said = Status::failure(
                        410,
                        "Expired",
                        "The watch fell too far behind the events: list again and watch from there",
                    );
                    return Some(error_line(&said));
                }
            }
        }
        None
    }
}

/// What a watcher sees of an event.
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
        // Falling out of view shows the last state that was in view, with the version of the
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

    /// An object that was there before the watch began.
    fn synthetic(&mut self, object: &Arc<Object>) -> Bytes {
        if !self.is_plain(object) {
            return self.as_it_is("ADDED", object);
        }
        let bytes = object.bytes();
        let mut line =
            BytesMut::with_capacity(ENVELOPE.created.len() + bytes.len() + ENVELOPE.end.len());
        line.extend_from_slice(ENVELOPE.created);
        line.extend_from_slice(&bytes);
        line.extend_from_slice(ENVELOPE.end);
        line.freeze()
    }

    fn is_plain(&self, object: &Object) -> bool {
        self.form.view == View::Whole && self.filter.is_stored_form(object)
    }

    /// Of most objects that somebody watches the metadata of, it is cut out of the stored text: the
    /// garbage collector watches everything in this way.
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
                // A bookmark is nothing but its metadata, so nobody can do without it.
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

    /// Only kind, apiVersion and the version up to which everything was sent.
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
