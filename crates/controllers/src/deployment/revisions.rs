//! Finds, names and creates the new set, and limits the number of old ones (C-27…C-36).

use super::plan::{self, Rollout, RolloutLimits, desired_replicas, size, template};
use super::progress;
use crate::workload::{
    HASH_LABEL, annotation, hash, is_being_deleted, name, owner_reference, same_template, uid,
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

/// Annotations that are not copied between a Deployment and its sets.
pub(super) const OWN_ANNOTATIONS: [&str; 6] = [
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

/// The set with the Deployment's template (if there are several, the oldest), and the others, oldest first.
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
    let new = sets.iter().position(fits).map(|at| sets.remove(at));
    (
        new.map(|new| new.as_ref().clone()),
        sets.into_iter().map(|set| set.as_ref().clone()).collect(),
    )
}

pub(super) fn revision(set: &ReplicaSet) -> i64 {
    annotation(set, REVISION).and_then(|revision| revision.parse().ok()).unwrap_or(0)
}

fn next_revision(rollout: &Rollout<'_>) -> i64 {
    rollout.old.iter().map(revision).max().unwrap_or(0).saturating_add(1)
}

/// Updates revision, annotations and minReadySeconds of the new set, if there is one, and copies its revision to the
/// Deployment (C-31…C-33, C-45).
pub(super) fn update_new(rollout: &mut Rollout<'_>) {
    let next = next_revision(rollout);
    let Some(new) = &mut rollout.new else { return };
    copy_annotations(&rollout.deployment, new);
    let before = annotation(new, REVISION).map(str::to_owned);
    if revision(new) < next {
        let annotations = new.metadata.annotations.get_or_insert_default();
        annotations.insert(REVISION.to_owned(), next.to_string());
        if let Some(before) = before.filter(|before| !before.is_empty()) {
            let history = append_revision(annotations.get(HISTORY).map(String::as_str), &before);
            annotations.insert(HISTORY.to_owned(), history);
        }
    }
    let min_ready = rollout.deployment.spec.as_ref().and_then(|spec| spec.min_ready_seconds);
    if let Some(spec) = &mut new.spec
        && spec.min_ready_seconds.unwrap_or(0) != min_ready.unwrap_or(0)
    {
        spec.min_ready_seconds = min_ready;
    }
    let revision = annotation(new, REVISION).unwrap_or_default().to_owned();
    let message = format!("Found new replica set {:?}", name(new));
    set_revision(&mut rollout.deployment, revision);
    progress::set_found(&mut rollout.deployment, message, rollout.now);
}

fn set_revision(deployment: &mut Deployment, revision: String) {
    deployment.metadata.annotations.get_or_insert_default().insert(REVISION.to_owned(), revision);
}

fn copy_annotations(deployment: &Deployment, set: &mut ReplicaSet) {
    let handed = deployment.metadata.annotations.iter().flatten();
    for (key, value) in handed.filter(|(key, _)| !OWN_ANNOTATIONS.contains(&key.as_str())) {
        set.metadata.annotations.get_or_insert_default().insert(key.clone(), value.clone());
    }
}

/// Appends a revision to the list; the oldest are dropped beyond [`HISTORY_MAX`].
fn append_revision(history: Option<&str>, revision: &str) -> String {
    let mut all: Vec<&str> = history.into_iter().flat_map(|list| list.split(',')).collect();
    all.retain(|revision| !revision.is_empty());
    all.push(revision);
    while all.len() > 1 && all.iter().map(|one| one.len() + 1).sum::<usize>() > HISTORY_MAX + 1 {
        all.remove(0);
    }
    all.join(",")
}

/// The new set to create with `size` (C-29); the Deployment gets its revision.
pub(super) fn make(rollout: &mut Rollout<'_>, size: i32) -> ReplicaSet {
    let deployment = &rollout.deployment;
    let spec = deployment.spec.clone().unwrap_or_default();
    let collisions = deployment.status.as_ref().and_then(|status| status.collision_count);
    let hash = hash(&spec.template, collisions);
    let mut template = spec.template;
    let labels = template.metadata.get_or_insert_default().labels.get_or_insert_default();
    labels.insert(HASH_LABEL.to_owned(), hash.clone());
    let labels = labels.clone();
    let mut selector = spec.selector;
    selector.match_labels.get_or_insert_default().insert(HASH_LABEL.to_owned(), hash.clone());
    let revision = next_revision(rollout);
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
    copy_annotations(deployment, &mut set);
    annotate_sizes(&mut set, deployment);
    let message = format!("Created new replica set {:?}", name(&set));
    set_revision(&mut rollout.deployment, revision.to_string());
    progress::set_created(&mut rollout.deployment, message, rollout.now);
    set
}

/// Stores the numbers that the size of the set is based on; scaling reads them (C-30).
pub(super) fn annotate_sizes(set: &mut ReplicaSet, deployment: &Deployment) {
    let (wanted, limits) = (desired_replicas(deployment), RolloutLimits::of(deployment));
    let annotations = set.metadata.annotations.get_or_insert_default();
    annotations.insert(DESIRED.to_owned(), wanted.to_string());
    annotations.insert(MAX.to_owned(), wanted.saturating_add(limits.surge).to_string());
}

/// The UIDs of empty old sets beyond the history limit (C-36).
pub(super) fn surplus(deployment: &Deployment, old: &[ReplicaSet]) -> Vec<String> {
    let limit = deployment.spec.as_ref().and_then(|spec| spec.revision_history_limit);
    let Some(limit) = limit.filter(|limit| *limit != i32::MAX) else {
        return Vec::new();
    };
    let mut sets: Vec<&ReplicaSet> = old.iter().filter(|set| !is_being_deleted(*set)).collect();
    let surplus = sets.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
    sets.sort_by_key(|set| revision(set));
    let is_empty = |set: &&&ReplicaSet| {
        let observed = set.status.as_ref().and_then(|status| status.observed_generation);
        plan::replicas(set) == 0 && size(set) == 0 && set.metadata.generation <= observed
    };
    let surplus = sets.iter().take(surplus).filter(is_empty);
    surplus.map(|set| uid(*set).to_owned()).collect()
}
