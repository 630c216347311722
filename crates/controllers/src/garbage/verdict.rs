//! Decides what to do with an object, given the states of its owners and dependents. Pure.

use super::graph::Dependent;
use client::Propagation;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

pub(super) const FOREGROUND: &str = "foregroundDeletion";
pub(super) const ORPHAN: &str = "orphan";

/// The state of an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// It exists and does not wait for its dependents.
    Solid,
    /// It does not exist, or another object has its name now.
    Absent,
    /// It is being deleted and waits for its dependents.
    Waiting,
}

/// The state of the dependents of an object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Dependents {
    pub(super) any: bool,
    /// Some of them wait for their own dependents.
    pub(super) waiting: bool,
}

#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    Leave,
    /// Dependents block its deletion.
    Await,
    /// No dependent blocks its deletion any more.
    Finish,
    /// Its dependents must be orphaned before it can be deleted.
    Orphan,
    /// It stays, but the owners with these UIDs do not exist.
    RemoveOwners(Vec<String>),
    Delete {
        propagation: Propagation,
        /// It is part of a cycle of objects that wait for each other, so it must stop blocking its owners.
        unblock: bool,
    },
}

impl Dependents {
    pub(super) fn of(owner: &ObjectMeta, all: &[Dependent]) -> Dependents {
        // An object does not wait for itself.
        let others = || all.iter().filter(|one| one.object.metadata.uid != owner.uid);
        Dependents {
            any: others().next().is_some(),
            waiting: others().any(|dependent| is_waiting(&dependent.object.metadata)),
        }
    }
}

/// Whether the object is being deleted and waits for its dependents.
pub(super) fn is_waiting(meta: &ObjectMeta) -> bool {
    meta.deletion_timestamp.is_some() && has(meta, FOREGROUND)
}

fn has(meta: &ObjectMeta, finalizer: &str) -> bool {
    meta.finalizers.iter().flatten().any(|there| there == finalizer)
}

/// The UIDs of the owners that cannot be deleted before the object.
pub(super) fn blocked_by(meta: &ObjectMeta) -> impl Iterator<Item = &String> {
    // An object does not wait for itself.
    let others =
        meta.owner_references.iter().flatten().filter(|o| Some(&o.uid) != meta.uid.as_ref());
    others.filter(|owner| owner.block_owner_deletion == Some(true)).map(|owner| &owner.uid)
}

/// Whether a change matters to the garbage collector. Heartbeats and status updates do not.
pub(super) fn is_relevant_change(before: &ObjectMeta, after: &ObjectMeta) -> bool {
    before.uid != after.uid
        || before.owner_references != after.owner_references
        || before.finalizers != after.finalizers
        || before.deletion_timestamp != after.deletion_timestamp
}

/// The verdict on an object that is being deleted. `is_blocked` is called only if it matters.
pub(super) fn of_deleted(meta: &ObjectMeta, is_blocked: impl FnOnce() -> bool) -> Verdict {
    match (has(meta, ORPHAN), has(meta, FOREGROUND)) {
        (true, _) => Verdict::Orphan,
        (_, true) if is_blocked() => Verdict::Await,
        (_, true) => Verdict::Finish,
        (false, false) => Verdict::Leave,
    }
}

