//! What the server sees to by itself: the first objects, and those every namespace is owed.
//!
//! At the start the objects of `bootstrap` are stored where they are missing, before anybody is
//! answered. After that: RBAC rules are compiled anew when they change, every namespace gets its
//! `kube-root-ca.crt` and `default` account before its creation is acknowledged (and again if
//! somebody deletes them), so does the server's own Service, and events are forgotten after an hour,
//! records of endings after a day.

use crate::authz::Policy;
use crate::follower::{Follower, Heard};
use crate::object::{self, Stored, store_name};
use crate::pki::Pki;
use crate::server::Server;
use crate::{bootstrap, customs, expiry, services, signing, terminations};
use api::Kind;
use api::value::ValueExt;
use futures::FutureExt as _;
use futures::future::try_join_all;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use store::{Change, EventKind, Expect, Write, WriteError};

const RBAC: &str = "rbac.authorization.k8s.io";
const ROOT_CA: &str = "kube-root-ca.crt";
/// Upstream: `Description` in `rootcacertpublisher/publisher.go`.
const ROOT_CA_DESCRIPTION: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when \
     using internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is \
     guaranteed across distributions of Kubernetes clusters.";

/// The server's own Service in `default`, and where the parts of it are stored.
const OWN_SERVICE: &str = "kubernetes";
const OWN_SERVICE_PARTS: [&str; 4] =
    ["services", "endpoints", "discovery.k8s.io/endpointslices", "networking.k8s.io/ipaddresses"];

/// Certificates live for a year; that one is renewed a day later does not matter.
const RENEWAL_LOOK: Duration = Duration::from_secs(24 * 3600);

/// Before starting over, after the store could not keep up with telling or a task has failed.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

const RELATIONS_EVERY: Duration = Duration::from_secs(10);

/// Before anybody is answered. `furnished`: also what controllers would store.
pub(crate) async fn store_what_is_missing(
    server: &Server,
    address: SocketAddr,
    furnished: bool,
) -> Result<(), String> {
    services::sweep(server.store()).await;
    store_first_objects(server, address).await?;
    refresh_policy(server);
    customs::settle(server).await;
    if furnished {
        let (_, namespaces) = server.store().list("namespaces", "", None);
        for namespace in namespaces {
            furnish(server, namespace.name()).await?;
        }
    }
    Ok(())
}

/// Starts what goes on in the background; with the keys of the cluster also what controllers would do.
pub(crate) fn attend(server: &Server, address: SocketAddr, controllers: Option<Arc<Pki>>) {
    spawn_until_closing(server, follow_roles);
    spawn_until_closing(server, customs::follow);
    spawn_until_closing(server, expiry::forget_events);
    spawn_until_closing(server, terminations::retention::run);
    spawn_until_closing(server, know_pods);
    if let Some(pki) = controllers {
        spawn_until_closing(server, move |server| signing::follow(server, pki.clone()));
        server.furnish_namespaces();
        for collection in ["namespaces", "serviceaccounts", "configmaps"] {
            spawn_until_closing(server, move |server| refurnish(server, collection));
        }
        for collection in OWN_SERVICE_PARTS {
            spawn_until_closing(server, move |server| {
                keep_own_service(server, address, collection)
            });
        }
    }
}

