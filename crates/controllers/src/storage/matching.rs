//! Finds the best volume for a claim (C-164). Pure.

use api::quantity::Quantity;
use api::selector::LabelSelector;
use client::ObjectKey;
use k8s_openapi::api::core::v1::{
    ObjectReference, PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec,
};
use std::sync::Arc;

pub(super) const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
pub(super) const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
pub(super) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const OLD_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// The class that a claim names; `None` is different from `""`.
pub(super) fn class_of_claim(claim: &PersistentVolumeClaim) -> Option<&str> {
    let old = claim.metadata.annotations.as_ref().and_then(|all| all.get(OLD_CLASS));
    let named = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_ref());
    old.or(named).map(String::as_str)
}

pub(super) fn class_of_volume(volume: &PersistentVolume) -> &str {
    let old = volume.metadata.annotations.as_ref().and_then(|all| all.get(OLD_CLASS));
    let named = volume.spec.as_ref().and_then(|spec| spec.storage_class_name.as_ref());
    old.or(named).map(String::as_str).unwrap_or_default()
}

/// Whether a claim neither has nor names a volume.
pub(super) fn is_pending(claim: &PersistentVolumeClaim) -> bool {
    let named = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
    named.unwrap_or_default().is_empty()
}

pub(super) fn is_free(volume: &PersistentVolume) -> bool {
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    claim_ref(volume).is_none()
        && volume.metadata.deletion_timestamp.is_none()
        && phase == Some("Available")
}

pub(super) fn claim_ref(volume: &PersistentVolume) -> Option<&ObjectReference> {
    volume.spec.as_ref()?.claim_ref.as_ref()
}

pub(super) fn claim_key(volume: &PersistentVolume) -> Option<ObjectKey> {
    let claim_ref = claim_ref(volume)?;
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    Some(ObjectKey::new(&text(&claim_ref.namespace), &text(&claim_ref.name)))
}

/// Whether `claimRef` names this claim, with its UID or without one.
pub(super) fn refers_to(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let uid = claim_ref(volume).and_then(|claim_ref| claim_ref.uid.as_deref()).unwrap_or_default();
    claim_key(volume).as_ref() == Some(&ObjectKey::of(claim))
        && (uid.is_empty() || Some(uid) == claim.metadata.uid.as_deref())
}

/// The best free volume: the one with the fewest access modes, then the smallest. A volume that already refers to the
/// claim comes first, and its class need not match.
pub(super) fn best<'a>(
    claim: &PersistentVolumeClaim,
    referring: &'a [Arc<PersistentVolume>],
    free: &'a [Arc<PersistentVolume>],
) -> Option<&'a Arc<PersistentVolume>> {
    let fits = |volume: &&Arc<PersistentVolume>| {
        refers_to(volume, claim) && misfit(claim, volume).is_none_or(|why| why == CLASS)
    };
    if let Some(volume) = referring.iter().find(fits) {
        return Some(volume);
    }
    let selector = claim.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    let selector = selector.and_then(|selector| typed::to_value(selector).ok());
    let selector = selector.map(|selector| LabelSelector::from_object(&selector));
    let selected = |volume: &PersistentVolume| match &selector {
        None => true,
        Some(Ok(selector)) => {
            let labels = volume.metadata.labels.as_ref();
            selector.matches(|key| labels?.get(key).map(String::as_str))
        }
        Some(Err(_)) => false,
    };
    let suits = free
        .iter()
        .filter(|volume| is_free(volume) && misfit(claim, volume).is_none() && selected(volume));
    suits.min_by(|a, b| {
        let modes = |volume: &PersistentVolume| spec(volume).access_modes.map_or(0, |m| m.len());
        let name = |volume: &PersistentVolume| volume.metadata.name.clone();
        let size = |volume: &PersistentVolume| capacity(volume).unwrap_or(Quantity::ZERO);
        let by_size = size(a).partial_cmp(&size(b)).unwrap_or(std::cmp::Ordering::Equal);
        modes(a).cmp(&modes(b)).then(by_size).then_with(|| name(a).cmp(&name(b)))
    })
}

const CLASS: &str = "storageClassName does not match";

/// Why a volume does not fit a claim. Upstream: `checkVolumeSatisfyClaim`.
pub(super) fn misfit(
    claim: &PersistentVolumeClaim,
    volume: &PersistentVolume,
) -> Option<&'static str> {
    let wanted = claim.spec.clone().unwrap_or_default();
    let has = spec(volume);
    let mode = |mode: &Option<String>| mode.clone().unwrap_or_else(|| "Filesystem".to_owned());
    let attributes = |name: &Option<String>| name.clone().unwrap_or_default();
    let too_small = match (requested(claim), capacity(volume)) {
        (Some(wanted), Some(has)) => wanted > has,
        (Some(_), None) => true,
        (None, _) => false,
    };
    let modes = has.access_modes.clone().unwrap_or_default();
    if volume.metadata.deletion_timestamp.is_some() {
        return Some("the volume is marked for deletion");
    }
    if too_small {
        return Some("requested PV is too small");
    }
    if mode(&wanted.volume_mode) != mode(&has.volume_mode) {
        return Some("incompatible volumeMode");
    }
    if wanted.access_modes.iter().flatten().any(|mode| !modes.contains(mode)) {
        return Some("incompatible accessMode");
    }
    if attributes(&wanted.volume_attributes_class_name)
        != attributes(&has.volume_attributes_class_name)
    {
        return Some("VolumeAttributesClassName does not match");
    }
    (class_of_claim(claim).unwrap_or_default() != class_of_volume(volume)).then_some(CLASS)
}

