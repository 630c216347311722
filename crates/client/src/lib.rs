#![doc = include_str!("../README.md")]

mod error;
mod key;
mod object;

mod client;
mod connection;
mod dynamic;
mod read;
mod write;

mod cache;
mod decode_cache;

mod controller;
mod queue;

mod leadership;
mod recorder;
mod usage;

pub use cache::{Cache, CacheBuilder, Changes, Versions, metrics};
pub use client::{Client, KubeconfigCertificates, Renewable, read_certificates};
pub use controller::{Next, run_controller};
pub use dynamic::{Discovery, PartialObject, ServedKind};
pub use error::{Error, Result};
pub use key::ObjectKey;
pub use kube::core::ApiResource;
pub use leadership::{LEASE_DURATION, Leadership, RENEW_DEADLINE, RETRY_PERIOD, lead};
pub use object::Object;
pub use queue::{Queue, QueueCounts, RETRY_FIRST, RETRY_MAX};
pub use read::Selection;
pub use recorder::{RecordedEvent, Recorder, Severity, field_reference, reference};
pub use usage::{ContainerMetrics, PodMetrics};
pub use write::{CONCURRENT_MAX, DeleteOptions, Propagation};
