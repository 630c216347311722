//! Rollback by annotation, as clients of the old API request it (C-55). `kubectl rollout undo` writes the template
//! itself instead.

use super::plan::template;
use super::revisions::{OWN_ANNOTATIONS, ROLLBACK_TO, revision};
use crate::workload::{HASH_LABEL, annotation, is_being_deleted, name, same_template};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct Rollback {
    pub(super) after: Deployment,
    pub(super) is_warning: bool,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

pub(super) fn decide(deployment: &Deployment, sets: &[Arc<ReplicaSet>]) -> Option<Rollback> {
    let paused = deployment.spec.as_ref().and_then(|spec| spec.paused) == Some(true);
    if is_being_deleted(deployment) || paused {
        return None;
    }
    let requested: i64 = annotation(deployment, ROLLBACK_TO)?.parse().ok()?;
    let mut after = deployment.clone();
    after.metadata.annotations.get_or_insert_default().remove(ROLLBACK_TO);
    let warning = |after, reason, message: &str| {
        Some(Rollback { after, is_warning: true, reason, message: message.to_owned() })
    };
    const NOT_FOUND: &str = "DeploymentRollbackRevisionNotFound";
    let target = if requested == 0 { previous_revision(sets) } else { requested };
    if target == 0 {
        return warning(after, NOT_FOUND, "Unable to find last revision.");
    }
    let Some(set) = sets.iter().find(|set| revision(set) == target) else {
        return warning(after, NOT_FOUND, "Unable to find the revision to rollback to.");
    };
    let name = name(deployment);
    let (Some(there), Some(spec)) = (template(set), after.spec.as_mut()) else { return None };
    if same_template(there, &spec.template) {
        let message = format!(
            "The rollback revision contains the same template as current deployment {name:?}"
        );
        return warning(after, "DeploymentRollbackTemplateUnchanged", &message);
    }
    spec.template = there.clone();
    if let Some(labels) = spec.template.metadata.as_mut().and_then(|meta| meta.labels.as_mut()) {
        labels.remove(HASH_LABEL);
    }
    let annotations = after.metadata.annotations.get_or_insert_default();
    annotations.retain(|key, _| OWN_ANNOTATIONS.contains(&key.as_str()));
    let of_set = set.metadata.annotations.iter().flatten();
    let of_set = of_set.filter(|(key, _)| !OWN_ANNOTATIONS.contains(&key.as_str()));
    annotations.extend(of_set.map(|(key, value)| (key.clone(), value.clone())));
    let message = format!("Rolled back deployment {name:?} to revision {target}");
    Some(Rollback { after, is_warning: false, reason: "DeploymentRollback", message })
}

/// The second highest revision; 0 if there is none.
fn previous_revision(sets: &[Arc<ReplicaSet>]) -> i64 {
    let mut all: Vec<i64> = sets.iter().map(|set| revision(set)).collect();
    all.sort_unstable();
    all.iter().rev().nth(1).copied().unwrap_or(0)
}
