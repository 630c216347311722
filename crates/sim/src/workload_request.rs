//! One request of a user about a workload: create, change or delete it.

use crate::cluster::Operator;
use client::{Client, DeleteOptions, Object, ObjectKey, Propagation};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, Service};
use serde_json::Value;

#[derive(Clone)]
pub(crate) struct WorkloadRequest {
    pub(crate) kind: Kind,
    pub(crate) key: ObjectKey,
    pub(crate) verb: Verb,
}

#[derive(Clone)]
pub(crate) enum Verb {
    Create(Value),
    Patch(Value),
    Delete(Option<Propagation>),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    Namespace,
    Deployment,
    StatefulSet,
    DaemonSet,
    Job,
    Service,
}

impl WorkloadRequest {
    /// Repeats the request until the server responds.
    pub(crate) fn send(self, operator: &Operator) {
        let operator = operator.clone();
        let verb = match &self.verb {
            Verb::Create(_) => "creates",
            Verb::Patch(_) => "changes",
            Verb::Delete(_) => "deletes",
        };
        operator.log.note(format!("a user {verb} {:?} {}", self.kind, self.key));
        tokio::spawn(async move {
            let request = &self;
            let ask = |client: Client| async move {
                match request.kind {
                    Kind::Namespace => ask::<Namespace>(&client, request).await,
                    Kind::Deployment => ask::<Deployment>(&client, request).await,
                    Kind::StatefulSet => ask::<StatefulSet>(&client, request).await,
                    Kind::DaemonSet => ask::<DaemonSet>(&client, request).await,
                    Kind::Job => ask::<Job>(&client, request).await,
                    Kind::Service => ask::<Service>(&client, request).await,
                }
            };
            operator.retry("a request", ask).await;
        });
    }
}

async fn ask<K: Object<DynamicType = ()>>(
    client: &Client,
    request: &WorkloadRequest,
) -> client::Result<()> {
    match &request.verb {
        Verb::Create(object) => {
            // Planned objects can be decoded.
            let Ok(object) = typed::from_value::<K>(object.clone()) else { return Ok(()) };
            client.create(&object).await.map(drop)
        }
        Verb::Patch(patch) => client.patch_merge::<K>(&request.key, patch).await.map(drop),
        Verb::Delete(how) => {
            let options = DeleteOptions { propagation: *how, ..DeleteOptions::default() };
            client.delete::<K>(&request.key, &options).await.map(drop)
        }
    }
}
