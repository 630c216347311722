//! Serves the kinds that CustomResourceDefinitions define.
//!
//!     definition written ──▶ names ▸ registry ▸ status     before the response to the write
//!     definition deleted ──▶ Terminating ▸ instances deleted ▸ finalizer removed    by `follow`
//!
//! A kind is served before its definition becomes Established, and until its last instance is gone. `reconcile` compares all
//! definitions with what is served. It can run at any time and on several servers of one store: every write is conditional,
//! and nothing is written that is already right.
//!
//! Not here: validation of definitions (`rules`), and building kinds from them (`api::crd`).

mod known;
mod names;
mod served;

use crate::object::{self, Object, Stored};
use crate::request::call::Call;
use crate::request::{Query, Target};
use crate::server::Server;
use crate::verbs::delete::{self, Options};
use access::authn::User;
use api::apply::{self, FieldSet, Manager};
use api::kind::Storage;
use api::value::ValueExt;
use api::{Kind, Registry};
use bytes::Bytes;
use futures::future::join_all;
use http::HeaderMap;
use known::{Definition, Known};
use serde_json::{Value, json};
use served::{Gone, ServedVersions};
use std::sync::Arc;
use std::time::Duration;
use store::{Change, Expect, Write, WriteError};
use tokio::sync::Mutex;

pub(crate) const GROUP: &str = "apiextensions.k8s.io";
pub(crate) const PLURAL: &str = "customresourcedefinitions";
const COLLECTION: &str = "apiextensions.k8s.io/customresourcedefinitions";
const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// How often reconciling starts over because a definition has changed meanwhile.
const ATTEMPTS: usize = 10;
/// How many definitions, or instances of one, are deleted at the same time.
const DELETES_AT_ONCE: usize = 64;
/// How often a deleted definition is checked for remaining instances.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// The served custom resources.
#[derive(Default)]
pub(crate) struct CustomResources {
    /// The lock allows one reconcile at a time.
    known: Mutex<Known>,
    versions: ServedVersions,
}

impl CustomResources {
    /// Resolves when the kind is no longer served.
    pub(crate) fn gone(&self, kind: &Kind) -> Gone {
        self.versions.follow(kind)
    }
}

/// The finalizer that a delete adds to objects of this kind.
pub(crate) fn finalizer(kind: &Kind) -> Option<&'static str> {
    (kind.group == GROUP && kind.plural == PLURAL).then_some(FINALIZER)
}

/// Updates names, registry and status of all definitions.
pub(crate) async fn reconcile(server: &Server) {
    let mut known = server.custom_resources().known.lock().await;
    for _ in 0..ATTEMPTS {
        let (_, stored) = server.store().list(COLLECTION, "", None);
        let changes = known.update(server.built_in(), stored, &clock::now_rfc3339());
        if !changes.served.is_empty() {
            // Before the registry, because a watch of a kind in the registry needs this.
            for (uid, versions) in changes.served {
                server.custom_resources().versions.set(&uid, versions);
            }
            server.set_registry(server.built_in().with_custom(known.kinds()));
        }
        let mut settled = true;
        for definition in &changes.definitions {
            match write_status(server, definition).await {
                Ok(None) => {}
                Ok(Some(written)) => known.written(written),
                Err(Unwritten::Overtaken) => settled = false,
                Err(Unwritten::Failed) => {}
            }
        }
        if settled {
            return;
        }
    }
    tracing::warn!("custom resource definitions keep changing; their status may be outdated");
}

fn is_terminating(definition: &Value) -> bool {
    definition.at(&["metadata", "deletionTimestamp"]).is_some()
}

/// A definition must not replace a built-in resource or use its objects.
fn overlaps(built_in: &Registry, kind: &Kind) -> bool {
    let same = |other: &Arc<Kind>| other.group == kind.group && other.plural == kind.plural;
    built_in.kinds().iter().any(same)
}

enum Unwritten {
    /// The definition has changed meanwhile.
    Overtaken,
    /// The store failed. The next change or start will retry.
    Failed,
}

/// Writes the status if it has changed, and returns what was written.
async fn write_status(
    server: &Server,
    definition: &Definition,
) -> Result<Option<Arc<Object>>, Unwritten> {
    // A definition that cannot be decoded is not changed.
    let Some(old) = &definition.old else { return Ok(None) };
    if old.get("status") == definition.value.get("status") {
        return Ok(None);
    }
    let Some(kind) = server.built_in().resource(GROUP, "v1", PLURAL) else { return Ok(None) };
    let mut new = definition.value.clone();
    let now = clock::now_rfc3339();
    let writer = Manager {
        name: "kube-apiserver",
        api_version: &kind.api_version(),
        subresource: "status",
        now: &now,
    };
    apply::track_update(&kind.schema, kind.ty, Some(old), &mut new, &writer, &FieldSet::default());
    put(server, kind, &definition.stored, Change::Put(object::draft(kind, &new))).await.map(Some)
}

