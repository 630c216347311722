//! Finds a volume on a node for a claim that is bound when its pod is scheduled.

use super::reaches;
use crate::affinity_terms::selector;
use crate::amounts::amount;
use crate::node::NodeState;
use crate::volumes::{Volumes, class_name};
use client::ObjectKey;
use k8s_openapi::api::core::v1::{
    ObjectReference, PersistentVolume, PersistentVolumeClaim, TopologySelectorTerm,
};

const STORAGE: &str = "storage";

/// The smallest volume that is free and large enough; one that already refers to the claim comes first.
pub(super) fn smallest(
    state: &Volumes,
    claim: &PersistentVolumeClaim,
    node: &NodeState,
    taken: impl Fn(&str) -> bool,
) -> Option<String> {
    let key = ObjectKey::of(claim);
    let free = |name: &str| {
        !taken(name) && state.reserved_for(name).is_none_or(|reserved| *reserved == key)
    };
    let fitting = state
        .volumes
        .iter()
        .filter(|(name, volume)| free(name) && suits(volume, claim, &key) && reaches(volume, node));
    let best = fitting.min_by_key(|(_, volume)| {
        let promised = claim_ref(volume).is_some();
        (!promised, capacity(volume))
    });
    best.map(|(name, _)| name.clone())
}

fn suits(volume: &PersistentVolume, claim: &PersistentVolumeClaim, key: &ObjectKey) -> bool {
    let (Some(spec), Some(wanted)) = (&volume.spec, &claim.spec) else {
        return false;
    };
    let owner = claim_ref(volume);
    let ours = owner.is_none_or(|owner| {
        owner.namespace.as_deref() == Some(key.namespace())
            && owner.name.as_deref() == Some(key.name())
            && (owner.uid.is_none() || owner.uid == claim.metadata.uid)
    });
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    let available = owner.is_some() || matches!(phase, Some("Available") | None);
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    let accessible = wanted.access_modes.iter().flatten().all(|mode| modes.contains(mode));
    let mode = |mode: &Option<String>| mode.clone().unwrap_or_else(|| "Filesystem".into());
    let labels = volume.metadata.labels.as_ref();
    let selected = wanted.selector.as_ref().is_none_or(|wanted| {
        selector(Some(wanted)).matches(|key| labels?.get(key).map(String::as_str))
    });
    ours && available
        && accessible
        && selected
        && volume.metadata.deletion_timestamp.is_none()
        && spec.storage_class_name.as_deref().unwrap_or_default() == class_name(claim)
        && mode(&spec.volume_mode) == mode(&wanted.volume_mode)
        && capacity(volume) >= requested(claim)
}

fn claim_ref(volume: &PersistentVolume) -> Option<&ObjectReference> {
    volume.spec.as_ref()?.claim_ref.as_ref()
}

fn capacity(volume: &PersistentVolume) -> i64 {
    let capacity = volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref());
    capacity.and_then(|list| list.get(STORAGE)).map_or(0, |quantity| amount(STORAGE, quantity))
}

fn requested(claim: &PersistentVolumeClaim) -> i64 {
    let resources = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    let requests = resources.and_then(|resources| resources.requests.as_ref());
    requests.and_then(|list| list.get(STORAGE)).map_or(0, |quantity| amount(STORAGE, quantity))
}

/// Whether the class can provision a volume on the node.
pub(super) fn can_provision(
    state: &Volumes,
    claim: &PersistentVolumeClaim,
    node: &NodeState,
) -> bool {
    let class = state.class_of(claim).filter(|_| state.has_provisioner(claim));
    class.is_some_and(|class| {
        let terms = class.allowed_topologies.as_deref().unwrap_or_default();
        terms.is_empty() || terms.iter().any(|term| is_within(term, node))
    })
}

fn is_within(term: &TopologySelectorTerm, node: &NodeState) -> bool {
    let rules = term.match_label_expressions.as_deref().unwrap_or_default();
    rules.iter().all(|rule| {
        let actual = node.label(&rule.key);
        actual.is_some_and(|actual| rule.values.iter().any(|value| value == actual))
    })
}
