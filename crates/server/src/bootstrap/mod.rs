//! The objects every cluster starts with, as data.
//!
//! Functions here return finished objects without uid, creationTimestamp and resourceVersion:
//! whoever stores them adds these, and decides what an existing object may keep.

mod access;
mod cluster;
mod controller_roles;
mod flow;
mod roles;

pub use access::{cluster_role_bindings, cluster_roles, role_bindings, roles};
pub use cluster::{
    authentication_config_map, endpoint_slices, endpoints, kubernetes_service, namespaces,
    number_of_slice, priority_classes, service_cidr,
};
pub use flow::{flow_schemas, priority_levels};

#[cfg(test)]
mod tests;
