//! Revisions of a pod template, stored as ControllerRevisions (C-66…C-69, C-88…C-94).

use super::template::short_name;
use super::{PendingWrites, Workload, is_controlled_by, label, name, owner_reference, uid};
use client::{Client, DeleteOptions, ObjectKey};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The longest prefix of a revision's name that comes from its owner.
const PREFIX_MAX: usize = 223;

/// At most this many names are tried in one reconcile.
const COLLISIONS_MAX: usize = 10;

/// The data of a revision: a patch that replaces the template. The fields are those that a Go client writes after
/// reading the template (C-89).
pub(crate) fn data(template: &PodTemplateSpec) -> Value {
    let mut template = typed::to_value(template).unwrap_or_default();
    if let Some(fields) = template.as_object_mut() {
        fields.entry("metadata").or_insert_with(|| json!({}));
        fields.insert("$patch".to_owned(), json!("replace"));
    }
    for list in ["containers", "initContainers"] {
        let containers =
            template.pointer_mut(&format!("/spec/{list}")).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten().filter_map(Value::as_object_mut) {
            container.entry("resources").or_insert_with(|| json!({}));
        }
    }
    json!({ "spec": { "template": template } })
}

/// The template that a revision holds.
pub(crate) fn template(revision: &ControllerRevision) -> Option<PodTemplateSpec> {
    let mut template: Map<String, Value> =
        revision.data.as_ref()?.0.pointer("/spec/template")?.as_object()?.clone();
    template.remove("$patch");
    typed::from_value(Value::Object(template)).ok()
}

fn has_data(revision: &ControllerRevision, data: &Value) -> bool {
    match &revision.data {
        Some(RawExtension(stored)) if stored == data => true,
        // Written by another version with other defaults: compare by meaning.
        Some(RawExtension(_)) => {
            let read = |data: &Value| {
                let data = RawExtension(data.clone());
                template(&ControllerRevision { data: Some(data), ..ControllerRevision::default() })
            };
            match (template(revision), read(data)) {
                (Some(stored), Some(template)) => super::same_template(&stored, &template),
                _ => false,
            }
        }
        None => false,
    }
}

/// What makes the template the latest revision.
#[derive(Debug)]
enum Step {
    /// Nothing: it is already.
    UseLatest(Arc<ControllerRevision>),
    /// An earlier revision gets a new number.
    Renumber(Arc<ControllerRevision>, i64),
    Create(Box<ControllerRevision>),
}

fn decide<O: Workload>(
    owner: &O,
    template: &PodTemplateSpec,
    history: &[Arc<ControllerRevision>],
    hash_label: &str,
    collisions: Option<i32>,
) -> Step {
    let data = data(template);
    let max = history.iter().map(|revision| revision.revision).max().unwrap_or(0);
    let equal = history.iter().filter(|revision| has_data(revision, &data));
    match equal.max_by_key(|revision| revision.revision) {
        Some(found) if found.revision == max => Step::UseLatest(found.clone()),
        Some(found) => Step::Renumber(found.clone(), max + 1),
        None => {
            let hash = short_name(&data, collisions);
            let mut labels =
                template.metadata.as_ref().and_then(|meta| meta.labels.clone()).unwrap_or_default();
            labels.insert(hash_label.to_owned(), hash.clone());
            let mut prefix = name(owner).to_owned();
            prefix.truncate(PREFIX_MAX);
            Step::Create(Box::new(ControllerRevision {
                metadata: ObjectMeta {
                    name: Some(format!("{prefix}-{hash}")),
                    namespace: owner.metadata().namespace.clone(),
                    labels: Some(labels),
                    annotations: owner.metadata().annotations.clone(),
                    owner_references: Some(vec![owner_reference(owner)]),
                    ..ObjectMeta::default()
                },
                data: Some(RawExtension(data)),
                revision: max + 1,
            }))
        }
    }
}

