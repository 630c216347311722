//! Read, write and watch the API, as every part that is not the server does. See README.md.

mod error;
mod key;
mod object;

mod client;
mod dynamic;
mod read;
mod write;

mod cache;
mod decoded;

mod controller;
mod queue;

mod leadership;
mod recorder;
mod usage;

pub use cache::{Cache, CacheBuilder, Changes};
pub use client::{Client, Renewable, Trust, trust_of};
pub use controller::{Next, run_controller};
pub use dynamic::{Discovery, Outline, ServedKind};
pub use error::{Error, Result};
pub use key::ObjectKey;
pub use kube::core::ApiResource;
pub use leadership::{LEASE_DURATION, Leadership, RENEW_DEADLINE, RETRY_PERIOD, lead};
pub use object::Object;
pub use queue::{Counts, Queue, RETRY_FIRST, RETRY_MAX};
pub use read::Selection;
pub use recorder::{Happening, Recorder, Severity, part, reference};
pub use usage::{ContainerMetrics, PodMetrics};
pub use write::{CONCURRENT_MAX, DeleteOptions, Propagation};
