//! Revisions of a template, kept as ControllerRevisions (C-66…C-69, C-88…C-94).

use super::template::short_name;
use super::{Workload, Writes, is_controlled_by, label, name, owner_reference, uid};
use client::{Client, DeleteOptions, ObjectKey};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The longest part of a revision's name that is its owner's.
const PREFIX_MAX: usize = 223;

/// More names than this are not tried in one go.
const COLLISIONS_MAX: usize = 10;

/// What a revision holds: a patch that puts the template in place of another. The fields are those
/// that a client writes after reading the template (C-89).
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

fn holds(revision: &ControllerRevision, data: &Value) -> bool {
    match &revision.data {
        Some(RawExtension(there)) if there == data => true,
        // Written by another version, whose defaults were others: compared by meaning.
        Some(RawExtension(_)) => {
            let read = |data: &Value| {
                let data = RawExtension(data.clone());
                template(&ControllerRevision { data: Some(data), ..ControllerRevision::default() })
            };
            match (template(revision), read(data)) {
                (Some(there), Some(wanted)) => super::same_template(&there, &wanted),
                _ => false,
            }
        }
        None => false,
    }
}

/// What the history needs so that its latest entry is the template.
#[derive(Debug)]
enum Step {
    Is(Arc<ControllerRevision>),
    /// An earlier one is used again.
    Raise(Arc<ControllerRevision>, i64),
    Create(Box<ControllerRevision>),
}

/// How a kind writes its revisions.
pub(crate) struct Style {
    /// The label that has the hash.
    pub(crate) hash_label: &'static str,
}

