//! One request on a resource, as the verbs see it: authenticated, authorized, its kind known.

use crate::authn::User;
use crate::error::{ApiError, Result};
use crate::negotiate::{self, Form, Offer};
use crate::object::{Object, Store, store_name};
use crate::request::{Query, Target};
use crate::server::Server;
use crate::views::IncludeObject;
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
    /// For what is passed on to others.
    pub(crate) wire: Wire,
    warnings: Mutex<Vec<String>>,
}

/// What a request was before it was read.
#[derive(Default)]
pub(crate) struct Wire {
    pub(crate) method: http::Method,
    pub(crate) uri: http::Uri,
    /// The connection itself, if the request came over one that can be had.
    pub(crate) upgrade: Mutex<Option<hyper::upgrade::OnUpgrade>>,
}

/// How strictly unknown and duplicate fields are taken.
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
        Call { server, kind, target, query, headers, user, body, wire, warnings }
    }

    /// A call on another object that this one has to touch too, by the same caller.
    pub(crate) fn beside(&self, kind: &Arc<Kind>, name: &str) -> Call {
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
        Call::new(self.server.clone(), kind.clone(), target, query, headers, user, Bytes::new())
    }

    pub(crate) fn store(&self) -> &Store {
        self.server.store()
    }

    pub(crate) fn form(&self, offer: Offer) -> Result<Form> {
        let mut form = negotiate::form(&self.headers, offer)?;
        form.pretty |= negotiate::wants_pretty(&self.headers, self.query.get("pretty"));
        Ok(form)
    }

    /// The stored object the URL names.
    pub(crate) fn stored(&self) -> Result<Arc<Object>> {
        let name = store_name(&self.target.namespace_of(&self.kind), &self.target.name);
        self.store()
            .get(&self.kind.storage.collection, &name)
            .ok_or_else(|| ApiError::not_found(&self.kind, &self.target.name))
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

    /// `dryRun=All` or nothing.
    pub(crate) fn dry_run(&self) -> Result<bool> {
        let asked: Vec<&str> = self.query.all("dryRun").collect();
        dry_run(&asked, self.options_kind())
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

    /// Everything about how a write is asked for and answered that can be wrong: found out before
    /// it is done, because a request that is refused changes nothing.
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

    /// Who owns the fields of this write.
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
    /// The namespace objects of this kind live in; the Namespace objects themselves live in none,
    /// although their URL names one.
    pub(crate) fn namespace_of(&self, kind: &Kind) -> String {
        if kind.namespaced { self.namespace.clone() } else { String::new() }
    }
}

/// 422 about the query parameters or options of a request rather than about an object.
pub(crate) fn invalid_options(kind: &str, errors: Errors) -> ApiError {
    ApiError::Invalid(Box::new(Status::invalid(kind, "meta.k8s.io", "", errors)))
}

pub(crate) fn dry_run(asked: &[&str], options: &str) -> Result<bool> {
    match asked {
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
