//! `metrics.k8s.io`: resource usage of nodes and pods, for `kubectl top` and autoscalers (C-138).
//!
//!     agents' /metrics/resource ──every 15 s──▶ scrape ──▶ samples ──▶ answer ──▶ GET, LIST
//!
//! Nothing is stored: samples are in memory, at most one set per container, and are dropped when their node does not respond.
//! Not here: measuring (`runtime`), exposing it (`endpoint`).

mod duration;
mod samples;
pub(crate) mod scrape;

use crate::object::{Object, Stored as _, store_name};
use crate::request::call::Call;
use crate::request::negotiate::Offer;
use crate::response::error::{ApiError, Result};
use crate::response::views::{self, IncludeObject};
use crate::response::{self, ApiResponse};
use crate::verbs::list::Filter;
use api::Kind;
use api::quantity::Quantity;
use http::StatusCode;
use samples::{NodeSamples, Used};
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

pub(crate) const GROUP: &str = "metrics.k8s.io";

/// The latest samples by node.
#[derive(Default)]
pub(crate) struct Usage(Mutex<HashMap<String, NodeSamples>>);

impl Usage {
    fn nodes(&self) -> MutexGuard<'_, HashMap<String, NodeSamples>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn keep_only(&self, known: &BTreeSet<String>) {
        self.nodes().retain(|name, _| known.contains(name));
    }
}

pub(crate) async fn answer(call: &Call, verb: &str) -> Result<ApiResponse> {
    match verb {
        "get" => get(call).await,
        "list" => list(call).await,
        _ => Err(ApiError::MethodNotAllowed),
    }
}

async fn get(call: &Call) -> Result<ApiResponse> {
    let form = call.form(Offer::Object)?;
    let include = IncludeObject::parse(call.query.text("includeObject"))?;
    call.server.barrier().await?;
    let measured = Measured::of(call)?;
    let namespace = call.target.namespace_of(&call.kind);
    let name = store_name(&namespace, &call.target.name);
    let object = call.store().get(&measured.kind.storage.collection, &name);
    let object = object.ok_or_else(|| ApiError::not_found(&measured.kind, &call.target.name))?;
    let shown = measured.figures(call, &object).ok_or_else(|| ApiError::NotFound {
        // Upstream's message has the kind instead of the resource, and the namespace with the name.
        resource: format!("{}.{GROUP}", call.kind.kind.to_lowercase()),
        group: GROUP.into(),
        name,
    })?;
    let bytes = views::single(&call.kind, views::convert(&call.kind, &shown), form, include);
    Ok(response::bytes(StatusCode::OK, form, bytes))
}

async fn list(call: &Call) -> Result<ApiResponse> {
    let form = call.form(Offer::List)?;
    let include = IncludeObject::parse(call.query.text("includeObject"))?;
    let filter = Filter::of(call)?;
    call.server.barrier().await?;
    let measured = Measured::of(call)?;
    let (_, all) = call.store().list(&measured.kind.storage.collection, &filter.prefix, None);
    let all = all.into_iter().filter(|object| filter.matches(object));
    let shown = all.filter_map(|object| measured.figures(call, &object)).collect();
    let bytes = views::encode(&views::list(&call.kind, shown, json!({}), form, include), form);
    Ok(response::bytes(StatusCode::OK, form, bytes))
}

/// The kind of the measured objects.
struct Measured {
    kind: Arc<Kind>,
}

impl Measured {
    fn of(call: &Call) -> Result<Measured> {
        let kind = call.server.built_in().resource("", "v1", &call.kind.plural);
        Ok(Measured { kind: kind.ok_or(ApiError::NoSuchPath)?.clone() })
    }

    /// None if there are no samples yet.
    fn figures(&self, call: &Call, object: &Object) -> Option<Value> {
        if self.kind.namespaced { self.pod(call, object) } else { node(call, object) }
    }

    /// Uses only the samples of the pod's own node.
    fn pod(&self, call: &Call, pod: &Object) -> Option<Value> {
        let field = |name| pod.field(&self.kind, name).unwrap_or_default();
        if field("status.phase") != "Running" {
            return None;
        }
        let nodes = call.server.usage().nodes();
        let containers = nodes.get(field("spec.nodeName"))?.pod(pod.name())?;
        let first = containers.iter().map(|(_, used)| *used).min_by_key(|used| used.at)?;
        let mut shown = shown(pod, first);
        let container =
            |(name, used): &(&str, Used)| json!({ "name": name, "usage": amounts(used) });
        shown["containers"] = containers.iter().map(container).collect();
        Some(shown)
    }
}

fn node(call: &Call, node: &Object) -> Option<Value> {
    let used = call.server.usage().nodes().get(node.name())?.node()?;
    let mut shown = shown(node, used);
    shown["usage"] = amounts(&used);
    Some(shown)
}

fn shown(object: &Object, used: Used) -> Value {
    let (namespace, name) = object.place();
    let mut metadata = json!({ "name": name, "creationTimestamp": clock::now_rfc3339() });
    if !namespace.is_empty() {
        metadata["namespace"] = namespace.into();
    }
    let labels = &object.meta().labels;
    if !labels.is_empty() {
        metadata["labels"] = json!(labels);
    }
    json!({
        "metadata": metadata,
        "timestamp": clock::rfc3339(used.at),
        "window": duration::text(used.window),
    })
}

fn amounts(used: &Used) -> Value {
    let canonical = |text: String| Quantity::parse(&text).map_or(text, |parsed| parsed.to_string());
    let memory = match used.memory_bytes % 1024 {
        0 => canonical(format!("{}Ki", used.memory_bytes / 1024)),
        // With binary suffixes, the plain number is the shortest exact form.
        _ => used.memory_bytes.to_string(),
    };
    json!({ "cpu": canonical(format!("{}n", used.cpu_nanocores)), "memory": memory })
}
