#![doc = include_str!("../README.md")]

mod error;
mod object;
mod store;
mod write;

mod partition;
mod state;
mod wakeups;
mod watcher;

mod batch;
mod embedded;
mod etcd;
mod memory;
mod restore;

pub use error::{Compacted, Error};
pub use memory::Memory;
pub use object::{Draft, Envelope, Event, EventKind, Index, Object};
pub use partition::SharedList;
pub use restore::{Entry, restore};
pub use store::{Backend, EtcdOptions, Options, Snapshot, Store};
pub use watcher::Watcher;
pub use write::{Change, Expect, Write, WriteError};
