//! Limits of a node: exclusive disks, and the number of volumes per driver.

use crate::filters::{Plugin, Rejection};
use crate::node::NodeState;
use crate::view::View;
use crate::volumes::{Volumes, bound_to};
use client::ObjectKey;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Volume};
use std::collections::{BTreeMap, BTreeSet};

/// A disk that pods can share only read-only.
#[derive(Debug, PartialEq)]
pub(super) struct Disk {
    id: String,
    read_only: bool,
}

/// A volume of a driver, by its handle.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Attached {
    driver: String,
    handle: String,
}

pub(super) fn disks<'a>(volumes: impl Iterator<Item = &'a Volume>) -> Vec<Disk> {
    volumes.filter_map(disk).collect()
}

fn disk(volume: &Volume) -> Option<Disk> {
    if let Some(disk) = &volume.gce_persistent_disk {
        let read_only = disk.read_only.unwrap_or_default();
        return Some(Disk { id: format!("gce {}", disk.pd_name), read_only });
    }
    if let Some(disk) = &volume.aws_elastic_block_store {
        return Some(Disk { id: format!("aws {}", disk.volume_id), read_only: false });
    }
    if let Some(disk) = &volume.iscsi {
        let read_only = disk.read_only.unwrap_or_default();
        return Some(Disk { id: format!("iscsi {}", disk.iqn), read_only });
    }
    let disk = volume.rbd.as_ref()?;
    let pool = disk.pool.as_deref().unwrap_or("rbd");
    let read_only = disk.read_only.unwrap_or_default();
    Some(Disk { id: format!("rbd {:?} {pool} {}", disk.monitors, disk.image), read_only })
}

pub(super) fn check_disks(wanted: &[Disk], node: &NodeState) -> Result<(), Rejection> {
    if wanted.is_empty() {
        return Ok(());
    }
    let clash = |there: &Disk| {
        let clashes = |disk: &Disk| disk.id == there.id && !(disk.read_only && there.read_only);
        wanted.iter().any(clashes)
    };
    let taken = node.pods.values().any(|pod| {
        let volumes = pod.pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        disks(volumes).iter().any(clash)
    });
    match taken {
        true => Err(Rejection::soft(Plugin::VolumeRestrictions, "node(s) had no available disk")),
        false => Ok(()),
    }
}

/// The volume that a claim attaches or will attach.
pub(super) fn attached(state: &Volumes, claim: &PersistentVolumeClaim) -> Option<Attached> {
    match bound_to(claim) {
        Some(volume) => {
            let csi = state.volumes.get(volume)?.spec.as_ref()?.csi.as_ref()?;
            Some(Attached { driver: csi.driver.clone(), handle: csi.volume_handle.clone() })
        }
        None => {
            let driver = state.class_of(claim)?.provisioner.clone();
            Some(Attached { driver, handle: format!("claim {}", ObjectKey::of(claim)) })
        }
    }
}

pub(super) fn check_attached(
    wanted: &[Attached],
    view: View,
    node: &NodeState,
) -> Result<(), Rejection> {
    let state = &view.cluster.volumes;
    let Some(limits) = state.attachments.get(&*node.name).filter(|_| !wanted.is_empty()) else {
        return Ok(());
    };
    let limits: BTreeMap<&str, usize> = limits
        .spec
        .drivers
        .iter()
        .filter_map(|driver| {
            let count = driver.allocatable.as_ref()?.count?;
            Some((driver.name.as_str(), usize::try_from(count).unwrap_or_default()))
        })
        .collect();
    if !wanted.iter().any(|volume| limits.contains_key(volume.driver.as_str())) {
        return Ok(());
    }
    let mut all: BTreeSet<Attached> = wanted.iter().cloned().collect();
    for pod in node.pods.values() {
        let keys = pod.claims.iter().map(|name| ObjectKey::new(pod.namespace(), name));
        all.extend(keys.filter_map(|key| attached(state, state.claims.get(&key)?)));
    }
    let over = wanted.iter().any(|volume| {
        let count = all.iter().filter(|other| other.driver == volume.driver).count();
        limits.get(volume.driver.as_str()).is_some_and(|limit| count > *limit)
    });
    match over {
        true => Err(Rejection::soft(Plugin::NodeVolumeLimits, "node(s) exceed max volume count")),
        false => Ok(()),
    }
}
