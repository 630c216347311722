//! Keeps named bytes durably, gives every change a revision, and tells watchers.
//!
//! Start at [`Store`]. It has never heard of Kubernetes: names, bytes and what to index come from
//! the caller. How data flows is drawn in this crate's README.

mod error;
mod object;
mod store;
mod write;

mod bell;
mod part;
mod state;
mod watcher;

mod batch;
mod embedded;
mod etcd;
mod memory;

pub use error::{Compacted, Error};
pub use memory::Memory;
pub use object::{Draft, Envelope, Event, EventKind, Index, Object};
pub use store::{Backend, EtcdOptions, Options, Store};
pub use watcher::Watcher;
pub use write::{Change, Expect, Write, WriteError};