fn decide<O: Workload>(
    owner: &O,
    wanted: &PodTemplateSpec,
    history: &[Arc<ControllerRevision>],
    style: &Style,
    collisions: Option<i32>,
) -> Step {
    let data = data(wanted);
    let max = history.iter().map(|revision| revision.revision).max().unwrap_or(0);
    let equal = history.iter().filter(|revision| holds(revision, &data));
    match equal.max_by_key(|revision| revision.revision) {
        Some(found) if found.revision == max => Step::Is(found.clone()),
        Some(found) => Step::Raise(found.clone(), max + 1),
        None => {
            let hash = short_name(&data, collisions);
            let mut labels =
                wanted.metadata.as_ref().and_then(|meta| meta.labels.clone()).unwrap_or_default();
            labels.insert(style.hash_label.to_owned(), hash.clone());
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

/// The revision of the owner's present template, made or raised if need be. A name that another has
/// is passed over, and counted in `collisions`.
pub(crate) async fn current<O: Workload>(
    client: &Client,
    writes: &Writes<ControllerRevision>,
    owner: &O,
    wanted: &PodTemplateSpec,
    history: &[Arc<ControllerRevision>],
    style: &Style,
    collisions: &mut Option<i32>,
) -> client::Result<Arc<ControllerRevision>> {
    let key = ObjectKey::of(owner);
    let mut tries = 0;
    loop {
        match decide(owner, wanted, history, style, *collisions) {
            Step::Is(found) => return Ok(found),
            Step::Raise(found, revision) => {
                let mut raised = found.as_ref().clone();
                raised.revision = revision;
                let raised = client.update(&raised).await?;
                writes.wrote(&key, &raised);
                return Ok(Arc::new(raised));
            }
            Step::Create(wanted) => match client.create(wanted.as_ref()).await {
                Ok(created) => {
                    writes.wrote(&key, &created);
                    return Ok(Arc::new(created));
                }
                Err(error) if error.is_already_exists() && tries < COLLISIONS_MAX => {
                    let there: ControllerRevision =
                        client.get(&ObjectKey::of(wanted.as_ref())).await?;
                    if there.data == wanted.data && is_controlled_by(&there, owner) {
                        writes.wrote(&key, &there);
                        return Ok(Arc::new(there));
                    }
                    *collisions = Some(collisions.unwrap_or(0).saturating_add(1));
                    tries += 1;
                }
                Err(error) => return Err(error),
            },
        }
    }
}

/// Those that nobody uses, beyond the limit, lowest revision first. `used` has names, or the values
/// of the style's hash label. The limit is for those that nobody uses (C-69), or if `present` is the
/// present one for all that hold something else (C-94).
pub(crate) fn forgotten(
    history: &[Arc<ControllerRevision>],
    limit: Option<i32>,
    style: &Style,
    used: &BTreeSet<&str>,
    present: Option<&ControllerRevision>,
) -> Vec<Arc<ControllerRevision>> {
    let is_used = |revision: &ControllerRevision| {
        let hash = label(revision, style.hash_label).unwrap_or_default();
        used.contains(name(revision)) || used.contains(hash)
    };
    let old = || {
        let same = |one: &ControllerRevision| present.is_some_and(|now| now.data == one.data);
        history.iter().filter(move |one| !same(one))
    };
    let mut unused: Vec<&Arc<ControllerRevision>> =
        old().filter(|revision| !is_used(revision)).collect();
    unused.sort_by_key(|revision| revision.revision);
    let limit = usize::try_from(limit.unwrap_or(10)).unwrap_or(0);
    let counted = if present.is_some() { old().count() } else { unused.len() };
    let surplus = counted.saturating_sub(limit);
    unused.into_iter().take(surplus).cloned().collect()
}

pub(crate) async fn delete<O: Workload>(
    client: &Client,
    writes: &Writes<ControllerRevision>,
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

    const STYLE: Style = Style { hash_label: "controller.kubernetes.io/hash" };

    fn set() -> StatefulSet {
        typed::from_value(json!({ "metadata": { "namespace": "a", "name": "db", "uid": "u" } }))
            .unwrap()
    }

    fn wanted(image: &str) -> PodTemplateSpec {
        typed::from_value(json!({ "metadata": { "labels": { "app": "db" } },
            "spec": { "containers": [{ "name": "c", "image": image }] } }))
        .unwrap()
    }

    fn made(image: &str, history: &[Arc<ControllerRevision>]) -> Arc<ControllerRevision> {
        match decide(&set(), &wanted(image), history, &STYLE, None) {
            Step::Create(revision) => Arc::new(*revision),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn c_66_c_68_a_template_is_kept_once_and_raised_when_it_comes_back() {
        let a = made("a", &[]);
        assert_eq!(a.revision, 1);
        let hash = label(a.as_ref(), STYLE.hash_label).unwrap();
        assert_eq!(name(a.as_ref()), format!("db-{hash}"));
        assert_eq!(
            template(&a).unwrap(),
            typed::from_value(json!({
            "metadata": { "labels": { "app": "db" } },
            "spec": { "containers": [{ "name": "c", "image": "a", "resources": {} }] } }))
            .unwrap()
        );
        let b = made("b", std::slice::from_ref(&a));
        assert_eq!(b.revision, 2);
        let history = [a.clone(), b];
        assert!(matches!(decide(&set(), &wanted("b"), &history, &STYLE, None), Step::Is(_)));
        match decide(&set(), &wanted("a"), &history, &STYLE, None) {
            Step::Raise(found, 3) => assert_eq!(name(found.as_ref()), name(a.as_ref())),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn c_69_c_94_only_what_nobody_uses_is_forgotten() {
        let mut history = Vec::new();
        for image in ["a", "b", "c", "d"] {
            let next = made(image, &history);
            history.push(next);
        }
        let used = BTreeSet::from([name(history[0].as_ref()), name(history[3].as_ref())]);
        let forgotten = |limit, present: Option<&ControllerRevision>| {
            let forgotten = forgotten(&history, Some(limit), &STYLE, &used, present);
            forgotten.iter().map(|revision| revision.revision).collect::<Vec<_>>()
        };
        assert!(forgotten(2, None).is_empty());
        assert_eq!(forgotten(1, None), [2]);
        assert_eq!(forgotten(0, None), [2, 3]);
        // A DaemonSet's limit is also for old ones that pods still have; those stay nevertheless.
        let present = Some(history[3].as_ref());
        assert!(forgotten(3, present).is_empty());
        assert_eq!(forgotten(2, present), [2]);
        assert_eq!(forgotten(1, present), [2, 3]);
        assert_eq!(forgotten(0, present), [2, 3]);
    }

    /// C-91: a duplicate of the present one is deleted by itself and takes nobody's place.
    #[test]
    fn c_94_what_holds_the_same_as_the_present_one_is_not_counted() {
        let mut history = Vec::new();
        for image in ["a", "b", "c"] {
            let next = made(image, &history);
            history.push(next);
        }
        let mut duplicate = history[2].as_ref().clone();
        duplicate.metadata.name = Some("db-duplicate".to_owned());
        duplicate.metadata.labels = None;
        history.push(Arc::new(duplicate));
        let present = history[2].clone();
        let used = BTreeSet::from([name(present.as_ref())]);
        let forgotten = |limit| {
            forgotten(&history, Some(limit), &STYLE, &used, Some(&present))
                .iter()
                .map(|revision| revision.revision)
                .collect::<Vec<_>>()
        };
        assert!(forgotten(2).is_empty());
        assert_eq!(forgotten(1), [1]);
    }

    /// C-210
    #[test]
    fn c_89_data_is_a_patch_with_sorted_keys() {
        let text = data(&wanted("a")).to_string();
        assert_eq!(
            text,
            "{\"spec\":{\"template\":{\"$patch\":\"replace\",\"metadata\":{\"labels\":{\"app\":\"db\"}},\
             \"spec\":{\"containers\":[{\"image\":\"a\",\"name\":\"c\",\"resources\":{}}]}}}}"
        );
    }
}
