//! The pod of an ordinal: its name, labels, host name and volumes (C-61…C-63). Pure.

use super::claims;
use super::plan::Revision;
use crate::workload::{from_template, label, name};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaimVolumeSource, Pod, Volume};
use std::collections::BTreeMap;

pub(super) const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
const POD_INDEX: &str = "apps.kubernetes.io/pod-index";
const REVISION: &str = "controller-revision-hash";

/// The ordinal in the pod's name, if the name belongs to this set.
pub(super) fn ordinal(set: &StatefulSet, pod: &Pod) -> Option<i32> {
    let number = name(pod).strip_prefix(name(set))?.strip_prefix('-')?;
    let ordinal: i32 = number.parse().ok()?;
    (ordinal.to_string() == number).then_some(ordinal)
}

/// The name of the revision that the pod was made from.
pub(super) fn revision(pod: &Pod) -> Option<&str> {
    label(pod, REVISION)
}

/// The labels that a pod must have.
pub(super) fn labels(set: &StatefulSet, ordinal: i32) -> BTreeMap<String, String> {
    let pod_name = format!("{}-{ordinal}", name(set));
    BTreeMap::from([(POD_NAME.to_owned(), pod_name), (POD_INDEX.to_owned(), ordinal.to_string())])
}

pub(super) fn has_its_labels(set: &StatefulSet, ordinal: i32, pod: &Pod) -> bool {
    labels(set, ordinal).iter().all(|(key, value)| label(pod, key) == Some(value))
}

pub(super) fn make(set: &StatefulSet, from: &Revision, ordinal: i32) -> Pod {
    let mut pod = from_template(set, &from.template);
    let pod_name = format!("{}-{ordinal}", name(set));
    pod.metadata.name = Some(pod_name.clone());
    let labels_ = pod.metadata.labels.get_or_insert_default();
    labels_.extend(labels(set, ordinal));
    labels_.insert(REVISION.to_owned(), from.name.clone());
    let spec = pod.spec.get_or_insert_default();
    spec.hostname = Some(pod_name);
    spec.subdomain = set.spec.as_ref().and_then(|spec| spec.service_name.clone());
    let claims: Vec<(String, String)> = claims::names(set, ordinal).collect();
    let volumes = spec.volumes.get_or_insert_default();
    volumes.retain(|volume| !claims.iter().any(|(template, _)| *template == volume.name));
    volumes.extend(claims.into_iter().map(|(template, claim_name)| Volume {
        name: template,
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name,
            read_only: None,
        }),
        ..Volume::default()
    }));
    pod
}
