//! The expected number of pods, from the scales of their controllers (C-140).

use crate::served_kinds::ServedKinds;
use client::{Client, ObjectKey, ServedKind};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Pod, ReplicationController};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// When to retry if a scale is unknown, because owners of any kind are not watched.
pub(super) const RETRY_DELAY: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("found no controllers for pod {0:?}")]
    NoController(String),
    #[error("{0} does not implement the scale subresource")]
    NoScale(String),
    #[error(transparent)]
    Api(#[from] client::Error),
}

pub(super) struct Scales {
    pub(super) total: usize,
    pub(super) unmanaged: bool,
}

/// The sum over all owners of these pods, each counted once. Owners are read from the server: budgets are reconciled
/// only when their pods change, and there are few owners.
pub(super) async fn of_owners(
    client: &Client,
    kinds: &ServedKinds,
    pods: &[Arc<Pod>],
) -> Result<Scales, Error> {
    let mut seen: BTreeSet<String> = BTreeSet::new();
    let mut scales: BTreeMap<String, i32> = BTreeMap::new();
    let mut unmanaged = false;
    for pod in pods {
        let Some(owner) = controller(&pod.metadata) else {
            unmanaged = true;
            continue;
        };
        if !seen.insert(owner.uid.clone()) {
            continue;
        }
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let key = ObjectKey::new(namespace, &owner.name);
        let Some((uid, scale)) = of_owner(client, kinds, &key, owner).await? else {
            return Err(Error::NoController(pod.metadata.name.clone().unwrap_or_default()));
        };
        scales.insert(uid, scale);
    }
    let total = scales.values().map(|scale| usize::try_from(*scale).unwrap_or_default()).sum();
    Ok(Scales { total, unmanaged })
}

fn controller(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// The UID of the scaled owner, and its number of replicas.
async fn of_owner(
    client: &Client,
    kinds: &ServedKinds,
    key: &ObjectKey,
    owner: &OwnerReference,
) -> Result<Option<(String, i32)>, Error> {
    let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
    let scale = |replicas: Option<i32>| Some((owner.uid.clone(), replicas.unwrap_or(1)));
    let is_it = |meta: &ObjectMeta| meta.uid.as_ref() == Some(&owner.uid);
    match (group, owner.kind.as_str()) {
        ("apps", "ReplicaSet") => {
            let Some(set) =
                client.find::<ReplicaSet>(key).await?.filter(|set| is_it(&set.metadata))
            else {
                return Ok(None);
            };
            match controller(&set.metadata).filter(|above| above.kind == "Deployment") {
                Some(above) => of_deployment(client, key.namespace(), above).await,
                None => Ok(scale(set.spec.and_then(|spec| spec.replicas))),
            }
        }
        ("apps", "StatefulSet") => {
            let set = client.find::<StatefulSet>(key).await?.filter(|set| is_it(&set.metadata));
            Ok(set.and_then(|set| scale(set.spec.and_then(|spec| spec.replicas))))
        }
        ("", "ReplicationController") => {
            let all = client.find::<ReplicationController>(key).await?;
            let all = all.filter(|all| is_it(&all.metadata));
            Ok(all.and_then(|all| scale(all.spec.and_then(|spec| spec.replicas))))
        }
        _ => of_any(client, kinds, key, owner).await,
    }
}

async fn of_deployment(
    client: &Client,
    namespace: &str,
    owner: &OwnerReference,
) -> Result<Option<(String, i32)>, Error> {
    let found = client.find::<Deployment>(&ObjectKey::new(namespace, &owner.name)).await?;
    let found = found.filter(|found| found.metadata.uid.as_ref() == Some(&owner.uid));
    let replicas = |found: Deployment| found.spec.and_then(|spec| spec.replicas).unwrap_or(1);
    Ok(found.map(|found| (owner.uid.clone(), replicas(found))))
}

/// Reads the scale subresource, which custom resources may have.
async fn of_any(
    client: &Client,
    kinds: &ServedKinds,
    key: &ObjectKey,
    owner: &OwnerReference,
) -> Result<Option<(String, i32)>, Error> {
    let is_its = |kind: &ServedKind| {
        kind.resource.api_version == owner.api_version && kind.resource.kind == owner.kind
    };
    let kinds = kinds.get(client, |kinds| kinds.iter().any(is_its)).await?;
    let Some(kind) = kinds.iter().find(|kind| is_its(kind)) else { return Ok(None) };
    if !kind.subresources.iter().any(|name| name == "scale") {
        let group = &kind.resource.group;
        let name = if group.is_empty() { String::new() } else { format!(".{group}") };
        return Err(Error::NoScale(format!("{}{name}", kind.resource.plural)));
    }
    let scale = client.scale_of(&kind.resource, key).await?;
    Ok(scale.filter(|(uid, _)| *uid == owner.uid))
}
