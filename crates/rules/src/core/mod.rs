//! Rules of the core (`v1`) kinds.

use super::Rules;

pub(crate) mod pod_subresources;
pub(crate) mod pod_template;
pub(crate) mod service;
pub(crate) mod service_ip;
pub(crate) mod service_warnings;

mod configuration;
mod endpoints;
mod event;
mod limits;
mod namespace;
mod node;
mod persistent_volume;
mod pod;
mod replication_controller;
mod service_account;
mod service_update;

mod checks;
mod container;
mod environment;
mod image;
mod pod_spec;
mod pod_update;
mod probes;
mod resources;
mod scheduling;
mod security;
mod volume_sources;
mod volumes;

#[cfg(test)]
mod trial;

pub(crate) fn rules(kind: &str) -> Rules {
    match kind {
        "Binding" => service_account::BINDING,
        "ConfigMap" => configuration::CONFIG_MAP,
        "Endpoints" => endpoints::RULES,
        "Event" => event::RULES,
        "LimitRange" => limits::RANGE,
        "Namespace" => namespace::RULES,
        "Node" => node::RULES,
        "PersistentVolume" => persistent_volume::VOLUME,
        "PersistentVolumeClaim" => persistent_volume::CLAIM,
        "Pod" => pod::RULES,
        "PodTemplate" => replication_controller::POD_TEMPLATE,
        "ReplicationController" => replication_controller::RULES,
        "ResourceQuota" => limits::QUOTA,
        "Secret" => configuration::SECRET,
        "Service" => service::RULES,
        "ServiceAccount" => service_account::RULES,
        _ => Rules::NONE,
    }
}
