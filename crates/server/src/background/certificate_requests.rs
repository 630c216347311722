//! Follows the certificate signing requests in the store, lets `access` decide about them, and writes the results.
//!
//! One write carries decision and certificate. Not here: what is approved and signed (`access::signing`).

mod retries;

use crate::background::server_heartbeats;
use crate::object::{self, Object, Store, Stored};
use crate::server::Server;
use access::User;
use access::authz::Attributes;
use access::pki::Pki;
use access::signing::{self, ClusterView, Outcome};
use retries::Retries;
use serde_json::Value;
use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use store::{Change, EventKind, Expect, Write, WriteError};

const GROUP: &str = "certificates.k8s.io";
const PLURAL: &str = "certificatesigningrequests";
const COLLECTION: &str = "certificates.k8s.io/certificatesigningrequests";

const WATCH_BATCH: usize = 1024;
/// The pause before all requests are listed again, after the watch has lost events.
const RELIST_DELAY: Duration = Duration::from_secs(1);
/// How often a write that lost against another writer is tried again.
const WRITE_TRIES: usize = 5;

/// Decides and signs for as long as the server runs.
pub(crate) async fn follow(server: Server, pki: Arc<Pki>) {
    loop {
        let mut retries = Retries::default();
        let (revision, requests) = server.store().list(COLLECTION, "", None);
        for request in requests {
            handle(&server, &pki, &mut retries, request).await;
        }
        if let Ok(mut watcher) = server.store().watch(COLLECTION, revision) {
            loop {
                tokio::select! {
                    biased;
                    events = watcher.next(WATCH_BATCH) => {
                        let Ok(events) = events else { break };
                        for event in events {
                            match event.kind {
                                EventKind::Deleted => retries.forget(event.object.name()),
                                _ => handle(&server, &pki, &mut retries, event.object.clone()).await,
                            }
                        }
                    }
                    name = retries.due() => match server.store().get(COLLECTION, &name) {
                        Some(request) => handle(&server, &pki, &mut retries, request).await,
                        None => retries.forget(&name),
                    },
                }
            }
        }
        tokio::time::sleep(RELIST_DELAY).await;
    }
}

async fn handle(server: &Server, pki: &Pki, retries: &mut Retries, request: Arc<Object>) {
    let name = request.name().to_owned();
    match process(server, pki, request).await {
        Ok(()) => retries.forget(&name),
        Err(why) => {
            if !retries.contains(&name) {
                tracing::info!(
                    request = name,
                    why,
                    "certificate signing request is not approved yet"
                );
            }
            retries.schedule(&name);
        }
    }
}

/// The error says why a later attempt is needed.
async fn process(server: &Server, pki: &Pki, mut stored: Arc<Object>) -> Result<(), String> {
    let Some(kind) = server.built_in().resource(GROUP, "v1", PLURAL) else { return Ok(()) };
    for _ in 0..WRITE_TRIES {
        let mut request = stored.value();
        match decide(server, pki, &mut request) {
            Outcome::Changed => {}
            Outcome::Settled => return Ok(()),
            Outcome::LeftToPerson(why) => {
                let name = stored.name();
                tracing::info!(
                    request = name,
                    why,
                    "certificate signing request waits for a person"
                );
                return Ok(());
            }
            Outcome::Undecided(why) => return Err(why),
        }
        let write = Write {
            collection: COLLECTION.into(),
            name: stored.name().to_owned(),
            expect: Expect::Revision(stored.revision()),
            change: Change::Put(object::draft(kind, &request)),
        };
        match server.store().write(write).await {
            Ok(_) => return Ok(()),
            Err(WriteError::Conflict { .. }) => match server.store().get(COLLECTION, stored.name())
            {
                Some(newer) => stored = newer,
                None => return Ok(()),
            },
            Err(WriteError::Backend(error)) => return Err(error.to_string()),
        }
    }
    Err("other writers keep changing the request".into())
}

fn decide(server: &Server, pki: &Pki, request: &mut Value) -> Outcome {
    let policy = server.policy();
    // Read at most once, however many names are requested.
    let servers = LazyCell::new(|| server_heartbeats::read(server.store()));
    let cluster = ClusterView {
        may_create: &|user: &User, subresource: &str| {
            let create = Attributes {
                version: "*",
                subresource,
                ..Attributes::resource(user, "create", GROUP, PLURAL)
            };
            policy.allows(&create).allowed
        },
        is_api_server: &|name| {
            // Other servers of this cluster have other names.
            pki.names().contains(name) || servers.iter().any(|server| server.has_name(name))
        },
        node_addresses: &|name| {
            let node = server.store().get("nodes", name)?;
            Some(signing::addresses_of_node(&node.value()))
        },
        nodes_at: &|addresses| nodes_at(server.store(), addresses),
    };
    signing::process(request, pki, &cluster)
}

/// Which Nodes report one of these addresses.
fn nodes_at(store: &Store, wanted: &[IpAddr]) -> BTreeMap<IpAddr, Vec<String>> {
    let texts: Vec<String> = wanted.iter().map(IpAddr::to_string).collect();
    // An IPv4 address has one spelling, so a search in the text rules out most Nodes without decoding them.
    let decode_all = wanted.iter().any(IpAddr::is_ipv6);
    let may_match = |node: &Object| {
        let node = str::from_utf8(node.as_slice()).unwrap_or_default();
        decode_all || texts.iter().any(|text| node.contains(text))
    };
    let mut found = BTreeMap::<IpAddr, Vec<String>>::new();
    let (_, nodes) = store.list("nodes", "", None);
    for node in nodes.iter().filter(|node| may_match(node)) {
        for address in signing::addresses_of_node(&node.value()) {
            found.entry(address).or_default().push(node.name().to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::start::simulated::ServerTemplate;
    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD;
    use rcgen::{CertificateParams, DnType, KeyPair};
    use serde_json::json;

    fn serving_request(node: &str, address: &str) -> Value {
        let user = format!("system:node:{node}");
        let mut params = CertificateParams::new([node.to_owned(), address.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, &user);
        params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
        let pem = params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
        json!({"metadata": {"name": node}, "spec": {
            "signerName": "kubernetes.io/kubelet-serving",
            "username": user,
            "groups": ["system:nodes"],
            "usages": ["digital signature", "server auth"],
            "request": BASE64_STANDARD.encode(pem),
        }})
    }

    /// C-148: every server knows the names of all servers that share the store.
    #[tokio::test]
    async fn c_148_no_node_gets_a_certificate_for_another_api_server() {
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::load_or_create(dir.path(), &[]).unwrap();
        let template = ServerTemplate::create(dir.path()).await.unwrap();
        let simulated = template.instance().start().await.unwrap();
        let names = ["server-2".to_owned(), "203.0.113.2".to_owned()].into();
        let other = "192.0.2.2:6443".parse().unwrap();
        server_heartbeats::send(simulated.server.store(), other, &names, false).await.unwrap();
        for (node, address, is_server) in [
            ("server-3", "192.0.2.3", false),
            ("server-2", "192.0.2.3", true),
            ("server-3", "192.0.2.2", true),
            ("server-3", "203.0.113.2", true),
        ] {
            let outcome = decide(&simulated.server, &pki, &mut serving_request(node, address));
            let waits = matches!(outcome, Outcome::Undecided(_));
            assert_eq!(waits, is_server, "{node} {address}: {outcome:?}");
        }
    }
}
