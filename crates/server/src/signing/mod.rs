//! Answers certificate signing requests: who gets one without a person's say, and the signature.
//!
//!     request ──▶ approval: Approved | left to a person ──▶ terms ──▶ pki signs
//!
//! This is the controllers' work upstream (C-148 to C-150). Here the server does it, because the
//! authority's key never leaves it. One write carries decision and certificate. Signers outside
//! `kubernetes.io/` are other people's business.

mod approval;
mod pending;
mod request;
mod terms;

use crate::authn::User;
use crate::authz::Attributes;
use crate::object::{self, Object, Store, Stored};
use crate::pki::{Order, Pki};
use crate::server::Server;
use crate::signs;
use api::value::ValueExt;
use approval::{Surroundings, Verdict};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use pending::Pending;
use request::Asked;
use serde_json::{Value, json};
use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use store::{Change, EventKind, Expect, Write, WriteError};
use terms::Signer;

const GROUP: &str = "certificates.k8s.io";
const PLURAL: &str = "certificatesigningrequests";
const COLLECTION: &str = "certificates.k8s.io/certificatesigningrequests";

/// Before looking through all requests anew, when the store could not keep up with telling.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Writers that come between are few.
const TRIES: usize = 5;

/// Decides and signs for as long as the server runs.
pub(crate) async fn follow(server: Server, pki: Arc<Pki>) {
    loop {
        let mut pending = Pending::default();
        let (revision, requests) = server.store().list(COLLECTION, "", None);
        for request in requests {
            look(&server, &pki, &mut pending, request).await;
        }
        if let Ok(mut watcher) = server.store().watch(COLLECTION, revision) {
            loop {
                tokio::select! {
                    biased;
                    events = watcher.next(1024) => {
                        let Ok(events) = events else { break };
                        for event in events {
                            match event.kind {
                                EventKind::Deleted => pending.forget(event.object.name()),
                                _ => look(&server, &pki, &mut pending, event.object.clone()).await,
                            }
                        }
                    }
                    name = pending.due() => match server.store().get(COLLECTION, &name) {
                        Some(request) => look(&server, &pki, &mut pending, request).await,
                        None => pending.forget(&name),
                    },
                }
            }
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// What a look at a request has come to.
enum Looked {
    /// It is answered, or only a person can.
    Settled,
    /// Another look may come to more. Says why this one did not.
    Undecided(String),
}

async fn look(server: &Server, pki: &Pki, pending: &mut Pending, request: Arc<Object>) {
    let name = request.name().to_owned();
    match answer(server, pki, request).await {
        Looked::Settled => pending.forget(&name),
        Looked::Undecided(why) => {
            if !pending.contains(&name) {
                tracing::info!(request = name, why, "a signing request is not answered yet");
            }
            pending.look_again(&name);
        }
    }
}

/// Does with one request what is still to be done.
async fn answer(server: &Server, pki: &Pki, mut stored: Arc<Object>) -> Looked {
    let Some(kind) = server.built_in().resource(GROUP, "v1", PLURAL) else {
        return Looked::Settled;
    };
    for _ in 0..TRIES {
        let mut request = stored.value();
        if let Some(looked) = settle(server, pki, &mut request) {
            return looked;
        }
        let write = Write {
            collection: COLLECTION.into(),
            name: stored.name().to_owned(),
            expect: Expect::Revision(stored.revision()),
            change: Change::Put(object::draft(kind, &request)),
        };
        match server.store().write(write).await {
            Ok(_) => return Looked::Settled,
            Err(WriteError::Conflict { .. }) => match server.store().get(COLLECTION, stored.name())
            {
                Some(newer) => stored = newer,
                None => return Looked::Settled,
            },
            Err(WriteError::Backend(error)) => return Looked::Undecided(error.to_string()),
        }
    }
    Looked::Undecided("others write it all the time".into())
}

/// Decides, and signs if that was decided. None if there is now something to write.
fn settle(server: &Server, pki: &Pki, request: &mut Value) -> Option<Looked> {
    let Some(signer) = Signer::of(request.text(&["spec", "signerName"])) else {
        return Some(Looked::Settled);
    };
    if !request.text(&["status", "certificate"]).is_empty()
        || has(request, "Denied")
        || has(request, "Failed")
    {
        return Some(Looked::Settled);
    }
    let asked = Asked::read(request);
    if !has(request, "Approved") {
        match judge(server, pki, request, signer, &asked) {
            Verdict::Approve(message) => add(request, "Approved", "AutoApproved", message),
            Verdict::NotYet(why) => return Some(Looked::Undecided(why)),
            Verdict::Leave(why) => {
                let name = request.text(&["metadata", "name"]);
                tracing::info!(request = name, why, "a signing request is left to a person");
                return Some(Looked::Settled);
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
    None
}

fn judge(
    server: &Server,
    pki: &Pki,
    request: &Value,
    signer: Signer,
    asked: &Result<Asked, String>,
) -> Verdict {
    let policy = server.policy();
    let may = |user: &User, right: &str| {
        let wanted = Attributes {
            version: "*",
            subresource: right,
            ..Attributes::resource(user, "create", GROUP, PLURAL)
        };
        policy.allows(&wanted).allowed
    };
    let addresses = |name: &str| {
        let node = server.store().get("nodes", name)?;
        Some(approval::addresses(&node.value()))
    };
    // Both are looked up once, however many names are asked for, and only if somebody wants to know.
    let servers = LazyCell::new(|| signs::read(server.store()));
    let wanted = asked.as_ref().map_or(&[][..], |asked| &asked.ips);
    let others = LazyCell::new(|| others(server.store(), wanted));
    let around = Surroundings {
        may: &may,
        is_api: &|name| {
            // Other servers of this cluster are behind other names.
            pki.names().contains(name) || servers.iter().any(|sign| sign.is_called(name))
        },
        addresses: &addresses,
        is_anothers: &|address, own| {
            others.get(&address).is_some_and(|nodes| nodes.iter().any(|node| node != own))
        },
    };
    approval::judge(request, signer, asked, &around)
}

/// Which Nodes say that they are at one of these addresses.
fn others(store: &Store, wanted: &[IpAddr]) -> BTreeMap<IpAddr, Vec<String>> {
    let texts: Vec<String> = wanted.iter().map(IpAddr::to_string).collect();
    // An IPv4 address has one spelling, so that most Nodes need not be decoded.
    let decode = wanted.iter().any(IpAddr::is_ipv6);
    let may_be = |node: &Object| {
        let node = str::from_utf8(node.as_slice()).unwrap_or_default();
        decode || texts.iter().any(|text| node.contains(text))
    };
    let mut there = BTreeMap::<IpAddr, Vec<String>>::new();
    let (_, nodes) = store.list("nodes", "", None);
    for node in nodes.iter().filter(|node| may_be(node)) {
        for address in approval::addresses(&node.value()) {
            there.entry(address).or_default().push(node.name().to_owned());
        }
    }
    there
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::indoors::Foundation;

    /// C-148: who shares the store is known by all its names, to every server.
    #[tokio::test]
    async fn c_148_no_node_becomes_another_server_of_this_cluster_by_itself() {
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::load_or_create(dir.path(), &[]).unwrap();
        let indoors = Foundation::lay(dir.path()).await.unwrap().site().start().await.unwrap();
        let names = ["server-2".to_owned(), "203.0.113.2".to_owned()].into();
        let other = "192.0.2.2:6443".parse().unwrap();
        signs::give(indoors.server.store(), other, &names, false).await.unwrap();
        for (node, address, is_server) in [
            ("server-3", "192.0.2.3", false),
            ("server-2", "192.0.2.3", true),
            ("server-3", "192.0.2.2", true),
            ("server-3", "203.0.113.2", true),
        ] {
            let name = format!("system:node:{node}");
            let request = json!({"spec": {"username": name, "groups": ["system:nodes"],
                "usages": ["digital signature", "server auth"]}});
            let asked = Asked {
                name,
                groups: vec!["system:nodes".into()],
                dns: vec![node.into()],
                ips: vec![address.parse().unwrap()],
                ..Asked::default()
            };
            let verdict = judge(&indoors.server, &pki, &request, Signer::NodeServing, &Ok(asked));
            let waits = matches!(verdict, Verdict::NotYet(_));
            assert_eq!(waits, is_server, "{node} {address}: {verdict:?}");
        }
    }
}
