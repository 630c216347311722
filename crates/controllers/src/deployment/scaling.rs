//! Proportional scaling during a rollout (C-47…C-49).

use super::plan::{Rollout, RolloutLimits, available, desired_replicas, recreates, resize, size};
use super::revisions::{self, DESIRED, MAX};
use crate::workload::annotation;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};

fn annotated_number(set: &ReplicaSet, key: &str) -> Option<i32> {
    annotation(set, key)?.parse().ok()
}

/// Whether the size of some set is based on another number of replicas than the current one.
pub(super) fn is_needed(rollout: &Rollout<'_>) -> bool {
    let wanted = desired_replicas(&rollout.deployment);
    let mut active = rollout.all().filter(|set| size(set) > 0);
    active.any(|set| annotated_number(set, DESIRED).is_some_and(|desired| desired != wanted))
}

pub(super) fn scale(rollout: &mut Rollout<'_>) {
    let wanted = desired_replicas(&rollout.deployment);
    let deployment = rollout.deployment.clone();
    let active = rollout.all().filter(|set| size(set) > 0).count();
    if active <= 1 {
        let only = match active {
            1 => rollout.all_mut().find(|set| size(set) > 0),
            _ if rollout.new.is_some() => rollout.new.as_mut(),
            _ => rollout.old.last_mut(),
        };
        if let Some(only) = only.filter(|set| size(set) != wanted) {
            resize(only, wanted, &deployment);
        }
    } else if rollout.new.as_ref().is_some_and(|new| is_saturated(new, wanted)) {
        for set in rollout.old.iter_mut().filter(|set| size(set) > 0) {
            resize(set, 0, &deployment);
        }
    } else if !recreates(&deployment) {
        in_proportion(rollout, &deployment);
    }
}

fn is_saturated(new: &ReplicaSet, wanted: i32) -> bool {
    size(new) == wanted
        && annotated_number(new, DESIRED) == Some(wanted)
        && available(new) == wanted
}

fn in_proportion(rollout: &mut Rollout<'_>, deployment: &Deployment) {
    let wanted = desired_replicas(deployment);
    let surge = RolloutLimits::of(deployment).surge;
    let allowed = if wanted > 0 { wanted.saturating_add(surge) } else { 0 };
    let to_add = allowed - rollout.total();
    // The newest set last, so that reversing puts it first. After a rollback that is not the new set.
    let mut active: Vec<&mut ReplicaSet> = rollout.all_mut().filter(|set| size(set) > 0).collect();
    active.sort_by_cached_key(|set| {
        let created = set.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (created, set.metadata.name.clone())
    });
    if to_add > 0 {
        active.reverse();
    }
    active.sort_by_key(|set| std::cmp::Reverse(size(set)));
    let mut added = 0;
    let mut sizes: Vec<i32> = Vec::new();
    for set in &active {
        let share = share(set, deployment, to_add, added);
        sizes.push(size(set) + share);
        added += share;
    }
    if let Some(first) = sizes.first_mut() {
        *first = (*first + to_add - added).max(0);
    }
    for (set, size) in active.into_iter().zip(sizes) {
        resize(set, size, deployment);
        revisions::annotate_sizes(set, deployment);
    }
}

/// The share of `to_add` that this set gets.
fn share(set: &ReplicaSet, deployment: &Deployment, to_add: i32, added: i32) -> i32 {
    if to_add == 0 || to_add == added {
        return 0;
    }
    let (share, left) = (fraction(set, deployment), to_add - added);
    if to_add > 0 { share.min(left) } else { share.max(left) }
}

fn fraction(set: &ReplicaSet, deployment: &Deployment) -> i32 {
    let wanted = desired_replicas(deployment);
    if wanted == 0 {
        return -size(set);
    }
    let before = annotated_number(set, MAX).filter(|max| *max != 0);
    let status = deployment.status.as_ref().and_then(|status| status.replicas);
    let before = before.or(status).unwrap_or(0);
    if before == 0 {
        return 0;
    }
    let now = wanted.saturating_add(RolloutLimits::of(deployment).surge);
    let scaled = f64::from(size(set)) * f64::from(now) / f64::from(before);
    scaled.round() as i32 - size(set)
}
