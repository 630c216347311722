//! The garbage collector: deletes objects whose owners are gone, and deletes dependents before their owner
//! (foreground), after it (background), or releases them (orphan), as the delete request says. T-CTRL-44 to
//! T-CTRL-48, C-159 to C-163.
//!
//!     metadata of every kind ──▶ graph ──▶ verdict ──▶ delete the object, or remove an owner reference
//!
//! `garbage/graph.rs` finds owners and dependents, `garbage/verdict.rs` decides. If an owner is not in the cache, the
//! server is asked before a dependent is deleted.

mod graph;
mod verdict;

use crate::start::Cluster;
use client::{DeleteOptions, Next, ObjectKey, PartialObject, Recorder, run_controller};
use futures::future::join_all;
use graph::{Dependent, Graph, Item, Owners};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use verdict::{Dependents, FOREGROUND, ORPHAN, Verdict};

const WORKERS: usize = 20;

/// Dependents that are orphaned concurrently.
const CONCURRENT_MAX: usize = 20;

/// When to retry after a conflict.
const CONFLICT_RETRY: Duration = Duration::from_millis(100);

/// When to retry if the kind of an owner is not served: its definition may be created later.
const UNKNOWN_KIND: Duration = Duration::from_secs(30);

pub(crate) async fn run(cluster: &Cluster) {
    let recorder = Recorder::new(&cluster.client, "garbage-collector-controller", "");
    let graph =
        Graph::start(&cluster.client, recorder, cluster.namespaces_to_recount.clone()).await;
    let queue = graph.queue().clone();
    tokio::join!(
        graph.rediscover(),
        run_controller("garbage-collector", &queue, WORKERS, |item| reconcile(&graph, item)),
    );
}

async fn reconcile(graph: &Graph, item: Item) -> client::Result<Next> {
    let Some(object) = graph.get(&item) else {
        return Ok(Next::Change);
    };
    let meta = &object.metadata;
    if meta.deletion_timestamp.is_some() {
        let verdict = verdict::of_deleted(meta, || graph.is_blocked(meta));
        let dependents = match verdict {
            Verdict::Orphan => graph.dependents(meta),
            // Dependents are queued once; after that their own changes queue them.
            Verdict::Await if graph.is_first_wait(meta) => graph.dependents(meta),
            _ => Vec::new(),
        };
        return perform(graph, &item, &object, verdict, dependents).await;
    }
    if meta.owner_references.iter().flatten().next().is_none() {
        return Ok(Next::Change);
    }
    let states = match graph.owners(&item, meta).await? {
        Owners::Known(states) => states,
        Owners::Invalid => return Ok(Next::Change),
        Owners::UnknownKind => return Ok(Next::After(UNKNOWN_KIND)),
    };
    if states.iter().all(|state| *state == verdict::Owner::Solid) {
        return Ok(Next::Change);
    }
    let dependents = graph.dependents(meta);
    let verdict = verdict::of_owned(meta, &states, &Dependents::of(meta, &dependents));
    perform(graph, &item, &object, verdict, dependents).await
}

async fn perform(
    graph: &Graph,
    item: &Item,
    object: &PartialObject,
    verdict: Verdict,
    dependents: Vec<Dependent>,
) -> client::Result<Next> {
    let meta = &object.metadata;
    let done = match verdict {
        Verdict::Leave => Ok(()),
        Verdict::Await => {
            // Dependents that are being deleted are not queued: in a cycle they would queue each other forever.
            let idle =
                dependents.into_iter().filter(|d| d.object.metadata.deletion_timestamp.is_none());
            idle.for_each(|dependent| graph.queue().add(dependent.item));
            Ok(())
        }
        Verdict::Finish => patch(graph, item, without_finalizer(meta, FOREGROUND)).await,
        Verdict::Orphan => match orphan(graph, meta, &dependents).await {
            Ok(()) => patch(graph, item, without_finalizer(meta, ORPHAN)).await,
            failed => failed,
        },
        Verdict::RemoveOwners(owners) => patch(graph, item, without_owners(meta, &owners)).await,
        Verdict::Delete { propagation, unblock } => {
            let options = DeleteOptions {
                uid: meta.uid.clone(),
                resource_version: meta.resource_version.clone(),
                ..DeleteOptions::default().propagation(propagation)
            };
            if unblock {
                // This change queues the object again, and it is deleted then.
                patch(graph, item, unblocking(meta)).await
            } else {
                graph.delete(item, &options).await
            }
        }
    };
    match done {
        Err(error) if error.is_not_found() => Ok(Next::Change),
        // The object has changed. The change may not be one that queues it, so retry.
        Err(error) if error.is_conflict() => Ok(Next::After(CONFLICT_RETRY)),
        done => done.map(|()| Next::Change),
    }
}

/// Removes the owner reference from all dependents.
async fn orphan(graph: &Graph, owner: &ObjectMeta, dependents: &[Dependent]) -> client::Result<()> {
    let owner: Vec<String> = owner.uid.iter().cloned().collect();
    for batch in dependents.chunks(CONCURRENT_MAX) {
        let orphaned = batch.iter().map(|dependent| {
            patch(graph, &dependent.item, without_owners(&dependent.object.metadata, &owner))
        });
        for result in join_all(orphaned).await {
            match result {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => (),
            }
        }
    }
    Ok(())
}

async fn patch(graph: &Graph, item: &Item, change: Value) -> client::Result<()> {
    graph.patch(item, &json!({ "metadata": change })).await
}

/// The patch replaces the whole list, so it applies only to the observed version.
fn without_finalizer(meta: &ObjectMeta, finalizer: &str) -> Value {
    let left = meta.finalizers.iter().flatten().filter(|other| *other != finalizer);
    json!({
        "uid": meta.uid, "resourceVersion": meta.resource_version,
        "finalizers": left.collect::<Vec<_>>(),
    })
}

fn without_owners(meta: &ObjectMeta, uids: &[String]) -> Value {
    let left = meta.owner_references.iter().flatten().filter(|owner| !uids.contains(&owner.uid));
    json!({
        "uid": meta.uid, "resourceVersion": meta.resource_version,
        "ownerReferences": left.collect::<Vec<_>>(),
    })
}

fn unblocking(meta: &ObjectMeta) -> Value {
    let mut owners = meta.owner_references.clone().unwrap_or_default();
    owners.iter_mut().for_each(|owner| owner.block_owner_deletion = Some(false));
    json!({
        "uid": meta.uid, "resourceVersion": meta.resource_version, "ownerReferences": owners,
    })
}

fn key_of(object: &Arc<PartialObject>) -> ObjectKey {
    ObjectKey::of(object.as_ref())
}
