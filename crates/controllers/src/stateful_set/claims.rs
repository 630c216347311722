//! The volume claims of an ordinal, and their owners by the retention policy (C-64, C-65, T-CTRL-22). Pure.

use super::identity;
use crate::workload::{controller_ref, name, owner_reference, uid};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

/// The name of each claim template, and of the claim for this ordinal.
pub(super) fn names(set: &StatefulSet, ordinal: i32) -> impl Iterator<Item = (String, String)> {
    let templates = set.spec.iter().flat_map(|spec| spec.volume_claim_templates.iter().flatten());
    templates.map(move |template| {
        let template = name(template).to_owned();
        let claim = format!("{template}-{}-{ordinal}", name(set));
        (template, claim)
    })
}

/// Whether a claim of this name belongs to the set.
pub(super) fn is_claim_of(set: &StatefulSet, claim: &str) -> bool {
    let templates = set.spec.iter().flat_map(|spec| spec.volume_claim_templates.iter().flatten());
    templates.into_iter().any(|template| {
        let prefix = format!("{}-{}-", name(template), name(set));
        claim.strip_prefix(&prefix).is_some_and(|ordinal| ordinal.parse::<u32>().is_ok())
    })
}

/// The claims to create.
pub(super) fn make(set: &StatefulSet, ordinal: i32) -> Vec<PersistentVolumeClaim> {
    let Some(spec) = &set.spec else { return Vec::new() };
    let templates = spec.volume_claim_templates.iter().flatten();
    let made = templates.zip(names(set, ordinal)).map(|(template, (_, claim_name))| {
        let mut labels = template.metadata.labels.clone().unwrap_or_default();
        labels.extend(spec.selector.match_labels.clone().unwrap_or_default());
        let owned = Retention::of(set).set_owns(is_in_range(set, ordinal));
        PersistentVolumeClaim {
            metadata: ObjectMeta {
                name: Some(claim_name),
                namespace: set.metadata.namespace.clone(),
                labels: Some(labels).filter(|labels| !labels.is_empty()),
                annotations: template.metadata.annotations.clone(),
                owner_references: owned.then(|| vec![owner_reference(set)]),
                ..ObjectMeta::default()
            },
            spec: template.spec.clone(),
            status: None,
        }
    });
    made.collect()
}

pub(super) fn is_in_range(set: &StatefulSet, ordinal: i32) -> bool {
    let spec = set.spec.as_ref();
    let start = super::plan::start(set);
    let replicas = spec.and_then(|spec| spec.replicas).unwrap_or(1);
    (start..start.saturating_add(replicas)).contains(&ordinal)
}

/// The retention policy: whether claims are kept when the set is deleted, and when it is scaled down.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Retention {
    when_deleted: bool,
    when_scaled: bool,
}

impl Retention {
    fn of(set: &StatefulSet) -> Retention {
        let spec = set.spec.as_ref();
        let policy = spec.and_then(|spec| spec.persistent_volume_claim_retention_policy.as_ref());
        let keeps = |field: Option<&String>| field.map(String::as_str) != Some("Delete");
        Retention {
            when_deleted: keeps(policy.and_then(|policy| policy.when_deleted.as_ref())),
            when_scaled: keeps(policy.and_then(|policy| policy.when_scaled.as_ref())),
        }
    }

    fn set_owns(self, in_range: bool) -> bool {
        !self.when_deleted && (self.when_scaled || in_range)
    }

    fn pod_owns(self, in_range: bool) -> bool {
        !self.when_scaled && !in_range
    }
}

/// What to do about the owner references of a claim.
#[derive(Debug, PartialEq)]
pub(super) enum OwnerUpdate {
    Unchanged,
    /// Another controller owns the claim, so the policy is ignored.
    Conflict,
    Replace(Vec<OwnerReference>),
}

pub(super) fn owners(set: &StatefulSet, pod: &Pod, claim: &PersistentVolumeClaim) -> OwnerUpdate {
    let there = claim.metadata.owner_references.clone().unwrap_or_default();
    let is_of = |owner: &OwnerReference, kind: &str, named: &str, by: &str| {
        owner.kind == kind && owner.name == named && owner.uid == by
    };
    let of_set = |owner: &OwnerReference| is_of(owner, "StatefulSet", name(set), uid(set));
    let of_pod = |owner: &OwnerReference| is_of(owner, "Pod", name(pod), uid(pod));
    let stale = |owner: &OwnerReference| {
        (owner.kind == "StatefulSet" && owner.name == name(set) && !of_set(owner))
            || (owner.kind == "Pod" && owner.name == name(pod) && !of_pod(owner))
    };
    let other = controller_ref(claim).filter(|owner| !of_set(owner) && !of_pod(owner));
    if there.iter().any(stale) {
        return OwnerUpdate::Unchanged; // It belongs to an earlier set or pod and is deleted with it.
    }
    let in_range = identity::ordinal(set, pod).is_some_and(|ordinal| is_in_range(set, ordinal));
    let keeps = Retention::of(set);
    let (set_owns, pod_owns) = (keeps.set_owns(in_range), keeps.pod_owns(in_range));
    if other.is_some() {
        return if set_owns || pod_owns { OwnerUpdate::Conflict } else { OwnerUpdate::Unchanged };
    }
    let mut wanted: Vec<OwnerReference> =
        there.iter().filter(|owner| !of_set(owner) && !of_pod(owner)).cloned().collect();
    let kept = |is_it: &dyn Fn(&OwnerReference) -> bool, fresh: OwnerReference| {
        let found = there.iter().find(|owner| is_it(owner) && owner.controller == Some(true));
        found.cloned().unwrap_or(fresh)
    };
    if set_owns {
        wanted.push(kept(&of_set, owner_reference(set)));
    }
    if pod_owns {
        wanted.push(kept(&of_pod, owner_reference(pod)));
    }
    if wanted == there { OwnerUpdate::Unchanged } else { OwnerUpdate::Replace(wanted) }
}

