//! The types of `k8s-openapi` that the crates read or write: kinds, and parts of kinds.

use k8s_openapi::api::apps::v1 as apps;
use k8s_openapi::api::authentication::v1 as authentication;
use k8s_openapi::api::authorization::v1 as authorization;
use k8s_openapi::api::autoscaling::{v1 as autoscaling_v1, v2 as autoscaling};
use k8s_openapi::api::batch::v1 as batch;
use k8s_openapi::api::certificates::v1 as certificates;
use k8s_openapi::api::coordination::v1 as coordination;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1 as discovery;
use k8s_openapi::api::events::v1 as events;
use k8s_openapi::api::networking::v1 as networking;
use k8s_openapi::api::node::v1 as node;
use k8s_openapi::api::policy::v1 as policy;
use k8s_openapi::api::rbac::v1 as rbac;
use k8s_openapi::api::resource::v1 as resource;
use k8s_openapi::api::scheduling::v1 as scheduling;
use k8s_openapi::api::storage::v1 as storage;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1 as apiextensions;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;

/// apiVersion, kind, and a function that checks whether JSON can be decoded. For tests of all listed kinds.
pub type ListedKind = (&'static str, &'static str, fn(&str) -> serde_json::Result<()>);

macro_rules! kinds {
    ($($kind:ty),* $(,)?) => {
        crate::codec!($($kind),*);

        pub const LISTED: &[ListedKind] = &[$((
            <$kind as k8s_openapi::Resource>::API_VERSION,
            <$kind as k8s_openapi::Resource>::KIND,
            |text| <$kind as crate::Typed>::decode(text).map(drop),
        )),*];
    };
}

kinds!(
    apiextensions::CustomResourceDefinition,
    apps::ControllerRevision,
    apps::DaemonSet,
    apps::Deployment,
    apps::ReplicaSet,
    apps::StatefulSet,
    authentication::TokenReview,
    authorization::SubjectAccessReview,
    autoscaling::HorizontalPodAutoscaler,
    autoscaling_v1::Scale,
    batch::CronJob,
    batch::Job,
    certificates::CertificateSigningRequest,
    coordination::Lease,
    core::ConfigMap,
    core::Endpoints,
    core::Event,
    core::LimitRange,
    core::Namespace,
    core::Node,
    core::PersistentVolume,
    core::PersistentVolumeClaim,
    core::Pod,
    core::ReplicationController,
    core::ResourceQuota,
    core::Secret,
    core::Service,
    core::ServiceAccount,
    discovery::EndpointSlice,
    events::Event,
    networking::IPAddress,
    networking::NetworkPolicy,
    networking::ServiceCIDR,
    node::RuntimeClass,
    policy::PodDisruptionBudget,
    rbac::ClusterRole,
    rbac::ClusterRoleBinding,
    resource::ResourceClaim,
    scheduling::PriorityClass,
    storage::CSINode,
    storage::StorageClass,
    storage::VolumeAttributesClass,
);

// Parts of kinds that are compared, hashed or patched as JSON.
crate::codec!(core::PodStatus, core::PodTemplateSpec, meta::LabelSelector);
