//! Finds references to API objects, which static pods may not have (N-24).

use k8s_openapi::api::core::v1::{Container, PodSpec, Volume};

/// The first kind of API object that the pod refers to.
pub(super) fn referenced(spec: &PodSpec) -> Option<&'static str> {
    let given = |name: &Option<String>| name.as_deref().is_some_and(|name| !name.is_empty());
    let containers = || spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let volumes = || spec.volumes.iter().flatten();
    if given(&spec.service_account_name) || given(&spec.service_account) {
        return Some("serviceaccounts");
    }
    let pull = spec.image_pull_secrets.as_ref().is_some_and(|secrets| !secrets.is_empty());
    if pull || containers().any(|c| env_uses(c).0) || volumes().any(uses_secret) {
        return Some("secrets");
    }
    if containers().any(|c| env_uses(c).1) || volumes().any(uses_config_map) {
        return Some("configmaps");
    }
    if spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()) {
        return Some("resourceclaims");
    }
    volumes().find_map(of_volume)
}

/// Whether the environment uses Secrets, and whether it uses ConfigMaps.
fn env_uses(container: &Container) -> (bool, bool) {
    let from = container.env_from.iter().flatten();
    let values = container.env.iter().flatten().filter_map(|var| var.value_from.as_ref());
    let (mut secrets, mut maps) = (false, false);
    for source in from {
        secrets |= source.secret_ref.is_some();
        maps |= source.config_map_ref.is_some();
    }
    for source in values {
        secrets |= source.secret_key_ref.is_some();
        maps |= source.config_map_key_ref.is_some();
    }
    (secrets, maps)
}

fn uses_secret(volume: &Volume) -> bool {
    let projected = volume.projected.iter().flat_map(|p| p.sources.iter().flatten());
    volume.secret.is_some()
        || projected.into_iter().any(|source| source.secret.is_some())
        || volume.azure_file.is_some()
        || volume.cephfs.as_ref().is_some_and(|v| v.secret_ref.is_some())
        || volume.flex_volume.as_ref().is_some_and(|v| v.secret_ref.is_some())
        || volume.iscsi.as_ref().is_some_and(|v| v.secret_ref.is_some())
        || volume.rbd.as_ref().is_some_and(|v| v.secret_ref.is_some())
        || volume.scale_io.is_some()
        || volume.storageos.as_ref().is_some_and(|v| v.secret_ref.is_some())
        || volume.csi.as_ref().is_some_and(|v| v.node_publish_secret_ref.is_some())
}

fn uses_config_map(volume: &Volume) -> bool {
    let projected = volume.projected.iter().flat_map(|p| p.sources.iter().flatten());
    volume.config_map.is_some() || projected.into_iter().any(|source| source.config_map.is_some())
}

fn of_volume(volume: &Volume) -> Option<&'static str> {
    if volume.persistent_volume_claim.is_some() {
        return Some("persistentvolumeclaims");
    }
    if volume.ephemeral.is_some() {
        return Some("persistentvolumeclaims (via ephemeral volumes)");
    }
    if volume.csi.is_some() {
        return Some("csidrivers (via CSI volumes)");
    }
    if volume.glusterfs.is_some() {
        return Some("endpoints (via glusterFS volumes)");
    }
    let sources = volume.projected.iter().flat_map(|p| p.sources.iter().flatten());
    sources.into_iter().find_map(|source| {
        if source.service_account_token.is_some() {
            Some("serviceaccounts (via projected volumes)")
        } else if source.cluster_trust_bundle.is_some() {
            Some("clustertrustbundles")
        } else if source.pod_certificate.is_some() {
            Some("podcertificates")
        } else {
            None
        }
    })
}
