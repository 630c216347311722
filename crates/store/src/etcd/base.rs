//! The difference between our revisions and etcd's: a number that a restore has written, or zero.
//!
//!     ours = base + etcd's
//!
//! A new etcd counts from 1, and cannot be made to start elsewhere. Clients of the backed-up cluster remember greater
//! revisions, so a restore stores a base to add (`restore.rs`).

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Base(pub(super) u64);

/// A revision that no key of etcd has. (0 means that the key does not exist.)
const NEVER: i64 = -1;

impl Base {
    /// The oldest revision that anything can have.
    pub(super) fn first(self) -> u64 {
        self.0 + 1
    }

    pub(super) fn ours(self, etcds: i64) -> u64 {
        self.0 + etcds as u64
    }

    /// For a revision from before the restore: one that no key has.
    pub(super) fn etcds(self, ours: u64) -> i64 {
        match ours.checked_sub(self.0).map(i64::try_from) {
            Some(Ok(etcds)) if etcds > 0 => etcds,
            Some(_) | None => NEVER,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_from_before_the_restore_matches_no_key() {
        let base = Base(1000);
        assert_eq!((base.ours(7), base.etcds(1007)), (1007, 7));
        for old in [0, 1, 7, 999, 1000] {
            assert_eq!(base.etcds(old), NEVER, "{old}");
        }
        assert_eq!(Base::default().etcds(0), NEVER);
        assert_eq!((Base::default().ours(7), Base::default().etcds(7)), (7, 7));
    }
}