/// A mistake of ours costs a task its place, not the rest of its life: it starts over.
pub(crate) fn spawn_until_closing<Task>(
    server: &Server,
    task: impl Fn(Server) -> Task + Send + Sync + 'static,
) where
    Task: Future<Output = ()> + Send + 'static,
{
    let (server, mut closing) = (server.clone(), server.closing());
    tokio::spawn(async move {
        let working = async {
            while AssertUnwindSafe(task(server.clone())).catch_unwind().await.is_err() {
                tracing::error!("a task of the server panicked; it is started again");
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        };
        tokio::select! {
            biased;
            () = working => {}
            _ = closing.wait_for(|closing| *closing) => {}
        }
    });
}

async fn store_first_objects(server: &Server, address: SocketAddr) -> Result<(), String> {
    let now = clock::now();
    let range = format!("{}/{}", services::SERVICE_RANGE.0, services::SERVICE_RANGE.1);
    let mut objects = bootstrap::namespaces();
    objects.extend(bootstrap::cluster_roles());
    objects.extend(bootstrap::cluster_role_bindings());
    objects.extend(bootstrap::roles());
    objects.extend(bootstrap::role_bindings());
    objects.extend(bootstrap::priority_classes());
    objects.extend(bootstrap::flow_schemas(now));
    objects.extend(bootstrap::priority_levels());
    objects.push(bootstrap::service_cidr(&[&range], now));
    objects.push(bootstrap::authentication_config_map(server.ca_certificate()));
    let kept = objects.into_iter().map(|object| ensure(server, object, Keep::AsItIs));
    try_join_all(kept).await?;
    let roles =
        bootstrap::cluster_roles().into_iter().map(|role| ensure(server, role, Keep::ButContent));
    try_join_all(roles).await?;
    ensure_own_service(server, address).await
}

/// The Service through which pods reach this server, and what belongs to it.
async fn ensure_own_service(server: &Server, address: SocketAddr) -> Result<(), String> {
    let (hosts, port) = ([address.ip()], address.port());
    let api_ip = services::API_ADDRESS;
    let mut claim = services::ip_address("default", OWN_SERVICE, api_ip);
    claim["apiVersion"] = "networking.k8s.io/v1".into();
    claim["kind"] = "IPAddress".into();
    let parts = [
        (claim, Keep::AsItIs),
        (bootstrap::kubernetes_service(api_ip.into(), port), Keep::AsItIs),
        // Where the server is may have changed since the last start.
        (bootstrap::endpoint_slice(&hosts, port), Keep::ButContent),
        (bootstrap::endpoints(&hosts, port), Keep::ButContent),
    ];
    try_join_all(parts.map(|(object, keep)| ensure(server, object, keep))).await?;
    Ok(())
}

/// `kubectl delete all --all` takes the server's own Service along: it comes back (W-52). The
/// address is given back after the Service is gone, so its claim is looked after too.
async fn keep_own_service(server: Server, address: SocketAddr, collection: &'static str) {
    let api_ip = services::API_ADDRESS.to_string();
    let mut follower = Follower::of(server.store(), collection);
    loop {
        let gone = match follower.next().await {
            Heard::Missed => true,
            Heard::Events(events) => {
                events.iter().filter(|event| event.kind == EventKind::Deleted).any(|event| {
                    let place = event.object.place();
                    place == ("default", OWN_SERVICE) || place == ("", api_ip.as_str())
                })
            }
        };
        if gone && let Err(error) = ensure_own_service(&server, address).await {
            tracing::warn!(error, "the server's own Service is incomplete");
        }
    }
}

/// What becomes of an object that is already there.
#[derive(Clone, Copy, PartialEq)]
enum Keep {
    AsItIs,
    /// Everything outside metadata is brought up to date; labels and annotations that it lacks, or that
    /// are empty, are added.
    ButContent,
}

/// Stores an object directly: at this point there is nobody to ask yet.
async fn ensure(server: &Server, mut object: Value, keep: Keep) -> Result<(), String> {
    let api_version = object.text(&["apiVersion"]).to_owned();
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let kind = server
        .built_in()
        .by_kind(group, version, object.text(&["kind"]))
        .ok_or_else(|| format!("{api_version} {} is not a kind", object.text(&["kind"])))?
        .clone();
    let namespace = object.text(&["metadata", "namespace"]).to_owned();
    let name = store_name(&namespace, object.text(&["metadata", "name"]));
    (kind.rules.default)(&mut object);
    let expect = match server.store().get(&kind.storage.collection, &name) {
        Some(_) if keep == Keep::AsItIs => return Ok(()),
        Some(stored) => {
            let mut updated = stored.value();
            let mut metadata = updated.remove("metadata").unwrap_or_default();
            let mut wanted = object.clone();
            let lacked = add_marks(&mut metadata, &wanted.remove("metadata").unwrap_or_default());
            if updated == wanted && !lacked {
                return Ok(());
            }
            object["metadata"] = metadata;
            Expect::Revision(stored.revision())
        }
        None => {
            let metadata = object.object("metadata");
            metadata["uid"] = clock::uuid().into();
            metadata["creationTimestamp"] = clock::now_rfc3339().into();
            if kind.rules.generation != api::rules::Generation::Never {
                metadata["generation"] = 1.into();
            }
            Expect::Absent
        }
    };
    put(server, &kind, name, expect, &object).await
}

/// Adds the labels and annotations that are missing or empty. False if none was.
fn add_marks(metadata: &mut Value, wanted: &Value) -> bool {
    let mut lacked = false;
    for marks in ["labels", "annotations"] {
        for (name, value) in wanted[marks].as_object().into_iter().flatten() {
            if metadata.text(&[marks, name]).is_empty() && value != "" {
                metadata.object(marks)[name] = value.clone();
                lacked = true;
            }
        }
    }
    lacked
}

async fn put(
    server: &Server,
    kind: &Kind,
    name: String,
    expect: Expect,
    object: &Value,
) -> Result<(), String> {
    let collection = kind.storage.collection.clone();
    let change = Change::Put(object::draft(kind, object));
    match server.store().write(Write { collection, name, expect, change }).await {
        // Another server on the same store was quicker.
        Ok(_) | Err(WriteError::Conflict { .. }) => Ok(()),
        Err(WriteError::Backend(error)) => Err(error.to_string()),
    }
}

impl Server {
    /// Called after every acknowledged write, before the client hears of it, so that what a write
    /// makes true is true for the writer's next request.
    pub(crate) async fn written(&self, kind: &Arc<Kind>, name: &str) {
        match kind.group.as_str() {
            RBAC => refresh_policy(self),
            customs::GROUP if kind.plural == customs::PLURAL => customs::settle(self).await,
            "" if kind.plural == "namespaces" && self.furnishes_namespaces() => {
                if let Err(error) = furnish(self, name).await {
                    tracing::warn!(namespace = name, error, "a namespace lacks its first objects");
                }
            }
            _ => {}
        }
    }
}

/// Compiles the RBAC objects as they are now.
pub(crate) fn refresh_policy(server: &Server) {
    // One after another: who looked earlier must not have the last word.
    let _turn = server.refreshing_policy();
    let all = |plural: &str| -> Vec<Value> {
        let (_, objects) = server.store().list(&format!("{RBAC}/{plural}"), "", None);
        objects.iter().map(|object| object.value()).collect()
    };
    let (cluster_roles, cluster_bindings) = (all("clusterroles"), all("clusterrolebindings"));
    let (roles, bindings) = (all("roles"), all("rolebindings"));
    let policy = Policy::build(&cluster_roles, &cluster_bindings, &roles, &bindings);
    server.set_policy(policy);
}

/// Other servers on the same store change roles too.
async fn follow_roles(server: Server) {
    let follow = |plural: &str| Follower::of(server.store(), &format!("{RBAC}/{plural}"));
    let (mut a, mut b) = (follow("clusterroles"), follow("clusterrolebindings"));
    let (mut c, mut d) = (follow("roles"), follow("rolebindings"));
    loop {
        tokio::select! {
            biased;
            _ = a.next() => {}
            _ = b.next() => {}
            _ = c.next() => {}
            _ = d.next() => {}
        }
        refresh_policy(&server);
    }
}

/// Gives a namespace its `kube-root-ca.crt` and its `default` account.
async fn furnish(server: &Server, namespace: &str) -> Result<(), String> {
    let Some(stored) = server.store().get("namespaces", namespace) else { return Ok(()) };
    if stored.meta().deletion_timestamp.is_some() {
        return Ok(());
    }
    let account = json!({
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": { "name": "default", "namespace": namespace },
    });
    let authority = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": ROOT_CA,
            "namespace": namespace,
            "annotations": {
                "kubernetes.io/description": ROOT_CA_DESCRIPTION,
            },
        },
        "data": { "ca.crt": server.ca_certificate() },
    });
    futures::try_join!(
        ensure(server, account, Keep::AsItIs),
        // What somebody wrote into it is put right (T-CTRL-64), and what it is for is said again (C-144).
        ensure(server, authority, Keep::ButContent)
    )?;
    Ok(())
}

