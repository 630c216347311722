//! Answers certificate signing requests: who gets one without a person's say, and the signature.
//!
//!     request ──▶ approval: Approved | left to a person ──▶ terms ──▶ pki signs
//!
//! This is the controllers' work upstream (C-148 to C-150). Here the server does it, because the
//! authority's key never leaves it. One write carries decision and certificate. Signers outside
//! `kubernetes.io/` are other people's business.

mod approval;
mod request;
mod terms;

use crate::authn::User;
use crate::authz::Attributes;
use crate::object::{self, Object, Stored};
use crate::pki::{Order, Pki};
use crate::server::Server;
use api::value::ValueExt;
use approval::Verdict;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use request::Asked;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use store::{Change, EventKind, Expect, Write, WriteError};
use terms::Signer;

const GROUP: &str = "certificates.k8s.io";
const PLURAL: &str = "certificatesigningrequests";
const COLLECTION: &str = "certificates.k8s.io/certificatesigningrequests";

/// Before looking through all requests again, when the store could not keep up with telling.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Writers that come between are few.
const TRIES: usize = 5;

/// Decides and signs for as long as the server runs.
pub(crate) async fn follow(server: Server, pki: Arc<Pki>) {
    loop {
        let (revision, requests) = server.store().list(COLLECTION, "", None);
        for request in requests {
            answer(&server, &pki, request).await;
        }
        if let Ok(mut watcher) = server.store().watch(COLLECTION, revision) {
            while let Ok(events) = watcher.next(1024).await {
                let there = events.iter().filter(|event| event.kind != EventKind::Deleted);
                for event in there {
                    answer(&server, &pki, event.object.clone()).await;
                }
            }
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Does with one request what is still to be done.
async fn answer(server: &Server, pki: &Pki, mut stored: Arc<Object>) {
    for _ in 0..TRIES {
        let mut request = stored.value();
        if !settle(server, pki, &mut request) {
            return;
        }
        let Some(kind) = server.built_in().resource(GROUP, "v1", PLURAL) else { return };
        let write = Write {
            collection: COLLECTION.into(),
            name: stored.name().to_owned(),
            expect: Expect::Revision(stored.revision()),
            change: Change::Put(object::draft(kind, &request)),
        };
        match server.store().write(write).await {
            Ok(_) => return,
            Err(WriteError::Conflict { .. }) => match server.store().get(COLLECTION, stored.name())
            {
                Some(newer) => stored = newer,
                None => return,
            },
            Err(WriteError::Backend(error)) => {
                tracing::warn!(request = stored.name(), %error, "a signing request was not answered");
                return;
            }
        }
    }
}

/// Decides, and signs if that was decided. False if nothing changed.
fn settle(server: &Server, pki: &Pki, request: &mut Value) -> bool {
    let Some(signer) = Signer::of(request.text(&["spec", "signerName"])) else { return false };
    if !request.text(&["status", "certificate"]).is_empty()
        || has(request, "Denied")
        || has(request, "Failed")
    {
        return false;
    }
    let asked = Asked::read(request);
    if !has(request, "Approved") {
        let policy = server.policy();
        let may = |user: &User, right: &str| {
            let wanted = Attributes {
                version: "*",
                subresource: right,
                ..Attributes::resource(user, "create", GROUP, PLURAL)
            };
            policy.allows(&wanted).allowed
        };
        let node = |name: &str| server.store().get("nodes", name).map(|node| node.value());
        match approval::judge(request, signer, &asked, &may, &node) {
            Verdict::Approve(message) => add(request, "Approved", "AutoApproved", message),
            Verdict::Leave(why) => {
                let name = request.text(&["metadata", "name"]);
                tracing::info!(request = name, why, "a signing request is left to a person");
                return false;
            }
        }
    }
    let order = asked.and_then(|asked| {
        signer.check(&asked, request)?;
        Ok(asked)
    });
    match order {
        Ok(asked) => issue(pki, request, &asked),
        Err(why) => add(request, "Failed", "SignerValidationFailure", &why),
    }
    true
}

fn issue(pki: &Pki, request: &mut Value, asked: &Asked) {
    let usages = request::usages(request);
    let order = Order {
        name: &asked.name,
        groups: &asked.groups,
        names: asked.names().collect(),
        usages: usages.iter().map(String::as_str).collect(),
        public_key: &asked.public_key,
        lifetime: terms::lifetime(request),
    };
    match pki.sign(&order) {
        Ok(pem) => {
            request.object("status")["certificate"] = BASE64_STANDARD.encode(pem).into();
        }
        Err(error) => add(request, "Failed", "SigningError", &error.to_string()),
    }
}

fn has(request: &Value, condition: &str) -> bool {
    let conditions = request.at(&["status", "conditions"]).and_then(Value::as_array);
    conditions.into_iter().flatten().any(|one| one.text(&["type"]) == condition)
}

fn add(request: &mut Value, condition: &str, reason: &str, message: &str) {
    let now = clock::now_rfc3339();
    let condition = json!({
        "type": condition,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastUpdateTime": now,
        "lastTransitionTime": now,
    });
    let status = request.object("status");
    match status.get_mut("conditions").and_then(Value::as_array_mut) {
        Some(conditions) => conditions.push(condition),
        None => status["conditions"] = json!([condition]),
    }
}
