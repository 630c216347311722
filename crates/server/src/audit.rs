//! The audit log: one line of JSON per answered request, if a file was asked for.
//!
//! Metadata only: who, what, from where, with which result. Never bodies, so never secrets.

use crate::server::{Peer, Seen};
use http::{HeaderValue, Method, StatusCode, Uri};
use serde_json::json;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;

pub(crate) struct Audit(Mutex<std::fs::File>);

impl Audit {
    pub(crate) fn open(path: &Path) -> std::io::Result<Audit> {
        use std::os::unix::fs::OpenOptionsExt;
        let file = std::fs::OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
        Ok(Audit(Mutex::new(file)))
    }

    pub(crate) fn record(
        &self,
        id: &HeaderValue,
        method: &Method,
        uri: &Uri,
        peer: &Peer,
        seen: &Seen,
        code: StatusCode,
    ) {
        let verb =
            if seen.verb.is_empty() { method.as_str().to_lowercase() } else { seen.verb.into() };
        let mut line = json!({
            "kind": "Event",
            "apiVersion": "audit.k8s.io/v1",
            "level": "Metadata",
            "auditID": id.to_str().unwrap_or_default(),
            "stage": "ResponseComplete",
            "requestURI": uri.to_string(),
            "verb": verb,
            "user": { "username": seen.user },
            "sourceIPs": [peer.address],
            "objectRef": {
                "resource": seen.resource,
                "namespace": seen.namespace,
                "name": seen.name,
                "apiGroup": seen.group,
                "apiVersion": seen.version,
                "subresource": seen.subresource,
            },
            "responseStatus": { "code": code.as_u16() },
            "requestReceivedTimestamp": clock::rfc3339_micros(clock::now()),
        });
        if !seen.acts_as.is_empty() {
            line["impersonatedUser"] = json!({ "username": seen.acts_as });
        }
        let mut file = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Err(error) = writeln!(file, "{line}") {
            tracing::error!(%error, "the audit log could not be written");
        }
    }
}
