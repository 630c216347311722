//! GET of a collection: selectors, pages and snapshots.

use crate::object::{self, Object, Stored, store_name};
use crate::request::call::{Call, invalid_options};
use crate::request::negotiate::{Form, Offer};
use crate::response::body::Body;
use crate::response::error::{ApiError, Result};
use crate::response::views::{self, IncludeObject};
use crate::response::{self, ApiResponse};
use api::crd::Custom;
use api::selector::{FieldSelector, LabelSelector};
use api::status::Cause;
use api::{Errors, Kind};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// How long a read waits for a future version.
const FUTURE_VERSION_WAIT: Duration = Duration::from_secs(3);

/// Which objects of a collection a request selects.
#[derive(Clone)]
pub(crate) struct Filter {
    pub(crate) kind: Arc<Kind>,
    /// `namespace/`, or empty for all namespaces.
    pub(crate) prefix: String,
    labels: LabelSelector,
    fields: FieldSelector,
    /// The prefix of stored bytes that need no conversion.
    type_prefix: String,
}

impl Filter {
    pub(crate) fn of(call: &Call) -> Result<Filter> {
        let labels = call.query.get("labelSelector").unwrap_or_default();
        let labels = LabelSelector::parse(labels).map_err(ApiError::bad_request)?;
        let mut fields = call.query.get("fieldSelector").unwrap_or_default().to_owned();
        if call.target.watch_prefix && !call.target.name.is_empty() {
            fields = format!("metadata.name={}", call.target.name);
        }
        let fields = FieldSelector::parse(&fields).map_err(ApiError::bad_request)?;
        for requirement in fields.requirements() {
            check_field(&call.kind, &requirement.field)?;
        }
        let namespace = call.target.namespace_of(&call.kind);
        let prefix = if namespace.is_empty() { namespace } else { format!("{namespace}/") };
        let type_prefix = object::type_prefix(&call.kind);
        Ok(Filter { kind: call.kind.clone(), prefix, labels, fields, type_prefix })
    }

    /// Whether the object is stored in this kind's version.
    pub(crate) fn is_stored_form(&self, object: &Object) -> bool {
        views::is_stored_form(&self.kind, &self.type_prefix, object)
    }

    pub(crate) fn matches(&self, object: &Object) -> bool {
        object.name().starts_with(&self.prefix)
            && (self.labels.is_everything() || self.labels.matches(|key| object.label(key)))
            && self.matches_fields(object)
    }

    fn matches_fields(&self, object: &Object) -> bool {
        let custom = self.kind.custom.as_ref();
        let asks = |custom: &&Arc<Custom>| {
            self.fields.requirements().iter().any(|requirement| custom.selects(&requirement.field))
        };
        let Some(custom) = custom.filter(asks) else {
            return self.fields.matches(|field| object.field(&self.kind, field));
        };
        // Selectable fields of a custom kind depend on version and definition, so unlike those of built-in kinds they
        // are read each time.
        let value = views::value(&self.kind, object);
        self.fields.requirements().iter().all(|requirement| {
            let found = match custom.selected(&requirement.field, &value) {
                Some(found) => found,
                None => object.field(&self.kind, &requirement.field).unwrap_or_default().to_owned(),
            };
            (found == requirement.value) != requirement.not
        })
    }

    pub(crate) fn selects_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.requirements().is_empty()
    }

    /// The partition of the collection that contains all matches, if there is one.
    pub(crate) fn partition(&self) -> Option<&str> {
        object::partition_key(&self.kind.storage.collection, &self.fields)
    }

    /// The only name that can match, if namespace and name are given. Then no list is needed.
    fn single(&self) -> Option<String> {
        let name = self.fields.exact("metadata.name")?;
        match (self.kind.namespaced, self.prefix.strip_suffix('/')) {
            (false, _) => Some(name.to_owned()),
            (true, Some(namespace)) => Some(store_name(namespace, name)),
            (true, None) => None,
        }
    }
}

fn check_field(kind: &Kind, field: &str) -> Result<()> {
    let selectable = rules::of(kind).fields;
    let known = field == "metadata.name"
        || (field == "metadata.namespace" && kind.kind != "Node")
        || selectable.iter().any(|(known, _)| *known == field)
        || kind.custom.as_ref().is_some_and(|custom| custom.selects(field));
    if known {
        return Ok(());
    }
    let message = if selectable.is_empty() {
        format!(
            "\"{field}\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
        )
    } else {
        format!("field label not supported: {field}")
    };
    Err(ApiError::bad_request(message))
}

/// The options of a list besides selectors.
struct Options {
    limit: usize,
    from: Start,
}