/// Puts back what somebody deleted.
async fn refurnish(server: Server, collection: &'static str) {
    let mut follower = Follower::of(server.store(), collection);
    loop {
        let namespaces: Vec<String> = match follower.next().await {
            Heard::Events(events) => {
                events.iter().filter_map(|event| unfurnished(collection, event)).collect()
            }
            Heard::Missed => {
                let (_, all) = server.store().list("namespaces", "", None);
                all.iter().map(|namespace| namespace.name().to_owned()).collect()
            }
        };
        for namespace in namespaces {
            if let Err(error) = furnish(&server, &namespace).await {
                tracing::warn!(namespace, error, "a namespace lacks its first objects");
            }
        }
    }
}

/// The namespace that an event leaves without something.
fn unfurnished(collection: &str, event: &object::Event) -> Option<String> {
    let (namespace, name) = event.object.place();
    let (lacks, namespace) = match collection {
        "namespaces" => (event.kind == EventKind::Created, name),
        "serviceaccounts" => (event.kind == EventKind::Deleted && name == "default", namespace),
        _ => (event.kind != EventKind::Created && name == ROOT_CA, namespace),
    };
    lacks.then(|| namespace.to_owned())
}

/// The server's own certificates, for as long as it runs.
pub(crate) async fn renew_certificates(pki: Arc<Pki>, kubeconfig: PathBuf, address: SocketAddr) {
    loop {
        tokio::time::sleep(RENEWAL_LOOK).await;
        let renewed = pki.renew().map_err(|error| error.to_string()).and_then(|changed| {
            if changed {
                let text = pki.kubeconfig(&format!("https://{address}"));
                let written = crate::pki::write_secret(&kubeconfig, text.as_bytes());
                written.map_err(|error| error.to_string())?;
            }
            Ok(())
        });
        if let Err(error) = renewed {
            tracing::error!(error, "the server's certificates could not be renewed");
        }
    }
}

/// What nodes may read is asked all the time; so that no question has much to catch up on.
async fn know_pods(server: Server) {
    loop {
        server.relations().catch_up();
        tokio::time::sleep(RELATIONS_EVERY).await;
    }
}