/// Whether the claim still belongs to an earlier pod of this name, and will be deleted with it.
pub(super) fn is_stale(claim: &PersistentVolumeClaim, pod_name: &str) -> bool {
    let owners = claim.metadata.owner_references.iter().flatten();
    owners.filter(|owner| owner.kind == "Pod").any(|owner| owner.name == pod_name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn set(deleted: &str, scaled: &str) -> StatefulSet {
        typed::from_value(json!({
            "metadata": { "namespace": "a", "name": "db", "uid": "s" },
            "spec": {
                "replicas": 2, "serviceName": "db", "selector": { "matchLabels": { "app": "db" } },
                "template": { "spec": { "containers": [] } },
                "persistentVolumeClaimRetentionPolicy":
                    { "whenDeleted": deleted, "whenScaled": scaled },
                "volumeClaimTemplates": [{ "metadata": { "name": "data" }, "spec": {} }],
            },
        }))
        .unwrap()
    }

    fn pod(ordinal: i32) -> Pod {
        let name = format!("db-{ordinal}");
        typed::from_value(json!({ "metadata": { "name": name, "uid": "p" } })).unwrap()
    }

    fn owner(kind: &str, name: &str, uid: &str) -> Value {
        let api = if kind == "Pod" { "v1" } else { "apps/v1" };
        json!({ "apiVersion": api, "kind": kind, "name": name, "uid": uid, "controller": true,
                "blockOwnerDeletion": true })
    }

    fn claim(owners: Vec<Value>) -> PersistentVolumeClaim {
        typed::from_value(json!({ "metadata": { "name": "data-db-0",
            "ownerReferences": owners } }))
        .unwrap()
    }

    #[test]
    fn c_65_t_ctrl_22_the_retention_policy_decides_who_owns_a_claim() {
        let by_set = || vec![owner("StatefulSet", "db", "s")];
        let cases = [
            ("Retain", "Retain", 0, vec![], None),
            ("Retain", "Retain", 0, by_set(), Some(vec![])),
            ("Delete", "Retain", 0, vec![], Some(vec!["StatefulSet"])),
            ("Delete", "Retain", 5, vec![], Some(vec!["StatefulSet"])),
            ("Retain", "Delete", 0, vec![], None),
            ("Retain", "Delete", 5, vec![], Some(vec!["Pod"])),
            ("Delete", "Delete", 0, by_set(), None),
            ("Delete", "Delete", 5, by_set(), Some(vec!["Pod"])),
            ("Delete", "Delete", 0, vec![owner("StatefulSet", "db", "earlier")], None),
        ];
        for (deleted, scaled, ordinal, there, expected) in cases {
            let what = format!("{deleted} {scaled} {ordinal} {there:?}");
            let found = owners(&set(deleted, scaled), &pod(ordinal), &claim(there));
            let expected =
                expected.map(|all| all.into_iter().map(str::to_owned).collect::<Vec<_>>());
            match (found, expected) {
                (OwnerUpdate::Unchanged, None) => (),
                (OwnerUpdate::Replace(all), Some(expected)) => {
                    let kinds: Vec<String> = all.into_iter().map(|owner| owner.kind).collect();
                    assert_eq!(kinds, expected, "{what}");
                }
                (found, expected) => panic!("{what}: {found:?}, not {expected:?}"),
            }
        }
        let foreign = claim(vec![owner("Other", "x", "x")]);
        assert_eq!(owners(&set("Delete", "Retain"), &pod(0), &foreign), OwnerUpdate::Conflict);
    }

    #[test]
    fn c_64_a_claim_has_the_labels_of_the_selector_and_an_owner_by_policy() {
        let made = make(&set("Delete", "Retain"), 1).remove(0);
        assert_eq!(name(&made), "data-db-1");
        assert_eq!(made.metadata.labels.unwrap()["app"], "db");
        assert_eq!(made.metadata.owner_references.unwrap()[0].kind, "StatefulSet");
        assert!(make(&set("Retain", "Delete"), 1)[0].metadata.owner_references.is_none());
    }
}