/// The revision of the owner's current template; creates or renumbers one if needed. A name that another revision
/// has is skipped and counted in `collisions`. `hash_label` is the label with the hash of the template.
pub(crate) async fn current<O: Workload>(
    client: &Client,
    writes: &PendingWrites<ControllerRevision>,
    owner: &O,
    template: &PodTemplateSpec,
    history: &[Arc<ControllerRevision>],
    hash_label: &str,
    collisions: &mut Option<i32>,
) -> client::Result<Arc<ControllerRevision>> {
    let key = ObjectKey::of(owner);
    let mut tries = 0;
    loop {
        match decide(owner, template, history, hash_label, *collisions) {
            Step::UseLatest(found) => return Ok(found),
            Step::Renumber(found, revision) => {
                let mut renumbered = found.as_ref().clone();
                renumbered.revision = revision;
                let renumbered = client.update(&renumbered).await?;
                writes.wrote(&key, &renumbered);
                return Ok(Arc::new(renumbered));
            }
            Step::Create(new) => match client.create(new.as_ref()).await {
                Ok(created) => {
                    writes.wrote(&key, &created);
                    return Ok(Arc::new(created));
                }
                Err(error) if error.is_already_exists() && tries < COLLISIONS_MAX => {
                    let existing: ControllerRevision =
                        client.get(&ObjectKey::of(new.as_ref())).await?;
                    if existing.data == new.data && is_controlled_by(&existing, owner) {
                        writes.wrote(&key, &existing);
                        return Ok(Arc::new(existing));
                    }
                    *collisions = Some(collisions.unwrap_or(0).saturating_add(1));
                    tries += 1;
                }
                Err(error) => return Err(error),
            },
        }
    }
}

/// Unused revisions beyond the limit, lowest revision first. `used` has names or values of the hash label. The limit
/// applies to unused revisions (C-69); if the `current` revision is given, to all with other data than it (C-94).
pub(crate) fn surplus(
    history: &[Arc<ControllerRevision>],
    limit: Option<i32>,
    hash_label: &str,
    used: &BTreeSet<&str>,
    current: Option<&ControllerRevision>,
) -> Vec<Arc<ControllerRevision>> {
    let is_used = |revision: &ControllerRevision| {
        let hash = label(revision, hash_label).unwrap_or_default();
        used.contains(name(revision)) || used.contains(hash)
    };
    let old = || {
        let same = |one: &ControllerRevision| current.is_some_and(|now| now.data == one.data);
        history.iter().filter(move |one| !same(one))
    };
    let mut unused: Vec<&Arc<ControllerRevision>> =
        old().filter(|revision| !is_used(revision)).collect();
    unused.sort_by_key(|revision| revision.revision);
    let limit = usize::try_from(limit.unwrap_or(10)).unwrap_or(0);
    let counted = if current.is_some() { old().count() } else { unused.len() };
    let surplus = counted.saturating_sub(limit);
    unused.into_iter().take(surplus).cloned().collect()
}

