//! The objects that every cluster starts with. Default roles are in `access`.
//!
//! The functions return complete objects except for uid, creationTimestamp and resourceVersion, which the caller adds.

mod cluster;
mod flow;

pub(crate) use cluster::{
    authentication_config_map, dns_service, endpoint_slices, endpoints, kubernetes_service,
    namespaces, number_of_slice, priority_classes, service_cidr,
};
pub(crate) use flow::{flow_schemas, priority_levels};

#[cfg(test)]
mod tests;
