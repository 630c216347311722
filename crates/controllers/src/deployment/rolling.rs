//! The sizes of a rolling update: up while there is room, down while enough stay available
//! (C-41…C-44). Pending terminations count nowhere (T-CTRL-10).

use super::plan::{Fence, Work, available, resize, size, wanted};

/// What a new set begins with.
pub(super) fn first_size(work: &Work<'_>) -> i32 {
    grown(work, 0)
}

fn grown(work: &Work<'_>, size: i32) -> i32 {
    let wanted = wanted(&work.deployment);
    let room = wanted.saturating_add(Fence::of(&work.deployment).surge) - work.total();
    if room <= 0 { size } else { size + room.min(wanted - size) }
}

/// Whether it did.
pub(super) fn grow_new(work: &mut Work<'_>) -> bool {
    let wanted = wanted(&work.deployment);
    let Some(before) = work.new.as_ref().map(size) else { return false };
    let after = if before > wanted { wanted } else { grown(work, before) };
    match &mut work.new {
        Some(new) if after != before => resize(new, after, &work.deployment),
        _ => return false,
    }
    true
}

/// Whether it did.
pub(super) fn shrink_old(work: &mut Work<'_>) -> bool {
    let before: i32 = work.old.iter().map(size).sum();
    let min_available = wanted(&work.deployment) - Fence::of(&work.deployment).unavailable;
    let not_yet = work.new.as_ref().map_or(0, |new| size(new) - available(new));
    let budget = work.total() - min_available - not_yet;
    if before == 0 || budget <= 0 {
        return false;
    }
    // First what is of no use anyway (T-CTRL-11).
    let mut left = budget;
    for set in work.old.iter_mut().filter(|set| size(set) > 0) {
        let less = left.min(size(set) - available(set));
        if less > 0 {
            resize(set, size(set) - less, &work.deployment);
            left -= less;
        }
    }
    let mut left = work.all().map(available).sum::<i32>() - min_available;
    for set in work.old.iter_mut().filter(|set| size(set) > 0) {
        let less = left.min(size(set));
        if less > 0 {
            resize(set, size(set) - less, &work.deployment);
            left -= less;
        }
    }
    work.old.iter().map(size).sum::<i32>() != before
}
