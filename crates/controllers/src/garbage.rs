//! Deletes what nobody owns any more, and sees to the order that a delete asked for: dependents first
//! (foreground), dependents later (background), or set free (orphan). T-CTRL-44 to T-CTRL-48, C-159
//! to C-163.
//!
//!     metadata of every kind ──▶ graph ──▶ verdict ──▶ delete, or forget a dead owner
//!
//! `garbage/graph.rs` knows who owns whom, `garbage/verdict.rs` decides. An owner that was not seen is
//! asked for before anything is deleted on its account.

mod graph;
mod verdict;

use crate::start::Cluster;
use client::{DeleteOptions, Next, ObjectKey, Outline, Recorder, run_controller};
use futures::future::join_all;
use graph::{Dependent, Graph, Item, Owners};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use verdict::{Dependents, FOREGROUND, ORPHAN, Verdict};

const WORKERS: usize = 20;

/// Dependents that are set free at once.
const CONCURRENT_MAX: usize = 20;

/// When to look again at what was written meanwhile.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// How long an owner of a kind that nobody knows is left alone: it may be a kind to come.
const UNKNOWN_KIND: Duration = Duration::from_secs(30);

pub(crate) async fn run(cluster: &Cluster) {
    let recorder = Recorder::new(&cluster.client, "garbage-collector-controller", "");
    let graph = Graph::start(&cluster.client, recorder, cluster.left.clone()).await;
    let queue = graph.queue().clone();
    tokio::join!(
        graph.keep_up(),
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
            // They are told once; what becomes of them is their own affair then.
            Verdict::Await if graph.tell_once(meta) => graph.dependents(meta),
            _ => Vec::new(),
        };
        return perform(graph, &item, &object, verdict, dependents).await;
    }
    if meta.owner_references.iter().flatten().next().is_none() {
        return Ok(Next::Change);
    }
    let states = match graph.owners(&item, meta).await? {
        Owners::Known(states) => states,
        Owners::NotOurs => return Ok(Next::Change),
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
    object: &Outline,
    verdict: Verdict,
    dependents: Vec<Dependent>,
) -> client::Result<Next> {
    let meta = &object.metadata;
    let done = match verdict {
        Verdict::Leave => Ok(()),
        Verdict::Await => {
            // Who ends already is looked at when it changes: in a ring, all would call each other for ever.
            let idle =
                dependents.into_iter().filter(|d| d.object.metadata.deletion_timestamp.is_none());
            idle.for_each(|dependent| graph.queue().add(dependent.item));
            Ok(())
        }
        Verdict::Finish => patch(graph, item, without_finalizer(meta, FOREGROUND)).await,
        Verdict::Orphan => match set_free(graph, meta, &dependents).await {
            Ok(()) => patch(graph, item, without_finalizer(meta, ORPHAN)).await,
            failed => failed,
        },
        Verdict::Forget(owners) => patch(graph, item, without_owners(meta, &owners)).await,
        Verdict::Delete { propagation, unblock } => {
            let options = DeleteOptions {
                uid: meta.uid.clone(),
                resource_version: meta.resource_version.clone(),
                ..DeleteOptions::default().propagation(propagation)
            };
            if unblock {
                // The delete then comes with the change that this makes.
                patch(graph, item, unblocking(meta)).await
            } else {
                graph.delete(item, &options).await
            }
        }
    };
    match done {
        Err(error) if error.is_not_found() => Ok(Next::Change),
        // It is not as it was looked at. What changed may be nothing that concerns us, so nobody calls.
        Err(error) if error.is_conflict() => Ok(Next::After(LOOK_AGAIN)),
        done => done.map(|()| Next::Change),
    }
}

/// Takes the owner out of all its dependents.
async fn set_free(
    graph: &Graph,
    owner: &ObjectMeta,
    dependents: &[Dependent],
) -> client::Result<()> {
    let owner: Vec<String> = owner.uid.iter().cloned().collect();
    for batch in dependents.chunks(CONCURRENT_MAX) {
        let freed = batch.iter().map(|dependent| {
            patch(graph, &dependent.item, without_owners(&dependent.object.metadata, &owner))
        });
        for freed in join_all(freed).await {
            match freed {
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

/// Lists are replaced as a whole, so each patch holds only for the version that was looked at.
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

/// Where `meta` says it lives.
fn key_of(object: &Arc<Outline>) -> ObjectKey {
    ObjectKey::of(object.as_ref())
}