pub(crate) async fn delete<O: Workload>(
    client: &Client,
    writes: &PendingWrites<ControllerRevision>,
    owner: &O,
    revisions: Vec<Arc<ControllerRevision>>,
) -> client::Result<()> {
    for revision in revisions {
        let options = DeleteOptions::of_uid(uid(revision.as_ref()));
        let key = ObjectKey::of(revision.as_ref());
        match client.delete::<ControllerRevision>(&key, &options).await {
            Err(error) if !super::is_outdated(&error) => return Err(error),
            _ => writes.deleted(&ObjectKey::of(owner), [revision]),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::apps::v1::StatefulSet;

    const HASH_LABEL: &str = "controller.kubernetes.io/hash";

    fn set() -> StatefulSet {
        typed::from_value(json!({ "metadata": { "namespace": "a", "name": "db", "uid": "u" } }))
            .unwrap()
    }

    fn template_of(image: &str) -> PodTemplateSpec {
        typed::from_value(json!({ "metadata": { "labels": { "app": "db" } },
            "spec": { "containers": [{ "name": "c", "image": image }] } }))
        .unwrap()
    }

    fn new_revision(image: &str, history: &[Arc<ControllerRevision>]) -> Arc<ControllerRevision> {
        match decide(&set(), &template_of(image), history, HASH_LABEL, None) {
            Step::Create(revision) => Arc::new(*revision),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn c_66_c_68_a_template_is_stored_once_and_renumbered_when_used_again() {
        let a = new_revision("a", &[]);
        assert_eq!(a.revision, 1);
        let hash = label(a.as_ref(), HASH_LABEL).unwrap();
        assert_eq!(name(a.as_ref()), format!("db-{hash}"));
        assert_eq!(
            template(&a).unwrap(),
            typed::from_value(json!({
            "metadata": { "labels": { "app": "db" } },
            "spec": { "containers": [{ "name": "c", "image": "a", "resources": {} }] } }))
            .unwrap()
        );
        let b = new_revision("b", std::slice::from_ref(&a));
        assert_eq!(b.revision, 2);
        let history = [a.clone(), b];
        let again = decide(&set(), &template_of("b"), &history, HASH_LABEL, None);
        assert!(matches!(again, Step::UseLatest(_)));
        match decide(&set(), &template_of("a"), &history, HASH_LABEL, None) {
            Step::Renumber(found, 3) => assert_eq!(name(found.as_ref()), name(a.as_ref())),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn c_69_c_94_only_unused_revisions_are_deleted() {
        let mut history = Vec::new();
        for image in ["a", "b", "c", "d"] {
            let next = new_revision(image, &history);
            history.push(next);
        }
        let used = BTreeSet::from([name(history[0].as_ref()), name(history[3].as_ref())]);
        let surplus = |limit, current: Option<&ControllerRevision>| {
            let surplus = surplus(&history, Some(limit), HASH_LABEL, &used, current);
            surplus.iter().map(|revision| revision.revision).collect::<Vec<_>>()
        };
        assert!(surplus(2, None).is_empty());
        assert_eq!(surplus(1, None), [2]);
        assert_eq!(surplus(0, None), [2, 3]);
        // The limit of a DaemonSet also counts old revisions that pods still use, but those stay.
        let current = Some(history[3].as_ref());
        assert!(surplus(3, current).is_empty());
        assert_eq!(surplus(2, current), [2]);
        assert_eq!(surplus(1, current), [2, 3]);
        assert_eq!(surplus(0, current), [2, 3]);
    }

    /// C-91: duplicates of the current revision are deleted separately.
    #[test]
    fn c_94_duplicates_of_the_current_revision_do_not_count_towards_the_limit() {
        let mut history = Vec::new();
        for image in ["a", "b", "c"] {
            let next = new_revision(image, &history);
            history.push(next);
        }
        let mut duplicate = history[2].as_ref().clone();
        duplicate.metadata.name = Some("db-duplicate".to_owned());
        duplicate.metadata.labels = None;
        history.push(Arc::new(duplicate));
        let current = history[2].clone();
        let used = BTreeSet::from([name(current.as_ref())]);
        let surplus = |limit| {
            surplus(&history, Some(limit), HASH_LABEL, &used, Some(&current))
                .iter()
                .map(|revision| revision.revision)
                .collect::<Vec<_>>()
        };
        assert!(surplus(2).is_empty());
        assert_eq!(surplus(1), [1]);
    }

    /// C-210: the exact bytes of a DaemonSet revision.
    #[test]
    fn c_89_data_is_a_patch_with_sorted_keys() {
        let text = data(&template_of("a")).to_string();
        assert_eq!(
            text,
            "{\"spec\":{\"template\":{\"$patch\":\"replace\",\"metadata\":{\"labels\":{\"app\":\"db\"}},\
             \"spec\":{\"containers\":[{\"image\":\"a\",\"name\":\"c\",\"resources\":{}}]}}}}"
        );
    }
}
