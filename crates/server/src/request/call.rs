//! One request on a resource, as the verbs see it: authenticated and authorized, with a known kind.

use crate::audit::Trail;
use crate::flow::Hold;
use crate::object::{Object, Store, store_name};
use crate::request::negotiate::{self, Form, Offer};
use crate::request::{Query, Target};
use crate::response::error::{ApiError, Result};
use crate::response::views::IncludeObject;
use crate::server::Server;
use access::authn::User;
use api::status::Status;
use api::{Errors, Kind};
use bytes::Bytes;
use http::HeaderMap;
use serde_json::Value;
use std::sync::{Arc, Mutex};

pub(crate) struct Call {
    pub(crate) server: Server,
    pub(crate) kind: Arc<Kind>,
    pub(crate) target: Target,
    pub(crate) query: Query,
    pub(crate) headers: HeaderMap,
    pub(crate) user: Arc<User>,
    pub(crate) body: Bytes,
    /// For requests that are forwarded to a backend.
    pub(crate) wire: Wire,
    /// What a long-running request holds of its user's share. The response stream keeps it.
    pub(crate) held: Option<Arc<Hold>>,
    /// Set if the request is audited.
    pub(crate) audit: Option<Arc<Trail>>,
    warnings: Mutex<Vec<String>>,
}

/// The request as it arrived.
#[derive(Default)]
pub(crate) struct Wire {
    pub(crate) method: http::Method,
    pub(crate) uri: http::Uri,
    /// The address of the client; empty for a component of this process.
    pub(crate) client: String,
    /// The connection, if the request came over one that can be upgraded.
    pub(crate) upgrade: Mutex<Option<hyper::upgrade::OnUpgrade>>,
}

/// How unknown and duplicate fields are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

impl Call {
    pub(crate) fn new(
        server: Server,
        kind: Arc<Kind>,
        target: Target,
        query: Query,
        headers: HeaderMap,
        user: Arc<User>,
        body: Bytes,
    ) -> Self {
        let (wire, warnings) = (Wire::default(), Mutex::default());
        let (held, audit) = (None, None);
        Call { server, kind, target, query, headers, user, body, wire, held, audit, warnings }
    }

    /// A call by the same user on another object, which this request also has to write.
    pub(crate) fn on_other(&self, kind: &Arc<Kind>, name: &str) -> Call {
        let target = Target {
            group: kind.group.clone(),
            version: kind.version.clone(),
            resource: kind.plural.clone(),
            namespace: self.target.namespace.clone(),
            name: name.to_owned(),
            ..Target::default()
        };
        let headers = self.headers.clone();
        let user = self.user.clone();
        let query = Query::default();
        let server = self.server.clone();
        let mut call = Call::new(server, kind.clone(), target, query, headers, user, Bytes::new());
        call.audit.clone_from(&self.audit);
        call
    }

    /// Adds an annotation to the request's line in the audit log.
    pub(crate) fn annotate(&self, key: &str, value: impl FnOnce() -> String) {
        if let Some(trail) = &self.audit {
            trail.annotate(key, value());
        }
    }

    pub(crate) fn store(&self) -> &Store {
        self.server.store()
    }

    pub(crate) fn form(&self, offer: Offer) -> Result<Form> {
        let mut form = negotiate::form(&self.headers, offer)?;
        form.pretty |= negotiate::wants_pretty(&self.headers, self.query.get("pretty"));
        Ok(form)
    }

    /// The stored object that the URL names.
    pub(crate) fn stored(&self) -> Result<Arc<Object>> {
        let name = store_name(&self.target.namespace_of(&self.kind), &self.target.name);
        self.store()
            .get(&self.kind.storage.collection, &name)
            .ok_or_else(|| ApiError::not_found(&self.kind, &self.target.name))
    }

    /// The same, but if the object is not in memory, waits for writes of other servers first.
    pub(crate) async fn find(&self) -> Result<Arc<Object>> {
        match self.stored() {
            Ok(found) => Ok(found),
            Err(_) => {
                self.server.barrier().await?;
                self.stored()
            }
        }
    }

