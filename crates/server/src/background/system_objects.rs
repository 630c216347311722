//! Objects that the server itself creates and restores: those of a new cluster, and those of every namespace.
//!
//! At the start, before it serves requests, the server stores the objects of `bootstrap` that are missing. Later it
//! compiles the RBAC policy whenever roles or bindings change. Every namespace gets its `kube-root-ca.crt` and its
//! service account `default` before its creation is acknowledged, and again if they are deleted.
//! Not here: the Services `kubernetes` (`kubernetes_service`) and `kube-dns` (`dns_service`).

use crate::background::dns_service;
use crate::background::follower::{Followed, Follower};
use crate::background::kubernetes_service::KubernetesService;
use crate::background::{service_cidr, spawn_until_closing};
use crate::object::{self, Stored, store_name};
use crate::server::Server;
use crate::{bootstrap, custom_resources, service_allocation};
use access::authz::Policy;
use access::default_roles;
use api::Kind;
use api::value::ValueExt;
use futures::future::try_join_all;
use rules::Generation;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use store::{Change, EventKind, Expect, Write, WriteError};

const RBAC: &str = "rbac.authorization.k8s.io";
const ROOT_CA: &str = "kube-root-ca.crt";
/// Upstream: `Description` in `rootcacertpublisher/publisher.go`.
const ROOT_CA_DESCRIPTION: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when \
     using internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is \
     guaranteed across distributions of Kubernetes clusters.";

/// The pause between attempts to store the objects that found no disk space at the start.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Stores all system objects that are missing. Runs before the first request. `with_namespace_objects`: also the
/// objects of every namespace, which upstream's controllers create.
pub(crate) async fn create_missing(
    server: &Server,
    kubernetes_service: &KubernetesService,
    with_namespace_objects: bool,
) -> Result<(), String> {
    service_allocation::release_unused(server.store()).await;
    let stored = create_bootstrap_objects(server, kubernetes_service).await;
    // Even if storing failed, the existing objects are served.
    refresh_policy(server);
    custom_resources::reconcile(server).await;
    stored?;
    if with_namespace_objects {
        let (_, namespaces) = server.store().list("namespaces", "", None);
        for namespace in namespaces {
            create_objects_of(server, namespace.name()).await?;
        }
    }
    Ok(())
}

/// Retries [`create_missing`] until it succeeds, after a start on a full disk.
pub(crate) fn create_missing_later(
    server: &Server,
    kubernetes_service: &Arc<KubernetesService>,
    with_namespace_objects: bool,
) {
    let service = kubernetes_service.clone();
    spawn_until_closing(server, move |server| {
        let service = service.clone();
        async move {
            loop {
                tokio::time::sleep(RETRY_INTERVAL).await;
                if server.store().health().is_ok()
                    && create_missing(&server, &service, with_namespace_objects).await.is_ok()
                {
                    return;
                }
            }
        }
    });
}

async fn create_bootstrap_objects(
    server: &Server,
    kubernetes_service: &KubernetesService,
) -> Result<(), String> {
    let now = clock::now();
    let ranges: Vec<String> = server.service_ranges().iter().map(|one| one.to_string()).collect();
    let mut objects = bootstrap::namespaces();
    objects.extend(default_roles::cluster_roles());
    objects.extend(default_roles::cluster_role_bindings());
    objects.extend(default_roles::roles());
    objects.extend(default_roles::role_bindings());
    objects.extend(bootstrap::priority_classes());
    objects.extend(bootstrap::flow_schemas(now));
    objects.extend(bootstrap::priority_levels());
    objects.push(bootstrap::service_cidr(&ranges, now));
    objects.push(bootstrap::authentication_config_map(server.ca_certificate()));
    let created = objects.into_iter().map(|object| ensure(server, object, IfExists::Keep));
    try_join_all(created).await?;
    service_cidr::add_second_family(server).await?;
    let roles = default_roles::cluster_roles()
        .into_iter()
        .map(|role| ensure(server, role, IfExists::Update));
    try_join_all(roles).await?;
    kubernetes_service.send_heartbeat().await?;
    kubernetes_service.ensure().await?;
    dns_service::create_missing(server).await
}

/// What to do with an object that exists already.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum IfExists {
    Keep,
    /// Replaces everything outside metadata, and adds labels and annotations that are missing or empty.
    Update,
}