enum Start {
    Newest,
    /// Any state that is not older than this.
    NotOlderThan(u64),
    Exactly(u64),
    Continue(Continue),
}

/// Where the next page starts, as an opaque token. Version 0 means the newest state, for a client that continues a list
/// whose snapshot has expired.
#[derive(serde::Serialize, serde::Deserialize)]
struct Continue {
    rv: u64,
    after: String,
}

impl Continue {
    fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default())
    }

    fn decode(token: &str) -> Result<Continue> {
        let bad = |why: &dyn std::fmt::Display| {
            ApiError::bad_request(format!("invalid continue token: {why}"))
        };
        let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|error| bad(&error))?;
        serde_json::from_slice(&bytes).map_err(|error| bad(&error))
    }
}

pub(crate) fn resource_version(text: &str) -> Result<u64> {
    text.parse().map_err(|_| {
        ApiError::bad_request(format!(
            "invalid resource version: strconv.ParseUint: parsing \"{text}\": invalid syntax"
        ))
    })
}

fn options(call: &Call) -> Result<Options> {
    let limit = call.query.number("limit").map_err(ApiError::bad_request)?.unwrap_or(0).max(0);
    let version = call.query.text("resourceVersion");
    let matching = call.query.text("resourceVersionMatch");
    check_version_match(call, version, matching)?;
    let from = match (call.query.text("continue"), version, matching) {
        (Some(_), Some(version), _) if version != "0" => {
            return Err(ApiError::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        (Some(token), _, _) => Start::Continue(Continue::decode(token)?),
        (None, None, _) => Start::Newest,
        (None, Some("0"), _) => Start::NotOlderThan(0),
        (None, Some(text), Some("Exact")) => Start::Exactly(resource_version(text)?),
        (None, Some(text), None) if limit > 0 => Start::Exactly(resource_version(text)?),
        (None, Some(text), _) => Start::NotOlderThan(resource_version(text)?),
    };
    Ok(Options { limit: limit as usize, from })
}

fn check_version_match(call: &Call, version: Option<&str>, matching: Option<&str>) -> Result<()> {
    let given = json!({ "resourceVersionMatch": matching });
    let root = api::At::root(&given);
    let field = root.field("resourceVersionMatch");
    let mut errors = Errors::default();
    if let Some(text) = matching {
        if version.is_none() {
            errors.forbidden(
                &field,
                "resourceVersionMatch is forbidden unless resourceVersion is provided",
            );
        }
        if call.query.text("continue").is_some() {
            errors.forbidden(&field, "resourceVersionMatch is forbidden when continue is provided");
        }
        if !matches!(text, "Exact" | "NotOlderThan") {
            errors.not_supported(&field, &["Exact", "NotOlderThan", ""]);
        }
        if text == "Exact" && version == Some("0") {
            errors.forbidden(
                &field,
                "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
            );
        }
    }
    if call.query.get("sendInitialEvents").is_some() {
        let field = root.field("sendInitialEvents");
        errors.forbidden(&field, "sendInitialEvents is forbidden for list");
    }
    if errors.is_empty() { Ok(()) } else { Err(invalid_options("ListOptions", errors)) }
}

/// A page of a collection, and where the next one starts.
pub(crate) struct Page {
    pub(crate) revision: u64,
    pub(crate) objects: Vec<Arc<Object>>,
    continue_token: Option<String>,
    remaining: Option<usize>,
}

pub(crate) async fn page(call: &Call, filter: &Filter) -> Result<Page> {
    let options = options(call)?;
    let collection = &call.kind.storage.collection;
    let (revision, objects) = match &options.from {
        Start::Newest => {
            call.server.barrier().await?;
            newest(call, filter)
        }
        Start::NotOlderThan(revision) => {
            wait_for(call, *revision).await?;
            newest(call, filter)
        }
        Start::Exactly(revision) => {
            wait_for(call, *revision).await?;
            let objects = call
                .store()
                .list_at(collection, &filter.prefix, None, *revision)
                .map_err(|_| ApiError::Expired {
                    message: "The resourceVersion for the provided list is too old.".into(),
                    continue_token: String::new(),
                })?;
            (*revision, objects)
        }
        Start::Continue(from) => {
            // A token with a future version was not issued by this server.
            wait_for(call, from.rv).await?;
            continued(call, filter, from)?
        }
    };
    Ok(cut(filter, options.limit, revision, objects))
}

fn newest(call: &Call, filter: &Filter) -> (u64, Vec<Arc<Object>>) {
    let collection = &call.kind.storage.collection;
    match (filter.single(), filter.partition()) {
        (Some(name), _) => {
            let revision = call.store().revision();
            (revision, call.store().get(collection, &name).into_iter().collect())
        }
        (None, Some(partition)) => {
            call.store().list_of(collection, partition, &filter.prefix, None)
        }
        (None, None) => call.store().list(collection, &filter.prefix, None),
    }
}

fn continued(call: &Call, filter: &Filter, from: &Continue) -> Result<(u64, Vec<Arc<Object>>)> {
    let collection = &call.kind.storage.collection;
    if from.rv == 0 {
        return Ok(call.store().list(collection, &filter.prefix, Some(&from.after)));
    }
    let at = call.store().list_at(collection, &filter.prefix, Some(&from.after), from.rv);
    at.map(|objects| (from.rv, objects)).map_err(|_| ApiError::Expired {
        message: "The provided continue parameter is too old to display a consistent list result. \
                  You can start a new list without the continue parameter, or use the continue token \
                  in this response to retrieve the remainder of the results. Continuing with the \
                  provided token results in an inconsistent list - objects that were created, \
                  modified, or deleted between the time the first chunk was returned and now may \
                  show up in the list."
            .into(),
        continue_token: Continue { rv: 0, after: from.after.clone() }.encode(),
    })
}

async fn wait_for(call: &Call, revision: u64) -> Result<()> {
    let waited = tokio::time::timeout(FUTURE_VERSION_WAIT, call.store().wait_for(revision)).await;
    waited.map_err(|_| {
        let current = call.store().revision();
        ApiError::Timeout {
            message: format!("Timeout: Too large resource version: {revision}, current: {current}"),
            causes: vec![Cause {
                reason: "ResourceVersionTooLarge".into(),
                message: "Too large resource version".into(),
                field: String::new(),
            }],
            retry_after: 1,
        }
    })
}

/// Filters, cuts to `limit`, and records where the rest starts.
fn cut(filter: &Filter, limit: usize, revision: u64, all: Vec<Arc<Object>>) -> Page {
    let everything = filter.selects_everything();
    if limit == 0 {
        let mut objects = all;
        objects.retain(|object| filter.matches(object));
        return Page { revision, objects, continue_token: None, remaining: None };
    }
    let total = all.len();
    let mut matching = all.into_iter().filter(|object| filter.matches(object));
    let objects: Vec<_> = matching.by_ref().take(limit).collect();
    let more = matching.next().is_some();
    let continue_token = objects
        .last()
        .filter(|_| more)
        .map(|last| Continue { rv: revision, after: last.name().to_owned() }.encode());
    let remaining = (more && everything).then(|| total - objects.len());
    Page { revision, objects, continue_token, remaining }
}

pub(crate) async fn list(call: &Call) -> Result<ApiResponse> {
    let form = call.form(Offer::List)?;
    let filter = Filter::of(call)?;
    let page = page(call, &filter).await?;
    if form.is_plain() {
        let parts = parts(&call.kind, &page);
        return Ok(response::build(StatusCode::OK, response::JSON, Body::parts(parts)));
    }
    let include = IncludeObject::parse(call.query.text("includeObject"))?;
    let bytes = views::encode(&shown(&call.kind, &page, form, include), form);
    Ok(response::bytes(StatusCode::OK, form, bytes))
}

fn metadata(page: &Page) -> Value {
    let mut metadata = json!({ "resourceVersion": page.revision.to_string() });
    if let Some(token) = &page.continue_token {
        metadata["continue"] = token.clone().into();
    }
    if let Some(remaining) = page.remaining {
        metadata["remainingItemCount"] = remaining.into();
    }
    metadata
}

/// The list as JSON, assembled from the stored bytes of its items without encoding them again.
pub(crate) fn parts(kind: &Kind, page: &Page) -> VecDeque<Bytes> {
    let head = format!(
        "{{\"kind\":\"{}\",\"apiVersion\":\"{}\",\"metadata\":{},\"items\":[",
        kind.list_kind(),
        kind.api_version(),
        metadata(page)
    );
    let mut parts = VecDeque::with_capacity(2 * page.objects.len() + 2);
    parts.push_back(Bytes::from(head));
    for (place, object) in page.objects.iter().enumerate() {
        parts.push_back(Bytes::from_static(if place == 0 { b"{" } else { b",{" }));
        parts.push_back(views::item(kind, object));
    }
    parts.push_back(Bytes::from_static(b"]}\n"));
    parts
}

fn shown(kind: &Kind, page: &Page, form: Form, include: IncludeObject) -> Value {
    let objects = page.objects.iter().map(|object| views::value(kind, object)).collect();
    views::list(kind, objects, metadata(page), form, include)
}
