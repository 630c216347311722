//! What becomes of an object, given how its owners and dependents are. Pure.

use super::graph::Dependent;
use client::Propagation;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

pub(super) const FOREGROUND: &str = "foregroundDeletion";
pub(super) const ORPHAN: &str = "orphan";

/// How an owner is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// There, and to stay as far as dependents are concerned.
    Solid,
    /// Not there, or another object has its name now.
    Absent,
    /// Being deleted, after its dependents.
    Waiting,
}

/// What matters about those that an object owns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Dependents {
    pub(super) any: bool,
    /// Some of them must be gone before the owner may go.
    pub(super) blocking: bool,
    /// Some of them wait for their own dependents.
    pub(super) waiting: bool,
}

#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    Leave,
    /// Dependents hold it: they are to be looked at.
    Await,
    /// No dependent holds it any more.
    Finish,
    /// Its dependents are to be set free, then it may go.
    Orphan,
    /// It stays, but these owners are dead.
    Forget(Vec<String>),
    Delete {
        propagation: Propagation,
        /// It is part of a ring of objects that wait for each other: it must stop holding its owners.
        unblock: bool,
    },
}

impl Dependents {
    pub(super) fn of(owner: &ObjectMeta, all: &[Dependent]) -> Dependents {
        let uid = owner.uid.as_deref().unwrap_or_default();
        // Nobody waits for itself.
        let others = || all.iter().filter(|one| one.object.metadata.uid != owner.uid);
        let blocks = |dependent: &Dependent| {
            let mut owners = dependent.object.metadata.owner_references.iter().flatten();
            owners.any(|owner| owner.uid == uid && owner.block_owner_deletion == Some(true))
        };
        Dependents {
            any: others().next().is_some(),
            blocking: others().any(blocks),
            waiting: others().any(|dependent| is_waiting(&dependent.object.metadata)),
        }
    }
}

/// Being deleted, and not before its dependents are.
pub(super) fn is_waiting(meta: &ObjectMeta) -> bool {
    meta.deletion_timestamp.is_some() && has(meta, FOREGROUND)
}

fn has(meta: &ObjectMeta, finalizer: &str) -> bool {
    meta.finalizers.iter().flatten().any(|there| there == finalizer)
}

/// Of an object that is being deleted.
pub(super) fn of_deleted(meta: &ObjectMeta, dependents: &Dependents) -> Verdict {
    match (has(meta, ORPHAN), has(meta, FOREGROUND)) {
        (true, _) => Verdict::Orphan,
        (_, true) if dependents.blocking => Verdict::Await,
        (_, true) => Verdict::Finish,
        (false, false) => Verdict::Leave,
    }
}

/// Of an object that has owners; `owners` are in the order of its references.
pub(super) fn of_owned(meta: &ObjectMeta, owners: &[Owner], dependents: &Dependents) -> Verdict {
    let references = meta.owner_references.as_deref().unwrap_or_default();
    let some = |state: Owner| owners.contains(&state);
    if references.is_empty() {
        return Verdict::Leave;
    }
    if some(Owner::Solid) {
        let dead = references.iter().zip(owners).filter(|(_, state)| **state != Owner::Solid);
        let dead: Vec<String> = dead.map(|(owner, _)| owner.uid.clone()).collect();
        return if dead.is_empty() { Verdict::Leave } else { Verdict::Forget(dead) };
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
    fn t_ctrl_44_c_163_an_object_lives_as_long_as_one_owner_is_solid() {
        use Owner::*;
        let none = Dependents::default();
        let some = Dependents { any: true, ..none };
        let ring = Dependents { any: true, waiting: true, blocking: true };
        let delete = |propagation| Verdict::Delete { propagation, unblock: false };
        let forget = |uids: &[&str]| Verdict::Forget(uids.iter().map(|u| (*u).into()).collect());
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
        assert_eq!(unblocked, delete(Propagation::Foreground), "it holds nobody already");
    }

    #[test]
    fn t_ctrl_45_a_finalizer_already_there_says_how_to_delete() {
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
    fn t_ctrl_46_t_ctrl_47_a_deleted_object_waits_as_it_was_asked_to() {
        let (none, some) =
            (Dependents::default(), Dependents { any: true, ..Dependents::default() });
        let blocked = Dependents { blocking: true, ..some };
        let cases = [
            ("background", vec![], blocked, Verdict::Leave),
            ("foreground, alone", vec![FOREGROUND], none, Verdict::Finish),
            ("foreground, nobody blocks", vec![FOREGROUND], some, Verdict::Finish),
            ("foreground, blocked", vec![FOREGROUND], blocked, Verdict::Await),
            ("orphan", vec![ORPHAN], blocked, Verdict::Orphan),
            ("held by another", vec!["other"], blocked, Verdict::Leave),
        ];
        for (what, finalizers, dependents, expected) in cases {
            assert_eq!(of_deleted(&meta(true, &finalizers, true), &dependents), expected, "{what}");
        }
    }
}
