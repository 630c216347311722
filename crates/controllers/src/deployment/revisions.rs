//! Which of the sets is the new one, what it is called, and how many old ones are kept (C-27…C-36).

use super::plan::{self, Fence, Work, size, template, wanted};
use super::progress;
use crate::workload::{
    HASH_LABEL, annotation, hash, is_deleted, name, owner_reference, same_template, uid,
};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, ReplicaSetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) const REVISION: &str = "deployment.kubernetes.io/revision";
const HISTORY: &str = "deployment.kubernetes.io/revision-history";
pub(super) const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
pub(super) const MAX: &str = "deployment.kubernetes.io/max-replicas";
pub(super) const ROLLBACK_TO: &str = "deprecated.deployment.rollback.to";

/// Annotations that are not handed on between a Deployment and its sets.
pub(super) const OWN: [&str; 6] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    REVISION,
    HISTORY,
    DESIRED,
    MAX,
    ROLLBACK_TO,
];

/// The longest list of earlier revisions, in characters. Upstream: `maxRevHistoryLengthInChars`.
const HISTORY_MAX: usize = 2000;

/// The longest name of a ReplicaSet.
const NAME_MAX: usize = 253;

/// The set with the Deployment's template (of several the oldest), and the others, oldest first.
pub(super) fn split(
    deployment: &Deployment,
    sets: &[Arc<ReplicaSet>],
) -> (Option<ReplicaSet>, Vec<ReplicaSet>) {
    let mut sets: Vec<&Arc<ReplicaSet>> = sets.iter().collect();
    sets.sort_by_key(|set| {
        let created = set.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (created, set.metadata.name.clone())
    });
    let wanted = deployment.spec.as_ref().map(|spec| &spec.template);
    let fits = |set: &&Arc<ReplicaSet>| match (template(set), wanted) {
        (Some(there), Some(wanted)) => same_template(there, wanted),
        _ => false,
    };
    let new = sets.iter().position(|set| fits(set)).map(|at| sets.remove(at));
    (
        new.map(|new| new.as_ref().clone()),
        sets.into_iter().map(|set| set.as_ref().clone()).collect(),
    )
}

pub(super) fn revision(set: &ReplicaSet) -> i64 {
    annotation(set, REVISION).and_then(|revision| revision.parse().ok()).unwrap_or(0)
}

fn next_revision(work: &Work<'_>) -> i64 {
    work.old.iter().map(revision).max().unwrap_or(0).saturating_add(1)
}

/// Brings revision, annotations and minReadySeconds of the new set up to date, if there is one, and
/// lets the Deployment follow its revision (C-31…C-33, C-45).
pub(super) fn keep(work: &mut Work<'_>) {
    let next = next_revision(work);
    let Some(new) = &mut work.new else { return };
    hand_on(&work.deployment, new);
    let before = annotation(new, REVISION).map(str::to_owned);
    if revision(new) < next {
        let annotations = new.metadata.annotations.get_or_insert_default();
        annotations.insert(REVISION.to_owned(), next.to_string());
        if let Some(before) = before.filter(|before| !before.is_empty()) {
            let history = longer(annotations.get(HISTORY).map(String::as_str), &before);
            annotations.insert(HISTORY.to_owned(), history);
        }
    }
    let min_ready = work.deployment.spec.as_ref().and_then(|spec| spec.min_ready_seconds);
    if let Some(spec) = &mut new.spec
        && spec.min_ready_seconds.unwrap_or(0) != min_ready.unwrap_or(0)
    {
        spec.min_ready_seconds = min_ready;
    }
    let revision = annotation(new, REVISION).unwrap_or_default().to_owned();
    let message = format!("Found new replica set {:?}", name(new));
    follow(&mut work.deployment, revision);
    progress::say_found(&mut work.deployment, message, work.now);
}

fn follow(deployment: &mut Deployment, revision: String) {
    deployment.metadata.annotations.get_or_insert_default().insert(REVISION.to_owned(), revision);
}