/// The verdict on an object with owners; `owners` are in the order of its references.
pub(super) fn of_owned(meta: &ObjectMeta, owners: &[Owner], dependents: &Dependents) -> Verdict {
    let references = meta.owner_references.as_deref().unwrap_or_default();
    let some = |state: Owner| owners.contains(&state);
    if references.is_empty() {
        return Verdict::Leave;
    }
    if some(Owner::Solid) {
        let dead = references.iter().zip(owners).filter(|(_, state)| **state != Owner::Solid);
        let dead: Vec<String> = dead.map(|(owner, _)| owner.uid.clone()).collect();
        return if dead.is_empty() { Verdict::Leave } else { Verdict::RemoveOwners(dead) };
    }
    if some(Owner::Waiting) && dependents.any {
        let holds = references.iter().any(|owner| owner.block_owner_deletion == Some(true));
        let unblock = dependents.waiting && holds;
        return Verdict::Delete { propagation: Propagation::Foreground, unblock };
    }
    let propagation = match (has(meta, ORPHAN), has(meta, FOREGROUND)) {
        (true, _) => Propagation::Orphan,
        (_, true) => Propagation::Foreground,
        _ => Propagation::Background,
    };
    Verdict::Delete { propagation, unblock: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn meta(deleting: bool, finalizers: &[&str], blocks: bool) -> ObjectMeta {
        let owner = |uid: &str| {
            json!({ "apiVersion": "v1", "kind": "O", "name": "o", "uid": uid,
                    "blockOwnerDeletion": blocks })
        };
        serde_json::from_value(json!({
            "name": "n", "uid": "me", "finalizers": finalizers,
            "deletionTimestamp": deleting.then_some("2026-01-01T00:00:00Z"),
            "ownerReferences": [owner("u1"), owner("u2")],
        }))
        .unwrap()
    }

    #[test]
    fn t_ctrl_44_c_163_an_object_stays_while_one_owner_is_solid() {
        use Owner::*;
        let none = Dependents::default();
        let some = Dependents { any: true, ..none };
        let ring = Dependents { any: true, waiting: true };
        let delete = |propagation| Verdict::Delete { propagation, unblock: false };
        let forget =
            |uids: &[&str]| Verdict::RemoveOwners(uids.iter().map(|u| (*u).into()).collect());
        let cases = [
            ("both solid", [Solid, Solid], none, Verdict::Leave),
            ("one gone", [Absent, Solid], none, forget(&["u1"])),
            ("one waits", [Solid, Waiting], some, forget(&["u2"])),
            ("both gone", [Absent, Absent], some, delete(Propagation::Background)),
            ("one gone, one waits", [Absent, Waiting], none, delete(Propagation::Background)),
            ("waits, with dependents", [Waiting, Waiting], some, delete(Propagation::Foreground)),
            (
                "a ring",
                [Waiting, Waiting],
                ring,
                Verdict::Delete { propagation: Propagation::Foreground, unblock: true },
            ),
        ];
        for (what, owners, dependents, expected) in cases {
            let verdict = of_owned(&meta(false, &[], true), &owners, &dependents);
            assert_eq!(verdict, expected, "{what}");
        }
        let unblocked = of_owned(&meta(false, &[], false), &[Waiting, Waiting], &ring);
        assert_eq!(unblocked, delete(Propagation::Foreground), "it blocks no owner");
    }

    #[test]
    fn t_ctrl_45_an_existing_finalizer_decides_the_propagation() {
        for (finalizer, expected) in [
            (ORPHAN, Propagation::Orphan),
            (FOREGROUND, Propagation::Foreground),
            ("other", Propagation::Background),
        ] {
            let verdict = of_owned(
                &meta(false, &[finalizer], true),
                &[Owner::Absent, Owner::Absent],
                &Dependents::default(),
            );
            assert_eq!(verdict, Verdict::Delete { propagation: expected, unblock: false });
        }
    }

    #[test]
    fn t_ctrl_46_t_ctrl_47_finalizers_decide_what_a_deleted_object_waits_for() {
        // Whether it is blocked; `None` if `is_blocked` must not be called, because it searches every kind.
        let cases = [
            ("background", vec![], None, Verdict::Leave),
            ("foreground, no blocking dependent", vec![FOREGROUND], Some(false), Verdict::Finish),
            ("foreground, blocked", vec![FOREGROUND], Some(true), Verdict::Await),
            ("orphan", vec![ORPHAN], None, Verdict::Orphan),
            ("held by another", vec!["other"], None, Verdict::Leave),
        ];
        for (what, finalizers, blocked, expected) in cases {
            let is_blocked = || blocked.unwrap_or_else(|| panic!("{what}: is_blocked was called"));
            assert_eq!(of_deleted(&meta(true, &finalizers, true), is_blocked), expected, "{what}");
        }
    }

    #[test]
    fn t_ctrl_46_an_object_blocks_the_owners_it_names_and_never_itself() {
        let mut held = meta(false, &[], true);
        assert_eq!(blocked_by(&held).collect::<Vec<_>>(), ["u1", "u2"]);
        held.uid = Some("u1".into());
        assert_eq!(blocked_by(&held).collect::<Vec<_>>(), ["u2"]);
        assert_eq!(blocked_by(&meta(false, &[], false)).count(), 0);
    }

    #[test]
    fn c_159_only_changes_of_owners_finalizers_and_deletion_are_relevant() {
        let before = meta(false, &["f"], true);
        let changed = |change: fn(&mut ObjectMeta)| {
            let mut after = before.clone();
            change(&mut after);
            is_relevant_change(&before, &after)
        };
        assert!(!changed(|_| ()));
        assert!(!changed(|meta| meta.resource_version = Some("9".into())));
        assert!(!changed(|meta| meta.generation = Some(9)));
        assert!(changed(|meta| meta.uid = Some("another".into())));
        assert!(changed(|meta| meta.finalizers = None));
        assert!(changed(|meta| meta.owner_references = None));
        assert!(changed(
            |meta| meta.deletion_timestamp = super::tests::meta(true, &[], true).deletion_timestamp
        ));
    }
}
