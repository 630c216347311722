//! Claims and the volumes behind them: who gets which (`binding`), that nothing goes while it is in use
//! (`protection`), claims of one pod (`ephemeral`), claims that grow (`expansion`), and
//! volumes made of directories (`local`).
//!
//! Not here: mounting (`node`), and choosing a node by its volumes (`scheduler`).

mod binding;
mod ephemeral;
mod expansion;
mod local;
mod matching;
mod protection;

pub use local::LocalVolumes;

use crate::start::Cluster;
use client::Cache;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;

/// Claims and volumes by the attribute class that they have or want.
const BY_ATTRIBUTES: &str = "attributes";
/// Volumes that are free, and claims that have none, by their storage class.
const FREE: &str = "free";
/// Volumes by the claim that they are promised to, as `namespace/name`.
const BY_CLAIM: &str = "claim";

struct Storage {
    claims: Cache<PersistentVolumeClaim>,
    volumes: Cache<PersistentVolume>,
    classes: Cache<StorageClass>,
}

/// The cache that [`run`] wants; others read it too.
pub(crate) fn claims(client: &client::Client) -> Cache<PersistentVolumeClaim> {
    Cache::builder(client)
        .index(BY_ATTRIBUTES, attributes_of)
        .index(FREE, |claim| {
            matching::is_pending(claim)
                .then(|| matching::class_of_claim(claim).unwrap_or_default().to_owned())
                .into_iter()
                .collect()
        })
        .start()
}

pub(crate) async fn run(
    cluster: &Cluster,
    claims: Cache<PersistentVolumeClaim>,
    local_volumes: Option<&LocalVolumes>,
) {
    let storage = Storage {
        claims,
        volumes: Cache::builder(&cluster.client)
            .index(BY_ATTRIBUTES, |volume| attributes_class(volume).into_iter().collect())
            .index(FREE, |volume| {
                let class = matching::class_of_volume(volume).to_owned();
                matching::is_free(volume).then_some(class).into_iter().collect()
            })
            .index(BY_CLAIM, |volume| {
                matching::promised_to(volume).map(|key| key.to_string()).into_iter().collect()
            })
            .start(),
        classes: Cache::start(&cluster.client),
    };
    let local = async {
        if let Some(here) = local_volumes {
            local::run(cluster, &storage, here).await;
        }
    };
    tokio::join!(
        protection::run(cluster, &storage),
        binding::run(cluster, &storage),
        ephemeral::run(cluster, &storage),
        expansion::run(cluster, &storage, local_volumes.is_some()),
        local,
    );
}

fn attributes_class(volume: &PersistentVolume) -> Option<String> {
    volume.spec.as_ref()?.volume_attributes_class_name.clone()
}

fn attributes_of(claim: &PersistentVolumeClaim) -> Vec<String> {
    let status = claim.status.as_ref();
    let wanted = claim.spec.as_ref().and_then(|s| s.volume_attributes_class_name.clone());
    let has = status.and_then(|s| s.current_volume_attributes_class_name.clone());
    let target = status.and_then(|status| {
        status.modify_volume_status.as_ref()?.target_volume_attributes_class_name.clone()
    });
    wanted.into_iter().chain(has).chain(target).collect()
}
