//! Volumes of pods: defaults and checks of every source.

use super::{persistent_volume, pod_template};
use crate::quantity;
use crate::value::ValueExt;
use serde_json::{Value, json};

/// rw-r--r--
const FILE_MODE: i64 = 0o644;
const TOKEN_SECONDS: i64 = 3600;

/// Fills in one volume of a pod. A volume without a source is an empty directory.
pub(super) fn default_volume(volume: &mut Value) {
    let has_source = volume
        .as_object()
        .is_some_and(|map| map.iter().any(|(field, source)| field != "name" && !source.is_null()));
    if !has_source {
        volume.set_default("emptyDir", json!({}));
    }
    let source = |name: &str, volume: &mut Value, fill: fn(&mut Value)| {
        if let Some(source) = volume.get_mut(name).filter(|source| source.is_object()) {
            fill(source);
        }
    };
    source("emptyDir", volume, |dir| quantity::canonicalize(dir.get_mut("sizeLimit")));
    for name in ["secret", "configMap", "downwardAPI", "projected"] {
        source(name, volume, |source| source.set_default("defaultMode", FILE_MODE));
    }
    source("hostPath", volume, |path| path.set_default("type", ""));
    source("downwardAPI", volume, |api| {
        api.list_mut("items").for_each(pod_template::default_reference);
    });
    source("projected", volume, |projected| {
        projected.list_mut("sources").for_each(default_projection);
    });
    source("ephemeral", volume, |ephemeral| {
        if let Some(template) = ephemeral.get_mut("volumeClaimTemplate") {
            persistent_volume::default_claim_spec(template.object("spec"));
        }
    });
    source("image", volume, |image| {
        let policy = pod_template::pull_policy(image.text(&["reference"]));
        image.set_default("pullPolicy", policy);
    });
    for (name, fields) in LEGACY {
        if let Some(source) = volume.get_mut(*name).filter(|source| source.is_object()) {
            for (field, value) in *fields {
                source.set_default(field, *value);
            }
        }
    }
    source("azureDisk", volume, |disk| disk.set_default("readOnly", false));
}

/// Sources of the days before CSI.
pub(super) const LEGACY: &[(&str, &[(&str, &str)])] = &[
    ("iscsi", &[("iscsiInterface", "default")]),
    ("rbd", &[("pool", "rbd"), ("user", "admin"), ("keyring", "/etc/ceph/keyring")]),
    ("azureDisk", &[("cachingMode", "ReadWrite"), ("fsType", "ext4"), ("kind", "Shared")]),
    ("scaleIO", &[("storageMode", "ThinProvisioned"), ("fsType", "xfs")]),
];

fn default_projection(source: &mut Value) {
    if let Some(token) = source.get_mut("serviceAccountToken").filter(|token| token.is_object()) {
        token.set_default("expirationSeconds", TOKEN_SECONDS);
    }
    if let Some(api) = source.get_mut("downwardAPI") {
        api.list_mut("items").for_each(pod_template::default_reference);
    }
}
