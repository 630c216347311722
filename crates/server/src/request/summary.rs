//! What the audit log and the metrics record about a request.

use crate::audit::{Trail, Wire};
use crate::request::Target;
use crate::response::error::Result;
use access::authn::User;
use bytes::Bytes;
use http::header;
use std::sync::Arc;

#[derive(Default)]
pub(crate) struct RequestSummary {
    /// The authenticated user.
    pub(crate) user: Option<Arc<User>>,
    /// The impersonated user, if any.
    pub(crate) impersonated: Option<Arc<User>>,
    pub(crate) verb: &'static str,
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) resource: String,
    /// Whether the resource exists. If not, its name is arbitrary text of the client.
    pub(crate) served: bool,
    pub(crate) subresource: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Whether the request may last as long as the client wants.
    pub(crate) long_running: bool,
    /// Set if requests are audited.
    pub(crate) wire: Option<Wire>,
    /// Set once the audit policy has decided. `Some(None)`: the request is not logged.
    pub(crate) trail: Option<Option<Arc<Trail>>>,
}

impl RequestSummary {
    pub(crate) fn target(&mut self, verb: &'static str, target: &Target) {
        self.verb = verb;
        self.group.clone_from(&target.group);
        self.version.clone_from(&target.version);
        self.resource.clone_from(&target.resource);
        self.subresource.clone_from(&target.subresource);
        self.namespace.clone_from(&target.namespace);
        self.name.clone_from(&target.name);
    }

    pub(crate) fn is_resource(&self) -> bool {
        !self.resource.is_empty()
    }

    /// The verb, or the method for a path that is not a resource.
    pub(crate) fn verb(&self) -> &str {
        match (self.verb, &self.wire) {
            ("", Some(wire)) => &wire.method,
            (verb, _) => verb,
        }
    }

    /// The path without the query.
    pub(crate) fn path(&self) -> &str {
        let uri = self.wire.as_ref().map_or("", |wire| wire.uri.as_str());
        uri.split('?').next().unwrap_or_default()
    }

    pub(crate) fn logged(&self) -> Option<&Arc<Trail>> {
        self.trail.as_ref().and_then(Option::as_ref)
    }

    /// Records the authorization decision in the audit log.
    pub(crate) fn note_decision(&self, decided: &Result<String>) {
        let Some(trail) = self.logged() else { return };
        let (word, reason) = match decided {
            Ok(reason) => ("allow", reason.clone()),
            Err(_) => ("forbid", String::new()),
        };
        trail.annotate("authorization.k8s.io/decision", word);
        trail.annotate("authorization.k8s.io/reason", reason);
    }

    /// Records the request body if the audit policy asks for it: JSON and YAML as JSON, protobuf not at all.
    pub(crate) fn note_body(&self, headers: &http::HeaderMap, body: &Bytes) {
        let Some(trail) = self.logged().filter(|trail| trail.takes_request()) else { return };
        let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let object = match kind.unwrap_or_default().contains("yaml") {
            true => api::yaml::to_json(body).ok().map(|document| document.value),
            false => serde_json::from_slice(body).ok(),
        };
        if let Some(object) = object {
            trail.request_object(object);
        }
    }

    #[cfg(test)]
    pub(crate) fn of_path(method: &str, path: &str) -> RequestSummary {
        let wire = Wire {
            id: "id".into(),
            uri: path.into(),
            method: method.into(),
            source: "192.0.2.1".into(),
            agent: String::new(),
            received: String::new(),
        };
        RequestSummary { wire: Some(wire), ..RequestSummary::default() }
    }
}
