//! Keeps what is served in step with the stored CustomResourceDefinitions.
//!
//!     definition written ──▶ names ▸ registry ▸ status     before its writer is answered
//!     definition deleted ──▶ Terminating ▸ instances deleted ▸ finalizer removed    by `follow`
//!
//! A kind is served before its definition is called Established, and until its last instance is
//! gone. Settling looks at all definitions as they are and may run at any time, twice, or on several
//! servers of one store: every write is conditional, and what is right already is left alone.
//!
//! Not here: what a definition must look like (`api::rules`), what its kinds are (`api::crd`).

mod names;

use crate::authn::User;
use crate::call::Call;
use crate::object::{self, Object, Stored};
use crate::request::{Query, Target};
use crate::server::Server;
use crate::verbs::delete::{self, Options};
use api::apply::{self, FieldSet, Manager};
use api::value::ValueExt;
use api::{Kind, Registry};
use bytes::Bytes;
use futures::future::join_all;
use http::HeaderMap;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use store::{Change, Expect, Write, WriteError};
use tokio::sync::{Mutex, watch};

pub(crate) const GROUP: &str = "apiextensions.k8s.io";
pub(crate) const PLURAL: &str = "customresourcedefinitions";
const COLLECTION: &str = "apiextensions.k8s.io/customresourcedefinitions";
const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// How often settling starts over because somebody wrote in between.
const ATTEMPTS: usize = 10;
/// Instances deleted at once when their definition goes.
const DELETES_AT_ONCE: usize = 64;
/// How often it is checked whether the instances of a definition are gone.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// What was served when the definitions were last looked at.
#[derive(Default)]
pub(crate) struct Customs {
    /// One settling at a time.
    served: Mutex<Vec<Served>>,
}

/// What of a definition decides about what is served.
#[derive(PartialEq)]
struct Served {
    uid: String,
    generation: Value,
    names: Value,
    terminating: bool,
}

/// A stored definition, with the status it should have.
struct Definition {
    stored: Arc<Object>,
    value: Value,
}

/// Brings names, registry and status of all definitions up to date.
pub(crate) async fn settle(server: &Server) {
    let mut served = server.customs().served.lock().await;
    for _ in 0..ATTEMPTS {
        let definitions = definitions(server);
        let now = definitions
            .iter()
            .filter(|d| names::is_accepted(&d.value))
            .map(|d| Served::of(&d.value));
        let now: Vec<Served> = now.collect();
        if now != *served {
            server.set_registry(registry(server, &definitions));
            *served = now;
        }
        let mut settled = true;
        for definition in &definitions {
            settled &= write_status(server, definition).await;
        }
        if settled {
            return;
        }
    }
    tracing::warn!("custom resource definitions keep changing; their status may lag behind");
}

impl Served {
    fn of(definition: &Value) -> Self {
        Served {
            uid: definition.text(&["metadata", "uid"]).into(),
            generation: definition["metadata"]["generation"].clone(),
            names: definition["status"]["acceptedNames"].clone(),
            terminating: is_terminating(definition),
        }
    }
}

/// All definitions, older ones first, with names accepted or refused and conditions set.
fn definitions(server: &Server) -> Vec<Definition> {
    let (_, mut stored) = server.store().list(COLLECTION, "", None);
    // Who came first has the name.
    stored.sort_by_key(|object| object.created());
    let mut values: Vec<Value> = stored.iter().map(|object| object.value()).collect();
    let now = clock::now_rfc3339();
    names::settle(&mut values, &now);
    for value in values.iter_mut().filter(|value| is_terminating(value)) {
        names::set_condition(
            value,
            [
                "Terminating",
                "True",
                "InstanceDeletionInProgress",
                "CustomResource deletion is in progress",
            ],
            &now,
        );
    }
    stored.into_iter().zip(values).map(|(stored, value)| Definition { stored, value }).collect()
}

fn is_terminating(definition: &Value) -> bool {
    definition.at(&["metadata", "deletionTimestamp"]).is_some()
}

fn registry(server: &Server, definitions: &[Definition]) -> Registry {
    let accepted = definitions.iter().filter(|definition| names::is_accepted(&definition.value));
    let kinds = accepted.flat_map(|definition| api::crd::kinds(&definition.value));
    server.built_in().with_custom(kinds.filter(|kind| !overlaps(server, kind)))
}

/// A definition must not hide a built-in resource, nor touch its objects.
fn overlaps(server: &Server, kind: &Kind) -> bool {
    let same = |other: &Arc<Kind>| other.group == kind.group && other.plural == kind.plural;
    server.built_in().kinds().iter().any(same)
}

/// True if the status is now, or was already, what it should be.
async fn write_status(server: &Server, definition: &Definition) -> bool {
    // One that cannot be read is left as it is.
    let Some(old) = definition.stored.whole() else { return true };
    if old.get("status") == definition.value.get("status") {
        return true;
    }
    let Some(kind) = server.built_in().resource(GROUP, "v1", PLURAL) else { return true };
    let mut new = definition.value.clone();
    let now = clock::now_rfc3339();
    let who = Manager {
        name: "kube-apiserver",
        api_version: &kind.api_version(),
        subresource: "status",
        now: &now,
    };
    apply::track_update(&kind.schema, kind.ty, Some(&old), &mut new, &who, &FieldSet::default());
    put(server, kind, &definition.stored, Change::Put(object::draft(kind, &new))).await
}