    pub(crate) fn warn(&self, text: impl Into<String>) {
        let text = text.into();
        let mut warnings = self.warnings.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if !warnings.contains(&text) {
            warnings.push(text);
        }
    }

    pub(crate) fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut self.warnings.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    /// Whether the request is a dry run: `dryRun=All`, or no parameter.
    pub(crate) fn dry_run(&self) -> Result<bool> {
        let values: Vec<&str> = self.query.all("dryRun").collect();
        dry_run(&values, self.options_kind())
    }

    pub(crate) fn field_validation(&self) -> Result<FieldValidation> {
        match self.query.text("fieldValidation") {
            None | Some("Warn") => Ok(FieldValidation::Warn),
            Some("Ignore") => Ok(FieldValidation::Ignore),
            Some("Strict") => Ok(FieldValidation::Strict),
            Some(other) => {
                let value = serde_json::json!({ "fieldValidation": other });
                let root = api::At::root(&value);
                let mut errors = Errors::default();
                errors.not_supported(
                    &root.field("fieldValidation"),
                    &["", "Ignore", "Strict", "Warn"],
                );
                Err(invalid_options(self.options_kind(), errors))
            }
        }
    }

    /// Checks all options of a write and of its response before anything is changed.
    pub(crate) fn check_options(&self) -> Result<()> {
        self.form(Offer::Object)?;
        IncludeObject::parse(self.query.text("includeObject"))?;
        self.dry_run()?;
        self.field_validation()?;
        self.manager().map(drop)
    }

    fn options_kind(&self) -> &'static str {
        match self.headers.get(http::header::CONTENT_TYPE) {
            Some(kind) if kind.to_str().is_ok_and(|kind| kind.contains("patch")) => "PatchOptions",
            _ if self.target.name.is_empty() => "CreateOptions",
            _ => "UpdateOptions",
        }
    }

    /// The field manager of this write.
    pub(crate) fn manager(&self) -> Result<String> {
        if let Some(manager) = self.query.text("fieldManager") {
            if manager.len() > MANAGER_MAX || manager.chars().any(char::is_control) {
                let value = serde_json::json!({ "fieldManager": manager });
                let root = api::At::root(&value);
                let mut errors = Errors::default();
                if manager.len() > MANAGER_MAX {
                    errors.too_long(&root.field("fieldManager"), MANAGER_MAX);
                } else {
                    errors.invalid(
                        &root.field("fieldManager"),
                        "should only contain printable characters",
                    );
                }
                return Err(invalid_options(self.options_kind(), errors));
            }
            return Ok(manager.to_owned());
        }
        let agent = self
            .headers
            .get(http::header::USER_AGENT)
            .and_then(|agent| agent.to_str().ok())
            .map_or("", |agent| agent.split('/').next().unwrap_or_default());
        let printable: String =
            agent.chars().filter(|c| !c.is_control()).take(MANAGER_MAX).collect();
        Ok(if printable.is_empty() { "unknown".into() } else { printable })
    }

    pub(crate) fn now(&self) -> String {
        clock::now_rfc3339()
    }
}

const MANAGER_MAX: usize = 128;

impl Target {
    /// The namespace of the object. A Namespace object itself has none, although its URL names one.
    pub(crate) fn namespace_of(&self, kind: &Kind) -> String {
        if kind.namespaced { self.namespace.clone() } else { String::new() }
    }
}

/// 422 for invalid query parameters or options, not for an invalid object.
pub(crate) fn invalid_options(kind: &str, errors: Errors) -> ApiError {
    ApiError::Invalid(Box::new(Status::invalid(kind, "meta.k8s.io", "", errors)))
}

pub(crate) fn dry_run(values: &[&str], options: &str) -> Result<bool> {
    match values {
        [] | [""] => Ok(false),
        all if all.iter().all(|value| *value == "All") => Ok(true),
        other => {
            let value = serde_json::json!({ "dryRun": other });
            let root = api::At::root(&value);
            let mut errors = Errors::default();
            errors.not_supported(&root.field("dryRun"), &["All"]);
            Err(invalid_options(options, errors))
        }
    }
}

/// `metadata.name`, or "".
pub(crate) fn name_of(object: &Value) -> &str {
    object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default()
}
