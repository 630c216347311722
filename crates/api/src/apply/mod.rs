//! Who owns which field, and server-side apply.
//!
//!     create, update, patch ──▶ track_update ──┐
//!                                              ├──▶ metadata.managedFields
//!     apply ──▶ check ▸ merge ▸ prune ▸ conflicts ┘
//!
//! A [`FieldSet`] is a set of field paths. `walk` finds the fields of an object and the differences of
//! two objects, `managers` keeps the sets of all managers, `track` moves ownership on ordinary
//! writes, `server_side` merges an applied document.
//!
//! When to call them: both functions get the object **before** admission changes it, as in upstream.
//! Fields that defaulting and admission add have no owner, so there is no second step after them. As the
//! last step before storing, [`settle`] restores the old times if nothing else changed.
//!
//! Not here: checking that the result is a valid object, and checking manager names.

mod check;
mod conflict;
mod element;
mod field_set;
mod last_applied;
mod managers;
mod merge;
mod name;
mod prune;
mod reconcile;
mod server_side;
mod track;
mod walk;

#[cfg(test)]
mod golden_tests;
#[cfg(test)]
mod tests;

pub use conflict::{ApplyError, Conflict};
pub use field_set::FieldSet;
pub use managers::{Entry, Managers, Operation};
pub use name::{check_manager_name, manager_name};
pub use server_side::apply;
pub use track::{settle, track_update};
pub use walk::fields_of;

/// Who writes, and through which endpoint.
#[derive(Debug, Clone, Copy)]
pub struct Manager<'a> {
    pub name: &'a str,
    /// The version of the URL, e.g. `apps/v1`.
    pub api_version: &'a str,
    /// `status`, `scale`, or "" for the object itself. A write through `scale` is tracked on the
    /// object that is scaled, as a change of its `spec.replicas`.
    pub subresource: &'a str,
    /// RFC 3339 in whole seconds.
    pub now: &'a str,
}
