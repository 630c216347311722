//! The sizes of sets during a rolling update: scale up within the surge, scale down while enough pods stay available
//! (C-41…C-44). Terminating pods do not count (T-CTRL-10).

use super::plan::{Rollout, RolloutLimits, available, desired_replicas, resize, size};

/// The initial size of a new set.
pub(super) fn first_size(rollout: &Rollout<'_>) -> i32 {
    grown(rollout, 0)
}

fn grown(rollout: &Rollout<'_>, size: i32) -> i32 {
    let wanted = desired_replicas(&rollout.deployment);
    let room =
        wanted.saturating_add(RolloutLimits::of(&rollout.deployment).surge) - rollout.total();
    if room <= 0 { size } else { size + room.min(wanted - size) }
}

/// Returns whether the size changed.
pub(super) fn grow_new(rollout: &mut Rollout<'_>) -> bool {
    let wanted = desired_replicas(&rollout.deployment);
    let Some(before) = rollout.new.as_ref().map(size) else { return false };
    let after = if before > wanted { wanted } else { grown(rollout, before) };
    match &mut rollout.new {
        Some(new) if after != before => resize(new, after, &rollout.deployment),
        _ => return false,
    }
    true
}

/// Returns whether a size changed.
pub(super) fn shrink_old(rollout: &mut Rollout<'_>) -> bool {
    let before: i32 = rollout.old.iter().map(size).sum();
    let min_available =
        desired_replicas(&rollout.deployment) - RolloutLimits::of(&rollout.deployment).unavailable;
    let new_unavailable = rollout.new.as_ref().map_or(0, |new| size(new) - available(new));
    let budget = rollout.total() - min_available - new_unavailable;
    if before == 0 || budget <= 0 {
        return false;
    }
    // First delete pods that are not available (T-CTRL-11).
    let mut left = budget;
    for set in rollout.old.iter_mut().filter(|set| size(set) > 0) {
        let less = left.min(size(set) - available(set));
        if less > 0 {
            resize(set, size(set) - less, &rollout.deployment);
            left -= less;
        }
    }
    let mut left = rollout.all().map(available).sum::<i32>() - min_available;
    for set in rollout.old.iter_mut().filter(|set| size(set) > 0) {
        let less = left.min(size(set));
        if less > 0 {
            resize(set, size(set) - less, &rollout.deployment);
            left -= less;
        }
    }
    rollout.old.iter().map(size).sum::<i32>() != before
}
