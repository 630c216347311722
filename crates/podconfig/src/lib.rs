#![doc = include_str!("../README.md")]

mod container_spec;
mod sandbox;

mod annotations;
mod containers;
mod facts;
mod identity;
mod objects;
mod users;

mod dns;
mod files;
mod hostname;
mod hosts;

mod downward;
mod env;
mod env_file;
mod expansion;
mod service_env;

mod mounts;
mod resources;
mod security;
mod volumes;

pub mod beneath;
pub mod mount_table;
pub mod subpath;

pub use annotations::ContainerAnnotations;
pub use container_spec::{
    ConfigError, Inputs, container, container_hash, container_resources, pod_cgroup, pod_resources,
};
pub use containers::{PodContainer, containers};
pub use dns::{MISSING_CLUSTER_DNS, Warning, dns_warnings};
pub use downward::{amount, field, resource};
pub use expansion::expand;
pub use facts::NodeFacts;
pub use files::{make_directory, make_pod_directories, message_files, pod_files, pod_uids};
pub use identity::{name, namespace, uid};
pub use objects::Objects;
pub use sandbox::{dotted_sysctl, sandbox};
pub use users::UserRanges;
pub use volumes::{MountedVolume, MountedVolumes};
