//! Objects as rows of a table, the way `kubectl get` shows them.
//!
//! A kind's table is a list of columns, each with the function that fills its cell, so a cell is always
//! under the right heading. The definitions of custom resources have their own columns; kinds without a
//! table show when they were created.
//!
//! Not here: the Table object around the rows, and request options for it.

mod access;
mod autoscaling;
mod column;
mod core;
mod custom;
mod devices;
mod drain;
pub mod duration;
mod events;
mod jsonpath;
mod network;
mod nodes;
mod pods;
mod policy;
mod storage;
mod subject;
mod terminations;
mod usage;
mod workloads;

use crate::kind::Kind;
use column::{NAME, Printed, date, integer};
use jiff::Timestamp;
use serde_json::Value;
use subject::Subject;

pub use column::Column;

/// The tables of built-in kinds by group and kind.
const TABLES: &[(&str, &str, &[Printed])] = &[
    ("", "ComponentStatus", core::COMPONENT_STATUS),
    ("", "ConfigMap", core::CONFIG_MAP),
    ("", "Endpoints", network::ENDPOINTS),
    ("", "Event", events::EVENT),
    ("", "Namespace", core::NAMESPACE),
    ("", "Node", nodes::NODE),
    ("", "PersistentVolume", storage::PERSISTENT_VOLUME),
    ("", "PersistentVolumeClaim", storage::PERSISTENT_VOLUME_CLAIM),
    ("", "Pod", pods::POD),
    ("", "PodTemplate", workloads::POD_TEMPLATE),
    ("", "ReplicationController", workloads::REPLICATION_CONTROLLER),
    ("", "ResourceQuota", policy::RESOURCE_QUOTA),
    ("", "Secret", core::SECRET),
    ("", "Service", network::SERVICE),
    ("", "ServiceAccount", column::NAME_AND_AGE),
    ("admissionregistration.k8s.io", "MutatingAdmissionPolicy", access::MUTATING_POLICY),
    ("admissionregistration.k8s.io", "MutatingAdmissionPolicyBinding", access::POLICY_BINDING),
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration", access::WEBHOOKS),
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy", access::VALIDATING_POLICY),
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding", access::POLICY_BINDING),
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration", access::WEBHOOKS),
    ("apiregistration.k8s.io", "APIService", core::API_SERVICE),
    ("apps", "ControllerRevision", workloads::CONTROLLER_REVISION),
    ("apps", "DaemonSet", workloads::DAEMON_SET),
    ("apps", "Deployment", workloads::DEPLOYMENT),
    ("apps", "ReplicaSet", workloads::REPLICA_SET),
    ("apps", "StatefulSet", workloads::STATEFUL_SET),
    ("autoscaling", "HorizontalPodAutoscaler", autoscaling::HORIZONTAL_POD_AUTOSCALER),
    ("batch", "CronJob", workloads::CRON_JOB),
    ("batch", "Job", workloads::JOB),
    ("certificates.k8s.io", "CertificateSigningRequest", access::SIGNING_REQUEST),
    ("coordination.k8s.io", "Lease", core::LEASE),
    ("discovery.k8s.io", "EndpointSlice", network::ENDPOINT_SLICE),
    ("events.k8s.io", "Event", events::EVENT),
    ("flowcontrol.apiserver.k8s.io", "FlowSchema", policy::FLOW_SCHEMA),
    ("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration", policy::PRIORITY_LEVEL),
    ("landfall.dev", "DrainParticipant", drain::PARTICIPANT),
    ("landfall.dev", "Termination", terminations::TERMINATION),
    ("metrics.k8s.io", "NodeMetrics", usage::NODE),
    ("metrics.k8s.io", "PodMetrics", usage::POD),
    ("networking.k8s.io", "IPAddress", network::IP_ADDRESS),
    ("networking.k8s.io", "Ingress", network::INGRESS),
    ("networking.k8s.io", "IngressClass", network::INGRESS_CLASS),
    ("networking.k8s.io", "NetworkPolicy", network::NETWORK_POLICY),
    ("networking.k8s.io", "ServiceCIDR", network::SERVICE_CIDR),
    ("node.k8s.io", "RuntimeClass", core::RUNTIME_CLASS),
    ("policy", "PodDisruptionBudget", policy::POD_DISRUPTION_BUDGET),
    ("rbac.authorization.k8s.io", "ClusterRoleBinding", access::ROLE_BINDING),
    ("rbac.authorization.k8s.io", "RoleBinding", access::ROLE_BINDING),
    ("resource.k8s.io", "DeviceClass", column::NAME_AND_AGE),
    ("resource.k8s.io", "ResourceClaim", devices::RESOURCE_CLAIM),
    ("resource.k8s.io", "ResourceClaimTemplate", column::NAME_AND_AGE),
    ("resource.k8s.io", "ResourceSlice", devices::RESOURCE_SLICE),
    ("scheduling.k8s.io", "PriorityClass", policy::PRIORITY_CLASS),
    ("storage.k8s.io", "CSIDriver", storage::CSI_DRIVER),
    ("storage.k8s.io", "CSINode", storage::CSI_NODE),
    ("storage.k8s.io", "StorageClass", storage::STORAGE_CLASS),
    ("storage.k8s.io", "VolumeAttachment", storage::VOLUME_ATTACHMENT),
    ("storage.k8s.io", "VolumeAttributesClass", storage::VOLUME_ATTRIBUTES_CLASS),
];

/// For kinds without a printer in upstream: roles, limit ranges, definitions and others.
const DEFAULT: &[Printed] = &[
    NAME,
    date("Created At", "When the object was created.", |o| {
        o.text("metadata.creationTimestamp").into()
    }),
];

/// The table of every `scale` subresource.
const SCALE: &[Printed] = &[
    NAME,
    integer("Desired", "How many pods are wanted.", |o| o.int("spec.replicas").into()),
    integer("Available", "How many pods there are.", |o| o.int("status.replicas").into()),
    column::AGE,
];

/// The headings of a kind's table.
pub fn columns(kind: &Kind) -> Vec<Column> {
    match &kind.custom {
        Some(custom) => custom::columns(&custom.columns),
        None => of(&kind.group, &kind.kind).iter().map(Printed::column).collect(),
    }
}

/// The cells of one object's row, in the order of [`columns`]. Ages are relative to `now`.
pub fn cells(kind: &Kind, object: &Value, now: Timestamp) -> Vec<Value> {
    match &kind.custom {
        Some(custom) => custom::cells(&custom.columns, &Subject { object, now }),
        None => print(of(&kind.group, &kind.kind), object, now),
    }
}

/// The conditions of a row: whether a pod has completed.
pub fn row_conditions(kind: &Kind, object: &Value) -> Vec<Value> {
    match (kind.group.as_str(), kind.kind.as_str()) {
        ("", "Pod") => pods::row_conditions(object),
        _ => Vec::new(),
    }
}

/// The headings of a `scale` subresource's table.
pub fn scale_columns() -> Vec<Column> {
    SCALE.iter().map(Printed::column).collect()
}

pub fn scale_cells(scale: &Value, now: Timestamp) -> Vec<Value> {
    print(SCALE, scale, now)
}

fn of(group: &str, kind: &str) -> &'static [Printed] {
    TABLES
        .iter()
        .find(|(g, k, _)| *g == group && *k == kind)
        .map_or(DEFAULT, |(_, _, printed)| printed)
}

fn print(table: &[Printed], object: &Value, now: Timestamp) -> Vec<Value> {
    let subject = Subject { object, now };
    table.iter().map(|printed| (printed.cell)(&subject)).collect()
}

#[cfg(test)]
mod tests;
