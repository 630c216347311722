//! VolumeRestrictions, NodeVolumeLimits, VolumeBinding and VolumeZone: where a pod's volumes are or can be (N-194).

mod limits;
mod matching;
#[cfg(test)]
mod tests;

use super::{Plugin, Rejection, node_affinity};
use crate::node::NodeState;
use crate::pod::PodInfo;
use crate::view::View;
use crate::volumes::{bound_to, selected_node};
use client::ObjectKey;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Volume};
use std::sync::Arc;

const ONCE_PER_POD: &str = "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod \
                            access mode already in-use by another pod";
const VOLUME_GONE: &str =
    "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";
const ELSEWHERE: &str = "node(s) didn't match PersistentVolume's node affinity";
const NONE_TO_BIND: &str = "node(s) didn't find available persistent volumes to bind";
const OTHER_ZONE: &str = "node(s) had no available volume zone";

const ZONE_LABELS: [&str; 4] = [
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
];

#[derive(Default)]
pub(super) struct Plan {
    bound: Vec<Arc<PersistentVolume>>,
    /// The volume of a claim does not exist.
    gone: bool,
    /// Claims to bind on the pod's node.
    unbound: Vec<Arc<PersistentVolumeClaim>>,
    /// Another pod uses a ReadWriteOncePod claim.
    taken: bool,
    disks: Vec<limits::Disk>,
    attached: Vec<limits::Attached>,
}

/// What to do with the claims before the pod is bound.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct VolumeChoice {
    /// Claims that get an existing volume.
    pub(crate) bind: Vec<(ObjectKey, String)>,
    /// Claims for which a volume is provisioned on the node.
    pub(crate) provision: Vec<ObjectKey>,
}

impl VolumeChoice {
    pub(crate) fn is_empty(&self) -> bool {
        self.bind.is_empty() && self.provision.is_empty()
    }
}

impl Plan {
    pub(super) fn make(view: View, pod: &PodInfo) -> Result<Plan, Rejection> {
        let volumes = pod.pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let disks = limits::disks(volumes.clone());
        if pod.claims.is_empty() {
            return Ok(Plan { disks, ..Plan::default() });
        }
        let mut plan = Plan { disks, ..Plan::default() };
        let mut waiting = false;
        for volume in volumes {
            let Some(claim) = find(view, pod, volume)? else { continue };
            let state = &view.cluster.volumes;
            plan.taken |= is_for_one_pod(&claim) && view.claim_users(&ObjectKey::of(&*claim)) > 0;
            plan.attached.extend(limits::attached(state, &claim));
            match bound_to(&claim) {
                Some(name) => match state.volumes.get(name) {
                    Some(volume) => plan.bound.push(volume.clone()),
                    None => plan.gone = true,
                },
                None if state.waits_for_consumer(&claim) => plan.unbound.push(claim),
                None => waiting = true,
            }
        }
        match waiting {
            true => Err(unbound()),
            false => Ok(plan),
        }
    }

    pub(super) fn check(&self, view: View, node: &NodeState) -> Result<(), Rejection> {
        if self.taken {
            return Err(Rejection::soft(Plugin::VolumeRestrictions, ONCE_PER_POD));
        }
        limits::check_disks(&self.disks, node)?;
        limits::check_attached(&self.attached, view, node)?;
        if self.gone {
            return Err(Rejection::hard(Plugin::VolumeBinding, VOLUME_GONE));
        }
        if !self.bound.iter().all(|volume| reaches(volume, node)) {
            return Err(Rejection::hard(Plugin::VolumeBinding, ELSEWHERE));
        }
        self.choose(view, node)?;
        match self.bound.iter().all(|volume| is_in_zone(volume, node)) {
            true => Ok(()),
            false => Err(Rejection::hard(Plugin::VolumeZone, OTHER_ZONE)),
        }
    }

