//! ReplicaSet and ReplicationController, and where they differ (C-26).

use crate::workload::{Workload, selector};
use api::selector::LabelSelector;
use client::Client;
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetStatus};
use k8s_openapi::api::core::v1::{
    PodTemplateSpec, ReplicationController, ReplicationControllerCondition,
    ReplicationControllerStatus,
};

pub(crate) trait Replicated: Workload {
    const COMPONENT: &'static str;
    /// Whether its status has the number of terminating pods (T-CTRL-3).
    const TELLS_TERMINATING: bool;

    fn replicas(&self) -> i32;
    fn min_ready_seconds(&self) -> i32;
    fn selector(&self) -> LabelSelector;
    fn template(&self) -> Option<&PodTemplateSpec>;
    /// The fields of both statuses have the same names and meaning.
    fn status(&self) -> ReplicaSetStatus;
    fn write_status(
        &self,
        client: &Client,
        status: ReplicaSetStatus,
    ) -> impl Future<Output = client::Result<()>> + Send;
}

impl Replicated for ReplicaSet {
    const COMPONENT: &'static str = "replicaset-controller";
    const TELLS_TERMINATING: bool = true;

    fn replicas(&self) -> i32 {
        self.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
    }

    fn min_ready_seconds(&self) -> i32 {
        self.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0)
    }

    fn selector(&self) -> LabelSelector {
        self.spec.as_ref().map(|spec| selector(&spec.selector)).unwrap_or_default()
    }

    fn template(&self) -> Option<&PodTemplateSpec> {
        self.spec.as_ref()?.template.as_ref()
    }

    fn status(&self) -> ReplicaSetStatus {
        self.status.clone().unwrap_or_default()
    }

    async fn write_status(&self, client: &Client, status: ReplicaSetStatus) -> client::Result<()> {
        client.update_status(self, status).await
    }
}

impl Replicated for ReplicationController {
    const COMPONENT: &'static str = "replication-controller";
    const TELLS_TERMINATING: bool = false;

    fn replicas(&self) -> i32 {
        self.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
    }

    fn min_ready_seconds(&self) -> i32 {
        self.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0)
    }

    fn selector(&self) -> LabelSelector {
        let labels = self.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        LabelSelector::from_labels(&serde_json::json!(labels))
    }

    fn template(&self) -> Option<&PodTemplateSpec> {
        self.spec.as_ref()?.template.as_ref()
    }

    fn status(&self) -> ReplicaSetStatus {
        let status = self.status.clone().unwrap_or_default();
        let conditions = status.conditions.map(|conditions| {
            let one = |condition: ReplicationControllerCondition| ReplicaSetCondition {
                last_transition_time: condition.last_transition_time,
                message: condition.message,
                reason: condition.reason,
                status: condition.status,
                type_: condition.type_,
            };
            conditions.into_iter().map(one).collect()
        });
        ReplicaSetStatus {
            available_replicas: status.available_replicas,
            conditions,
            fully_labeled_replicas: status.fully_labeled_replicas,
            observed_generation: status.observed_generation,
            ready_replicas: status.ready_replicas,
            replicas: status.replicas,
            terminating_replicas: None,
        }
    }

    async fn write_status(&self, client: &Client, status: ReplicaSetStatus) -> client::Result<()> {
        let conditions = status.conditions.map(|conditions| {
            let one = |condition: ReplicaSetCondition| ReplicationControllerCondition {
                last_transition_time: condition.last_transition_time,
                message: condition.message,
                reason: condition.reason,
                status: condition.status,
                type_: condition.type_,
            };
            conditions.into_iter().map(one).collect()
        });
        let status = ReplicationControllerStatus {
            available_replicas: status.available_replicas,
            conditions,
            fully_labeled_replicas: status.fully_labeled_replicas,
            observed_generation: status.observed_generation,
            ready_replicas: status.ready_replicas,
            replicas: status.replicas,
        };
        client.update_status(self, status).await
    }
}