/// A conditional write.
async fn put(
    server: &Server,
    kind: &Kind,
    stored: &Arc<Object>,
    change: Change,
) -> Result<Arc<Object>, Unwritten> {
    let write = Write {
        collection: kind.storage.collection.clone(),
        name: stored.name().to_owned(),
        expect: Expect::Revision(stored.revision()),
        change,
    };
    match server.store().write(write).await {
        Ok(written) => Ok(written),
        Err(WriteError::Conflict { .. }) => Err(Unwritten::Overtaken),
        Err(WriteError::Backend(error)) => {
            let definition = stored.name();
            tracing::warn!(definition, %error, "writing a custom resource definition failed");
            Err(Unwritten::Failed)
        }
    }
}

/// Follows definitions that other servers write, and completes deletions.
pub(crate) async fn follow(server: Server) {
    loop {
        let Ok(mut watcher) = server.store().watch(COLLECTION, server.store().revision()) else {
            tokio::time::sleep(CHECK_INTERVAL).await;
            continue;
        };
        loop {
            reconcile(&server).await;
            let waiting = !finish_all(&server).await;
            let seen = tokio::select! {
                biased;
                seen = watcher.next(1024) => seen,
                () = tokio::time::sleep(CHECK_INTERVAL), if waiting => continue,
            };
            // Events were lost: start over with a new watch.
            if seen.is_err() {
                break;
            }
        }
    }
}

/// Completes the deletion of definitions without instances. False if some have to be retried.
async fn finish_all(server: &Server) -> bool {
    let ending = server.custom_resources().known.lock().await.terminating();
    let mut finished = true;
    for some in ending.chunks(DELETES_AT_ONCE) {
        let done = join_all(some.iter().map(|stored| finish(server, stored))).await;
        finished &= done.into_iter().all(|done| done);
        reconcile(server).await;
    }
    finished
}

/// Deletes the instances of a definition, and removes its finalizer when there are none. False if that has to be retried.
async fn finish(server: &Server, stored: &Arc<Object>) -> bool {
    let Some(kind) = server.built_in().resource(GROUP, "v1", PLURAL) else { return true };
    let mut new = stored.value();
    if !new["metadata"].list_mut("finalizers").any(|finalizer| *finalizer == FINALIZER) {
        return true;
    }
    let now = clock::now_rfc3339();
    let how = if !names::is_accepted(&new) {
        ["Terminating", "False", "NeverEstablished", "resource was never established"]
    } else if instances_gone(server, &new).await {
        ["Terminating", "False", "InstanceDeletionCompleted", "removed all instances"]
    } else {
        return false;
    };
    names::set_condition(&mut new, how, &now);
    let mut change = Change::Delete;
    if let Some(Value::Array(finalizers)) = new["metadata"].get_mut("finalizers") {
        finalizers.retain(|finalizer| *finalizer != FINALIZER);
        if !finalizers.is_empty() {
            change = Change::Put(object::draft(kind, &new));
        }
    }
    !matches!(put(server, kind, stored, change).await, Err(Unwritten::Overtaken))
}

/// Deletes every instance that is not being deleted yet. True if there is none left.
async fn instances_gone(server: &Server, definition: &Value) -> bool {
    let names = &definition["status"]["acceptedNames"];
    let storage = Storage::new(definition.text(&["spec", "group"]), "", names.text(&["plural"]));
    let (_, instances) = server.store().list(&storage.collection, "", None);
    if instances.is_empty() {
        return true;
    }
    let Some(kind) = any_kind(definition) else { return true };
    if overlaps(server.built_in(), &kind) {
        return true;
    }
    let fresh: Vec<_> =
        instances.iter().filter(|instance| instance.meta().deletion_timestamp.is_none()).collect();
    for some in fresh.chunks(DELETES_AT_ONCE) {
        join_all(some.iter().map(|instance| delete_instance(server, &kind, instance))).await;
    }
    server.store().list(&kind.storage.collection, "", None).1.is_empty()
}

/// A kind for deleting instances, even if the definition serves no version.
fn any_kind(definition: &Value) -> Option<Arc<Kind>> {
    let mut all_served = definition.clone();
    for version in all_served.object("spec").list_mut("versions") {
        version["served"] = true.into();
    }
    api::crd::kinds(&all_served).into_iter().find(|kind| kind.version == kind.storage.version)
}

async fn delete_instance(server: &Server, kind: &Arc<Kind>, instance: &Arc<Object>) {
    let (namespace, name) = instance.place();
    let target = Target {
        group: kind.group.clone(),
        version: kind.version.clone(),
        resource: kind.plural.clone(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        ..Target::default()
    };
    let user = Arc::new(User::authenticated("system:apiserver", &["system:masters"]));
    let (query, headers) = (Query::default(), HeaderMap::new());
    let call = Call::new(server.clone(), kind.clone(), target, query, headers, user, Bytes::new());
    if let Err(error) = delete::delete_one(&call, name, &Options::default()).await {
        tracing::debug!(instance = instance.name(), %error, "deleting an instance failed");
    }
}

/// The conditions, in the order in which they were first set.
fn conditions(definition: &mut Value) -> &mut Vec<Value> {
    let status = definition.object("status");
    let conditions = status.map().entry("conditions").or_insert(Value::Null);
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    conditions.as_array_mut().expect("just made one")
}