/// A conditional write; false if somebody else was quicker.
async fn put(server: &Server, kind: &Kind, stored: &Arc<Object>, change: Change) -> bool {
    let write = Write {
        collection: kind.storage.collection.clone(),
        name: stored.name().to_owned(),
        expect: Expect::Revision(stored.revision()),
        change,
    };
    match server.store().write(write).await {
        Ok(_) => true,
        Err(WriteError::Conflict { .. }) => false,
        Err(WriteError::Backend(error)) => {
            let definition = stored.name();
            tracing::warn!(definition, %error, "a custom resource definition could not be written");
            // Trying again at once would not help; the next change or start will.
            true
        }
    }
}

/// Follows the definitions: those that other servers write, and those that are to go.
pub(crate) async fn follow(server: Server) {
    loop {
        let Ok(mut watcher) = server.store().watch(COLLECTION, server.store().revision()) else {
            tokio::time::sleep(LOOK_AGAIN).await;
            continue;
        };
        loop {
            settle(&server).await;
            let mut waiting = false;
            for definition in definitions(&server) {
                waiting |= is_terminating(&definition.value) && !finish(&server, &definition).await;
            }
            let seen = tokio::select! {
                biased;
                seen = watcher.next(1024) => seen,
                () = tokio::time::sleep(LOOK_AGAIN), if waiting => continue,
            };
            // Fell too far behind: start over with a new watch.
            if seen.is_err() {
                break;
            }
        }
    }
}

/// Deletes what is left of a definition's instances; when nothing is, lets the definition go.
/// False if that has to be tried again.
async fn finish(server: &Server, definition: &Definition) -> bool {
    let Some(kind) = server.built_in().resource(GROUP, "v1", PLURAL) else { return true };
    let stored = &definition.stored;
    let mut new = definition.stored.value();
    let held =
        |value: &mut Value| value["metadata"].list_mut("finalizers").any(|f| *f == FINALIZER);
    if !held(&mut new) {
        return true;
    }
    let now = clock::now_rfc3339();
    let how = if !names::is_accepted(&new) {
        ["Terminating", "False", "NeverEstablished", "resource was never established"]
    } else if instances_gone(server, &definition.value).await {
        ["Terminating", "False", "InstanceDeletionCompleted", "removed all instances"]
    } else {
        return false;
    };
    names::set_condition(&mut new, how, &now);
    if let Some(Value::Array(finalizers)) = new["metadata"].get_mut("finalizers") {
        finalizers.retain(|finalizer| *finalizer != FINALIZER);
        if !finalizers.is_empty() {
            let written = put(server, kind, stored, Change::Put(object::draft(kind, &new))).await;
            return written;
        }
    }
    let gone = put(server, kind, stored, Change::Delete).await;
    if gone {
        settle(server).await;
    }
    gone
}

/// Deletes every instance that is not on its way yet; true if there is none left.
async fn instances_gone(server: &Server, definition: &Value) -> bool {
    let Some(kind) = any_kind(definition) else { return true };
    if overlaps(server, &kind) {
        return true;
    }
    let (_, instances) = server.store().list(&kind.storage.collection, "", None);
    let fresh: Vec<_> =
        instances.iter().filter(|instance| instance.meta().deletion_timestamp.is_none()).collect();
    for some in fresh.chunks(DELETES_AT_ONCE) {
        join_all(some.iter().map(|instance| delete_instance(server, &kind, instance))).await;
    }
    server.store().list(&kind.storage.collection, "", None).1.is_empty()
}

/// A kind to delete instances by, also of a definition that serves no version.
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
        tracing::debug!(instance = instance.name(), %error, "an instance was not deleted");
    }
}

/// Tells a watch of a custom kind when that kind is no longer served.
pub(crate) struct Gone {
    server: Server,
    kind: Arc<Kind>,
    changed: watch::Receiver<()>,
}

impl Gone {
    pub(crate) fn of(server: &Server, kind: &Arc<Kind>) -> Self {
        Gone { server: server.clone(), kind: kind.clone(), changed: server.served() }
    }

    /// Cancel-safe. For a built-in kind it waits for ever.
    pub(crate) async fn wait(&mut self) {
        let Some(custom) = &self.kind.custom else { return std::future::pending().await };
        loop {
            let registry = self.server.registry();
            let found = registry.resource(&self.kind.group, &self.kind.version, &self.kind.plural);
            let same = found
                .and_then(|kind| kind.custom.as_ref())
                .is_some_and(|found| found.uid == custom.uid);
            if !same || self.changed.changed().await.is_err() {
                return;
            }
        }
    }
}

/// Conditions, in the order they were first set.
fn conditions(definition: &mut Value) -> &mut Vec<Value> {
    let status = definition.object("status");
    let conditions = status.map().entry("conditions").or_insert(Value::Null);
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    conditions.as_array_mut().expect("just made one")
}