fn hand_on(deployment: &Deployment, set: &mut ReplicaSet) {
    let handed = deployment.metadata.annotations.iter().flatten();
    for (key, value) in handed.filter(|(key, _)| !OWN.contains(&key.as_str())) {
        set.metadata.annotations.get_or_insert_default().insert(key.clone(), value.clone());
    }
}

/// The list with one more; the oldest are dropped beyond [`HISTORY_MAX`].
fn longer(history: Option<&str>, revision: &str) -> String {
    let mut all: Vec<&str> = history.into_iter().flat_map(|list| list.split(',')).collect();
    all.retain(|revision| !revision.is_empty());
    all.push(revision);
    while all.len() > 1 && all.iter().map(|one| one.len() + 1).sum::<usize>() > HISTORY_MAX + 1 {
        all.remove(0);
    }
    all.join(",")
}

/// The new set, as it is to be created with `size` (C-29); the Deployment follows it.
pub(super) fn make(work: &mut Work<'_>, size: i32) -> ReplicaSet {
    let deployment = &work.deployment;
    let spec = deployment.spec.clone().unwrap_or_default();
    let collisions = deployment.status.as_ref().and_then(|status| status.collision_count);
    let hash = hash(&spec.template, collisions);
    let mut template = spec.template;
    let labels = template.metadata.get_or_insert_default().labels.get_or_insert_default();
    labels.insert(HASH_LABEL.to_owned(), hash.clone());
    let labels = labels.clone();
    let mut selector = spec.selector;
    selector.match_labels.get_or_insert_default().insert(HASH_LABEL.to_owned(), hash.clone());
    let revision = next_revision(work);
    let mut prefix = name(deployment).to_owned();
    prefix.truncate(NAME_MAX.saturating_sub(hash.len() + 1));
    let mut set = ReplicaSet {
        metadata: ObjectMeta {
            name: Some(format!("{prefix}-{hash}")),
            namespace: deployment.metadata.namespace.clone(),
            labels: Some(labels),
            annotations: Some(BTreeMap::from([(REVISION.to_owned(), revision.to_string())])),
            owner_references: Some(vec![owner_reference(deployment)]),
            ..ObjectMeta::default()
        },
        spec: Some(ReplicaSetSpec {
            replicas: Some(size),
            min_ready_seconds: spec.min_ready_seconds,
            selector,
            template: Some(template),
        }),
        status: None,
    };
    hand_on(deployment, &mut set);
    note_sizes(&mut set, deployment);
    let message = format!("Created new replica set {:?}", name(&set));
    follow(&mut work.deployment, revision.to_string());
    progress::say_created(&mut work.deployment, message, work.now);
    set
}

/// What the sizes were chosen for, to be read when it is scaled (C-30).
pub(super) fn note_sizes(set: &mut ReplicaSet, deployment: &Deployment) {
    let (wanted, fence) = (wanted(deployment), Fence::of(deployment));
    let annotations = set.metadata.annotations.get_or_insert_default();
    annotations.insert(DESIRED.to_owned(), wanted.to_string());
    annotations.insert(MAX.to_owned(), wanted.saturating_add(fence.surge).to_string());
}

/// The uids of the old sets that are beyond the limit and empty (C-36).
pub(super) fn forgotten(deployment: &Deployment, old: &[ReplicaSet]) -> Vec<String> {
    let limit = deployment.spec.as_ref().and_then(|spec| spec.revision_history_limit);
    let Some(limit) = limit.filter(|limit| *limit != i32::MAX) else {
        return Vec::new();
    };
    let mut sets: Vec<&ReplicaSet> = old.iter().filter(|set| !is_deleted(*set)).collect();
    let surplus = sets.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
    sets.sort_by_key(|set| revision(set));
    let is_empty = |set: &&&ReplicaSet| {
        let observed = set.status.as_ref().and_then(|status| status.observed_generation);
        plan::replicas(set) == 0 && size(set) == 0 && set.metadata.generation <= observed
    };
    let surplus = sets.iter().take(surplus).filter(is_empty);
    surplus.map(|set| uid(*set).to_owned()).collect()
}