    pub(super) fn choose(&self, view: View, node: &NodeState) -> Result<VolumeChoice, Rejection> {
        let mut choice = VolumeChoice::default();
        if self.unbound.is_empty() {
            return Ok(choice);
        }
        let state = &view.cluster.volumes;
        for claim in &self.unbound {
            let key = ObjectKey::of(&**claim);
            // A volume is already being provisioned on the chosen node.
            let chosen = selected_node(claim);
            if chosen.is_some_and(|chosen| chosen != &*node.name) {
                return Err(Rejection::hard(Plugin::VolumeBinding, NONE_TO_BIND));
            }
            let taken = |name: &str| choice.bind.iter().any(|(_, taken)| taken == name);
            let found = match chosen {
                Some(_) => None,
                None => matching::smallest(state, claim, node, taken),
            };
            match found {
                Some(volume) => choice.bind.push((key, volume)),
                None if matching::can_provision(state, claim, node) => choice.provision.push(key),
                None => return Err(Rejection::hard(Plugin::VolumeBinding, NONE_TO_BIND)),
            }
        }
        Ok(choice)
    }
}

/// The claim of a volume, if it has one; an error if it makes the pod unschedulable.
fn find(
    view: View,
    pod: &PodInfo,
    volume: &Volume,
) -> Result<Option<Arc<PersistentVolumeClaim>>, Rejection> {
    let name = match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(claim), _) => claim.claim_name.clone(),
        (None, Some(_)) => format!("{}-{}", pod.key.name(), volume.name),
        (None, None) => return Ok(None),
    };
    let reject = |why: String| Err(Rejection::hard(Plugin::VolumeBinding, why));
    let claims = &view.cluster.volumes.claims;
    let Some(claim) = claims.get(&ObjectKey::new(pod.namespace(), &name)) else {
        return match volume.ephemeral {
            Some(_) => reject(format!(
                "waiting for ephemeral volume controller to create the persistentvolumeclaim {name:?}"
            )),
            None => reject(format!("persistentvolumeclaim {name:?} not found")),
        };
    };
    let mut owners = claim.metadata.owner_references.iter().flatten();
    if volume.ephemeral.is_some() && !owners.any(|owner| owner.uid == pod.uid) {
        return reject(format!(
            "PVC {}/{name} was not created for pod {} (pod is not owner)",
            pod.namespace(),
            pod.key
        ));
    }
    let status = claim.status.as_ref();
    if status.and_then(|status| status.phase.as_deref()) == Some("Lost") {
        let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
        let volume = volume.unwrap_or_default();
        return reject(format!(
            "persistentvolumeclaim {name:?} bound to non-existent persistentvolume {volume:?}"
        ));
    }
    if claim.metadata.deletion_timestamp.is_some() {
        return reject(format!("persistentvolumeclaim {name:?} is being deleted"));
    }
    Ok(Some(claim.clone()))
}

fn unbound() -> Rejection {
    Rejection::hard(Plugin::VolumeBinding, "pod has unbound immediate PersistentVolumeClaims")
}

fn is_for_one_pod(claim: &PersistentVolumeClaim) -> bool {
    let modes = claim.spec.iter().flat_map(|spec| spec.access_modes.iter().flatten());
    modes.into_iter().any(|mode| mode == "ReadWriteOncePod")
}

/// Whether the volume's node affinity matches the node.
fn reaches(volume: &PersistentVolume, node: &NodeState) -> bool {
    let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| affinity.required.as_ref());
    required.is_none_or(|required| node_affinity::meets(required, node))
}

/// Whether the volume's zone labels, which precede node affinity, match the node. Several zones are `a__b`.
fn is_in_zone(volume: &PersistentVolume, node: &NodeState) -> bool {
    if ZONE_LABELS.iter().all(|key| node.label(key).is_none()) {
        return true;
    }
    let labels = volume.metadata.labels.as_ref();
    ZONE_LABELS.iter().all(|key| {
        let zones = labels.and_then(|labels| labels.get(*key));
        zones.is_none_or(|zones| {
            node.label(key).is_some_and(|zone| zones.split("__").any(|one| one == zone))
        })
    })
}