/// Creates an object directly in the store: the server does not serve requests yet.
pub(crate) async fn ensure(
    server: &Server,
    mut object: Value,
    if_exists: IfExists,
) -> Result<(), String> {
    let api_version = object.text(&["apiVersion"]).to_owned();
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let kind = server
        .built_in()
        .by_kind(group, version, object.text(&["kind"]))
        .ok_or_else(|| format!("{api_version} {} is not a kind", object.text(&["kind"])))?
        .clone();
    let namespace = object.text(&["metadata", "namespace"]).to_owned();
    let name = store_name(&namespace, object.text(&["metadata", "name"]));
    let rules = rules::of(&kind);
    (rules.default)(&mut object);
    let expect = match server.store().get(&kind.storage.collection, &name) {
        Some(_) if if_exists == IfExists::Keep => return Ok(()),
        Some(stored) => {
            let mut updated = stored.value();
            let mut metadata = updated.remove("metadata").unwrap_or_default();
            let mut wanted = object.clone();
            let added = add_missing(&mut metadata, &wanted.remove("metadata").unwrap_or_default());
            if updated == wanted && !added {
                return Ok(());
            }
            if !matches!(rules.generation, Generation::Never | Generation::Fixed) {
                let before = metadata["generation"].as_i64().unwrap_or_default();
                metadata["generation"] = before.saturating_add(1).into();
            }
            object["metadata"] = metadata;
            Expect::Revision(stored.revision())
        }
        None => {
            let metadata = object.object("metadata");
            metadata["uid"] = clock::uuid().into();
            metadata["creationTimestamp"] = clock::now_rfc3339().into();
            if rules.generation != Generation::Never {
                metadata["generation"] = 1.into();
            }
            Expect::Absent
        }
    };
    put(server, &kind, name, expect, &object).await
}

/// Adds the labels and annotations that are missing or empty. Returns whether there were any.
fn add_missing(metadata: &mut Value, wanted: &Value) -> bool {
    let mut added = false;
    for map in ["labels", "annotations"] {
        for (name, value) in wanted[map].as_object().into_iter().flatten() {
            if metadata.text(&[map, name]).is_empty() && value != "" {
                metadata.object(map)[name] = value.clone();
                added = true;
            }
        }
    }
    added
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
        // Another server on the same store was faster.
        Ok(_) | Err(WriteError::Conflict { .. }) => Ok(()),
        Err(WriteError::Backend(error)) => Err(error.to_string()),
    }
}

impl Server {
    /// Called after every write, before the client gets the response, so that the write has taken full effect when
    /// the client sends its next request.
    pub(crate) async fn after_write(&self, kind: &Arc<Kind>, name: &str) {
        match kind.group.as_str() {
            RBAC => refresh_policy(self),
            custom_resources::GROUP if kind.plural == custom_resources::PLURAL => {
                custom_resources::reconcile(self).await
            }
            "" if kind.plural == "namespaces" && self.creates_namespace_objects() => {
                if let Err(error) = create_objects_of(self, name).await {
                    tracing::warn!(
                        namespace = name,
                        error,
                        "creating the default objects of a namespace failed"
                    );
                }
            }
            _ => {}
        }
    }
}

/// Compiles the policy from the current RBAC objects.
pub(crate) fn refresh_policy(server: &Server) {
    // One refresh at a time, so that an older reading never replaces a newer one.
    let _guard = server.lock_policy_refresh();
    let all = |plural: &str| -> Vec<Value> {
        let (_, objects) = server.store().list(&format!("{RBAC}/{plural}"), "", None);
        objects.iter().map(|object| object.value()).collect()
    };
    let (cluster_roles, cluster_bindings) = (all("clusterroles"), all("clusterrolebindings"));
    let (roles, bindings) = (all("roles"), all("rolebindings"));
    let policy = Policy::build(&cluster_roles, &cluster_bindings, &roles, &bindings);
    server.set_policy(policy);
}

/// Refreshes the policy when another server on the same store changes roles or bindings.
pub(crate) async fn follow_roles(server: Server) {
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

/// Creates a namespace's ConfigMap `kube-root-ca.crt` and service account `default`.
async fn create_objects_of(server: &Server, namespace: &str) -> Result<(), String> {
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
        ensure(server, account, IfExists::Keep),
        // Restores edited content (T-CTRL-64) and a missing description (C-144).
        ensure(server, authority, IfExists::Update)
    )?;
    Ok(())
}

/// Restores the objects of namespaces that a client deletes or edits.
pub(crate) async fn restore_namespace_objects(server: Server, collection: &'static str) {
    let mut follower = Follower::of(server.store(), collection);
    loop {
        let namespaces: Vec<String> = match follower.next().await {
            Followed::Events(events) => {
                events.iter().filter_map(|event| incomplete_namespace(collection, event)).collect()
            }
            Followed::Gap => {
                let (_, all) = server.store().list("namespaces", "", None);
                all.iter().map(|namespace| namespace.name().to_owned()).collect()
            }
        };
        for namespace in namespaces {
            if let Err(error) = create_objects_of(&server, &namespace).await {
                tracing::warn!(
                    namespace,
                    error,
                    "creating the default objects of a namespace failed"
                );
            }
        }
    }
}

/// The namespace that lacks one of its objects after this event.
fn incomplete_namespace(collection: &str, event: &object::Event) -> Option<String> {
    let (namespace, name) = event.object.place();
    let (incomplete, namespace) = match collection {
        "namespaces" => (event.kind == EventKind::Created, name),
        "serviceaccounts" => (event.kind == EventKind::Deleted && name == "default", namespace),
        _ => (event.kind != EventKind::Created && name == ROOT_CA, namespace),
    };
    incomplete.then(|| namespace.to_owned())
}