fn spec(volume: &PersistentVolume) -> PersistentVolumeSpec {
    volume.spec.clone().unwrap_or_default()
}

pub(super) fn capacity(volume: &PersistentVolume) -> Option<Quantity> {
    let text = volume.spec.as_ref()?.capacity.as_ref()?.get("storage")?;
    Quantity::parse(&text.0).ok()
}

pub(super) fn requested(claim: &PersistentVolumeClaim) -> Option<Quantity> {
    let requests = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?;
    Quantity::parse(&requests.get("storage")?.0).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn claim(more: Value) -> PersistentVolumeClaim {
        let mut spec = json!({ "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
                               "resources": { "requests": { "storage": "5Gi" } } });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let meta = json!({ "namespace": "default", "name": "c", "uid": "u" });
        typed::from_value(json!({ "metadata": meta, "spec": spec })).unwrap()
    }

    fn volume(name: &str, size: &str, more: Value) -> Arc<PersistentVolume> {
        let mut spec = json!({ "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
                               "capacity": { "storage": size } });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let meta = json!({ "name": name, "labels": { "tier": name } });
        let volume = json!({ "metadata": meta, "spec": spec, "status": { "phase": "Available" } });
        Arc::new(typed::from_value(volume).unwrap())
    }

    fn chosen(claim: &PersistentVolumeClaim, volumes: &[Arc<PersistentVolume>]) -> Option<String> {
        best(claim, volumes, volumes).and_then(|volume| volume.metadata.name.clone())
    }

    #[test]
    fn c_164_the_smallest_fitting_volume_is_chosen() {
        let volumes = [
            volume("big", "10Gi", json!({})),
            volume("small", "1Gi", json!({})),
            volume("right", "6Gi", json!({})),
            volume(
                "exact-but-shared",
                "5Gi",
                json!({ "accessModes": ["ReadWriteOnce", "ReadOnlyMany"] }),
            ),
            volume("other-class", "5Gi", json!({ "storageClassName": "slow" })),
            volume("block", "5Gi", json!({ "volumeMode": "Block" })),
        ];
        let cases = [
            ("smallest", json!({}), Some("right")),
            (
                "by access mode",
                json!({ "accessModes": ["ReadOnlyMany"] }),
                Some("exact-but-shared"),
            ),
            ("by mode", json!({ "volumeMode": "Block" }), Some("block")),
            ("by class", json!({ "storageClassName": "slow" }), Some("other-class")),
            ("no class is a class", json!({ "storageClassName": "" }), None),
            ("by label", json!({ "selector": { "matchLabels": { "tier": "big" } } }), Some("big")),
            ("too large", json!({ "resources": { "requests": { "storage": "1Ti" } } }), None),
        ];
        for (what, more, expected) in cases {
            assert_eq!(chosen(&claim(more), &volumes).as_deref(), expected, "{what}");
        }
    }

    #[test]
    fn c_164_a_volume_with_a_claim_ref_is_used_only_for_that_claim() {
        let to = |uid: &str, name: &str| json!({ "claimRef": { "namespace": "default", "name": name, "uid": uid } });
        let volumes = [
            volume("free", "5Gi", json!({})),
            volume("others", "5Gi", to("x", "other")),
            volume("ours", "50Gi", to("", "c")),
        ];
        assert_eq!(chosen(&claim(json!({})), &volumes).as_deref(), Some("ours"));
        let stale = [volume("stale", "5Gi", to("another-uid", "c"))];
        assert_eq!(chosen(&claim(json!({})), &stale), None);
    }

    #[test]
    fn c_166_the_reason_for_a_mismatch_is_named() {
        for (volume, expected) in [
            (volume("v", "1Gi", json!({})), Some("requested PV is too small")),
            (volume("v", "5Gi", json!({ "storageClassName": "x" })), Some(CLASS)),
            (volume("v", "5Gi", json!({ "volumeMode": "Block" })), Some("incompatible volumeMode")),
            (
                volume("v", "5Gi", json!({ "accessModes": ["ReadOnlyMany"] })),
                Some("incompatible accessMode"),
            ),
            (volume("v", "5Gi", json!({})), None),
        ] {
            assert_eq!(misfit(&claim(json!({})), &volume), expected);
        }
    }
}
