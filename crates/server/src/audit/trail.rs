//! The audit events of one request: one line per stage; a later line repeats the content of earlier ones.

use super::policy::{Level, Verdict};
use super::{Audit, Stage};
use crate::request::summary::RequestSummary;
use crate::response::ApiResponse;
use crate::response::body::Body;
use access::authn::User;
use bytes::Bytes;
use futures::Stream;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};

/// The request line and headers, known before the body is read.
#[derive(Debug, Clone)]
pub(crate) struct Wire {
    pub(crate) id: String,
    pub(crate) uri: String,
    pub(crate) method: String,
    pub(crate) source: String,
    pub(crate) agent: String,
    pub(crate) received: String,
}

/// A request that is logged.
pub(crate) struct Trail {
    audit: Arc<Audit>,
    verdict: Verdict,
    event: Mutex<Event>,
}

#[derive(Default)]
struct Event {
    /// Fields of every stage.
    fields: Map<String, Value>,
    annotations: BTreeMap<String, String>,
    request_object: Option<Value>,
    response_status: Option<Value>,
    response_object: Option<Value>,
}

impl Trail {
    pub(super) fn new(
        audit: Arc<Audit>,
        verdict: Verdict,
        wire: &Wire,
        summary: &RequestSummary,
    ) -> Trail {
        let fields = fields(&verdict, wire, summary);
        let event = Event { fields, ..Event::default() };
        Trail { audit, verdict, event: Mutex::new(event) }
    }

    /// Adds an annotation; the first value of a key stays.
    pub(crate) fn annotate(&self, key: &str, value: impl Into<String>) {
        self.event().annotations.entry(key.to_owned()).or_insert_with(|| value.into());
    }

    /// Whether the policy wants the request body.
    pub(crate) fn takes_request(&self) -> bool {
        self.verdict.level >= Level::Request
    }

    pub(crate) fn request_object(&self, object: Value) {
        if self.takes_request() {
            self.event().request_object = Some(self.trimmed(object));
        }
    }

    /// Records the response before it is compressed. Only the first call counts.
    pub(crate) fn answered(&self, response: &ApiResponse) {
        let mut event = self.event();
        if event.response_status.is_some() {
            return;
        }
        let code = response.status();
        let wanted = self.verdict.level >= Level::RequestResponse;
        let is_error = code.is_client_error() || code.is_server_error();
        let object = match wanted || is_error {
            true => whole(response.body()).and_then(|bytes| serde_json::from_slice(&bytes).ok()),
            false => None,
        };
        event.response_status = Some(status(code.as_u16(), object.as_ref()));
        if wanted {
            event.response_object = object.map(|object| self.trimmed(object));
        }
    }

    /// Writes the line of a stage, unless the policy leaves that stage out.
    pub(crate) fn log(&self, stage: Stage) {
        if self.verdict.omitted.contains(&stage) {
            return;
        }
        let line = self.event().line(stage);
        self.audit.write(&line);
    }

    /// Logs the end of the response when its body is sent or the client has disconnected.
    pub(crate) fn follow(self: Arc<Self>, response: ApiResponse) -> ApiResponse {
        let (parts, body) = response.into_parts();
        let body = match body {
            Body::Stream(stream) => Body::stream(Followed { stream, _end: End(self) }),
            whole => {
                self.log(Stage::ResponseComplete);
                whole
            }
        };
        ApiResponse::from_parts(parts, body)
    }

    fn trimmed(&self, mut object: Value) -> Value {
        if self.verdict.omit_managed_fields {
            let items = object.get_mut("items").and_then(Value::as_array_mut);
            items.into_iter().flatten().for_each(remove_managed_fields);
            remove_managed_fields(&mut object);
        }
        object
    }

    fn event(&self) -> MutexGuard<'_, Event> {
        self.event.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn remove_managed_fields(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
}

impl Event {
    fn line(&self, stage: Stage) -> String {
        let mut line = self.fields.clone();
        line.insert("stage".into(), stage.word().into());
        line.insert("stageTimestamp".into(), clock::rfc3339_micros(clock::now()).into());
        let mut add = |key: &str, value: &Option<Value>| {
            if let Some(value) = value {
                line.insert(key.into(), value.clone());
            }
        };
        add("requestObject", &self.request_object);
        if stage != Stage::RequestReceived {
            add("responseStatus", &self.response_status);
        }
        if stage == Stage::ResponseComplete {
            add("responseObject", &self.response_object);
        }
        if !self.annotations.is_empty() {
            line.insert("annotations".into(), json!(self.annotations));
        }
        Value::Object(line).to_string()
    }
}

fn fields(verdict: &Verdict, wire: &Wire, summary: &RequestSummary) -> Map<String, Value> {
    let mut fields = Map::new();
    let mut add = |key: &str, value: Value| fields.insert(key.to_owned(), value);
    add("kind", "Event".into());
    add("apiVersion", "audit.k8s.io/v1".into());
    add("level", format!("{:?}", verdict.level).into());
    add("auditID", wire.id.as_str().into());
    add("requestURI", wire.uri.as_str().into());
    add("verb", summary.verb().into());
    add("user", summary.user.as_deref().map_or(json!({}), user));
    if let Some(other) = &summary.impersonated {
        add("impersonatedUser", user(other));
    }
    add("sourceIPs", json!([wire.source]));
    if !wire.agent.is_empty() {
        add("userAgent", wire.agent.as_str().into());
    }
    if summary.is_resource() {
        add(
            "objectRef",
            filled([
                ("resource", &summary.resource),
                ("namespace", &summary.namespace),
                ("name", &summary.name),
                ("apiGroup", &summary.group),
                ("apiVersion", &summary.version),
                ("subresource", &summary.subresource),
            ]),
        );
    }
    add("requestReceivedTimestamp", wire.received.as_str().into());
    fields
}

fn user(user: &User) -> Value {
    let mut shown = filled([("username", &user.name), ("uid", &user.uid)]);
    if !user.groups.is_empty() {
        shown["groups"] = json!(user.groups);
    }
    if !user.extra.is_empty() {
        shown["extra"] = json!(user.extra);
    }
    shown
}

/// The fields that are not empty.
fn filled<const N: usize>(fields: [(&str, &String); N]) -> Value {
    let filled = fields.into_iter().filter(|(_, value)| !value.is_empty());
    filled.map(|(key, value)| (key.to_owned(), value.as_str().into())).collect::<Map<_, _>>().into()
}

/// The code, and the fields of a Status in the response.
fn status(code: u16, object: Option<&Value>) -> Value {
    let mut shown = json!({ "metadata": {}, "code": code });
    if let Some(status) = object.filter(|object| object["kind"] == "Status") {
        for field in ["status", "message", "reason", "details"] {
            if let Some(value) = status.get(field) {
                shown[field] = value.clone();
            }
        }
    }
    shown
}

/// None for a stream.
fn whole(body: &Body) -> Option<Bytes> {
    match body {
        Body::Full(bytes) => bytes.clone(),
        Body::Parts { parts, .. } => {
            // Copies each byte once: a list has several parts per object.
            let mut all = Vec::with_capacity(parts.iter().map(Bytes::len).sum());
            parts.iter().for_each(|part| all.extend_from_slice(part));
            Some(all.into())
        }
        Body::Stream(_) => None,
    }
}

/// A stream that is logged when it ends or is dropped.
struct Followed<S> {
    stream: S,
    _end: End,
}

struct End(Arc<Trail>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.log(Stage::ResponseComplete);
    }
}

impl<S: Stream<Item = Bytes> + Unpin> Stream for Followed<S> {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        Pin::new(&mut self.stream).poll_next(cx)
    }
}
