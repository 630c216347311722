//! Claims and volumes: binding them (`binding`), keeping them while they are used (`protection`), claims of a single
//! pod (`ephemeral`), expanding claims (`expansion`), and provisioning directories as volumes (`local`).
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

/// Claims and volumes by the VolumeAttributesClass that they have or request.
const BY_ATTRIBUTES: &str = "attributes";
/// Free volumes, and claims without a volume, by their storage class.
const FREE: &str = "free";
/// Volumes by the claim in their `claimRef`, as `namespace/name`.
const BY_CLAIM: &str = "claim";

struct Storage {
    claims: Cache<PersistentVolumeClaim>,
    volumes: Cache<PersistentVolume>,
    classes: Cache<StorageClass>,
}

/// The cache that [`run`] needs; other controllers share it.
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
                matching::claim_key(volume).map(|key| key.to_string()).into_iter().collect()
            })
            .start(),
        classes: Cache::start(&cluster.client),
    };
    let local = async {
        if let Some(here) = local_volumes {
            local::run(&cluster.with_account("landfall-local-provisioner"), &storage, here).await;
        }
    };
    let [binder, ephemeral, expander] =
        ["persistent-volume-binder", "ephemeral-volume-controller", "expand-controller"]
            .map(|account| cluster.with_account(account));
    tokio::join!(
        protection::run(cluster, &storage),
        binding::run(&binder, &storage),
        ephemeral::run(&ephemeral, &storage),
        expansion::run(&expander, &storage, local_volumes.is_some()),
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
