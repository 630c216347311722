//! Checks through the API whether all workloads are in the desired state.

use crate::cluster::Cluster;
use client::{Client, Object};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use std::collections::BTreeSet;

/// The first difference from the desired state; None: there is none.
pub(crate) async fn difference(cluster: &Cluster) -> Option<String> {
    // While the agent is down its pods may still be evicted, although everything looks complete.
    if let Some(host) = cluster.hosts.iter().find(|host| host.is_down()) {
        return Some(format!("no agent runs on {}", host.name));
    }
    if !cluster.log.with_checker(|checker| checker.is_quiet()) {
        return Some("a termination is under way".to_owned());
    }
    match find_difference(&cluster.operator.client).await {
        Ok(difference) => difference,
        Err(error) => Some(error.to_string()),
    }
}

async fn all<K: Object<DynamicType = ()>>(client: &Client) -> client::Result<Vec<K>> {
    client.list::<K>(&Default::default()).await
}

async fn find_difference(client: &Client) -> client::Result<Option<String>> {
    let deployments = all::<Deployment>(client).await?;
    let replica_sets = all::<ReplicaSet>(client).await?;
    let stateful_sets = all::<StatefulSet>(client).await?;
    let daemon_sets = all::<DaemonSet>(client).await?;
    let jobs = all::<Job>(client).await?;
    let pods = all::<Pod>(client).await?;
    let mut owners = BTreeSet::new();
    owners.extend(deployments.iter().map(|it| it.metadata.uid.clone()));
    owners.extend(replica_sets.iter().map(|it| it.metadata.uid.clone()));
    owners.extend(stateful_sets.iter().map(|it| it.metadata.uid.clone()));
    owners.extend(daemon_sets.iter().map(|it| it.metadata.uid.clone()));
    owners.extend(jobs.iter().map(|it| it.metadata.uid.clone()));
    let owned = |meta: &ObjectMeta| {
        let of = |owner: &OwnerReference| owners.contains(&Some(owner.uid.clone()));
        meta.owner_references.iter().flatten().any(of)
    };
    let orphan = pods.iter().map(|it| ("pod", &it.metadata));
    let orphan = orphan.chain(replica_sets.iter().map(|it| ("replica set", &it.metadata)));
    let mut orphan = orphan.filter(|(_, meta)| !owned(meta));
    if let Some((what, meta)) = orphan.next() {
        return Ok(Some(format!("the {what} {} has no owner", title(meta))));
    }
    let unfinished = deployments.iter().filter(|it| !deployment_is_done(it)).map(|it| &it.metadata);
    let sets = stateful_sets.iter().filter(|it| !stateful_set_is_done(it)).map(|it| &it.metadata);
    let daemons = daemon_sets.iter().filter(|it| !daemon_set_is_done(it)).map(|it| &it.metadata);
    let jobs = jobs.iter().filter(|it| !job_is_done(it)).map(|it| &it.metadata);
    if let Some(meta) = unfinished.chain(sets).chain(daemons).chain(jobs).next() {
        return Ok(Some(format!("{} is not in the desired state", title(meta))));
    }
    for namespace in all::<Namespace>(client).await? {
        if namespace.metadata.deletion_timestamp.is_some() {
            return Ok(Some(format!("{} is still terminating", title(&namespace.metadata))));
        }
    }
    services_difference(client, &pods).await
}

fn title(meta: &ObjectMeta) -> String {
    let name = meta.name.as_deref().unwrap_or_default();
    format!("{}/{name}", meta.namespace.as_deref().unwrap_or_default())
}

fn current(meta: &ObjectMeta, observed: Option<i64>) -> bool {
    meta.generation == observed && meta.deletion_timestamp.is_none()
}

fn deployment_is_done(it: &Deployment) -> bool {
    let wanted = it.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    it.status.as_ref().is_some_and(|status| {
        [status.replicas, status.updated_replicas, status.available_replicas]
            .iter()
            .all(|count| count.unwrap_or(0) == wanted)
            && current(&it.metadata, status.observed_generation)
    })
}

fn stateful_set_is_done(it: &StatefulSet) -> bool {
    let wanted = it.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    it.status.as_ref().is_some_and(|status| {
        status.replicas == wanted
            && status.updated_replicas.unwrap_or(0) == wanted
            && status.available_replicas.unwrap_or(0) == wanted
            && current(&it.metadata, status.observed_generation)
    })
}

fn daemon_set_is_done(it: &DaemonSet) -> bool {
    it.status.as_ref().is_some_and(|status| {
        let wanted = status.desired_number_scheduled;
        status.updated_number_scheduled == Some(wanted)
            && status.number_available == Some(wanted)
            && current(&it.metadata, status.observed_generation)
    })
}

fn job_is_done(it: &Job) -> bool {
    let conditions = it.status.iter().flat_map(|status| status.conditions.iter().flatten());
    it.metadata.deletion_timestamp.is_none()
        && conditions.into_iter().any(|condition| {
            matches!(condition.type_.as_str(), "Complete" | "Failed") && condition.status == "True"
        })
}

/// The endpoints of every Service are exactly the ready pods that it selects.
async fn services_difference(client: &Client, pods: &[Pod]) -> client::Result<Option<String>> {
    let slices = all::<EndpointSlice>(client).await?;
    for service in all::<Service>(client).await? {
        let selector = service.spec.as_ref().and_then(|spec| spec.selector.clone());
        let Some(selector) = selector.filter(|selector| !selector.is_empty()) else { continue };
        let ready_pods = pods.iter().filter(|pod| {
            let labels = pod.metadata.labels.clone().unwrap_or_default();
            pod.metadata.namespace == service.metadata.namespace
                && selector.iter().all(|(key, value)| labels.get(key) == Some(value))
                && is_ready(pod)
        });
        let ready_pods: BTreeSet<_> =
            ready_pods.filter_map(|pod| pod.metadata.name.clone()).collect();
        let of_service = slices.iter().filter(|slice| {
            let labels = slice.metadata.labels.as_ref();
            let name = labels.and_then(|labels| labels.get("kubernetes.io/service-name"));
            slice.metadata.namespace == service.metadata.namespace
                && name == service.metadata.name.as_ref()
        });
        let ready =
            of_service.flat_map(|slice| slice.endpoints.iter().flatten()).filter(|endpoint| {
                endpoint.conditions.as_ref().and_then(|conditions| conditions.ready) != Some(false)
            });
        let named: BTreeSet<_> =
            ready.filter_map(|endpoint| endpoint.target_ref.as_ref()?.name.clone()).collect();
        if named != ready_pods {
            let service = title(&service.metadata);
            return Ok(Some(format!(
                "{service} has the endpoints {named:?}, ready are {ready_pods:?}"
            )));
        }
    }
    Ok(None)
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
}
