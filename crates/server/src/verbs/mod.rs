//! What each verb does, one file per verb. Every function takes a [`crate::request::call::Call`].

pub(crate) mod create;
pub(crate) mod delete;
pub(crate) mod get;
pub(crate) mod list;
pub(crate) mod patch;
pub(crate) mod removal;
pub(crate) mod unread;
pub(crate) mod update;
pub(crate) mod watch;
pub(crate) mod write;
