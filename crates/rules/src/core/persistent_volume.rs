//! PersistentVolumes and PersistentVolumeClaims.

use super::checks::{self, NOT_POSITIVE};
use super::{resources, scheduling, volume_sources, volumes};
use crate::Rules;
use crate::label_selector;
use api::field::{At, Errors, Wrong};
use api::metadata::{self, same};
use api::names;
use api::quantity::{self, Quantity};
use api::value::ValueExt;
use serde_json::{Value, json};

const ACCESS_MODES: &[&str] =
    &["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
const VOLUME_MODES: &[&str] = &["Block", "Filesystem"];
/// The annotation for the storage class before there was a field.
const BETA_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

pub(super) const VOLUME: Rules = Rules {
    default: default_volume,
    prepare_create: |volume| {
        volume.map().insert("status".into(), json!({"phase": "Pending"}));
    },
    validate: validate_volume,
    validate_update: validate_volume_update,
    returns_deleted: true,
    ..Rules::NONE
};

pub(super) const CLAIM: Rules = Rules {
    default: default_claim,
    prepare_create: |claim| {
        claim.map().insert("status".into(), json!({"phase": "Pending"}));
        normalize_data_source(claim.object("spec"));
    },
    prepare_update: |new, _| normalize_data_source(new.object("spec")),
    validate: super::pod_template::validate_claim,
    validate_update: validate_claim_update,
    validate_status_update: validate_claim_status,
    returns_deleted: true,
    ..Rules::NONE
};

/// All volume sources in the order of validation.
const SOURCES: &[&str] = &[
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "flocker",
    "nfs",
    "rbd",
    "quobyte",
    "cephfs",
    "iscsi",
    "cinder",
    "fc",
    "flexVolume",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "scaleIO",
    "local",
    "storageos",
    "csi",
];

fn default_volume(volume: &mut Value) {
    volume.object("status").set_default("phase", "Pending");
    let spec = volume.object("spec");
    spec.set_default("persistentVolumeReclaimPolicy", "Retain");
    spec.set_default("volumeMode", "Filesystem");
    quantity::canonicalize_list(spec.get_mut("capacity"));
    if let Some(path) = spec.get_mut("hostPath").filter(|path| path.is_object()) {
        path.set_default("type", "");
    }
    for (kind, fields) in volumes::LEGACY {
        if let Some(source) = spec.get_mut(*kind).filter(|source| source.is_object()) {
            fields.iter().for_each(|(field, value)| source.set_default(field, *value));
        }
    }
}

pub(super) fn default_claim(claim: &mut Value) {
    default_claim_spec(claim.object("spec"));
    let status = claim.object("status");
    status.set_default("phase", "Pending");
    quantity::canonicalize_list(status.get_mut("capacity"));
    quantity::canonicalize_list(status.get_mut("allocatedResources"));
}

pub(super) fn default_claim_spec(spec: &mut Value) {
    spec.set_default("volumeMode", "Filesystem");
    if let Some(resources) = spec.get_mut("resources") {
        quantity::canonicalize_list(resources.get_mut("requests"));
        quantity::canonicalize_list(resources.get_mut("limits"));
    }
}

/// `dataSource` and `dataSourceRef` are equal unless the source is in another namespace.
fn normalize_data_source(spec: &mut Value) {
    let (old, new) = (spec.at(&["dataSource"]).cloned(), spec.at(&["dataSourceRef"]).cloned());
    match (old, new) {
        (Some(source), None) => spec.set_default("dataSourceRef", source),
        (None, Some(mut source)) if source.text(&["namespace"]).is_empty() => {
            source.remove("namespace");
            spec.set_default("dataSource", source);
        }
        _ => {}
    }
}

fn validate_volume(volume: &At, errors: &mut Errors) {
    let spec = volume.field("spec");
    if spec.field("accessModes").is_empty() {
        errors.required(&spec.field("accessModes"), "");
    }
    access_modes(&spec.field("accessModes"), errors);
    capacity(&spec.field("capacity"), errors);
    let reclaim = spec.field("persistentVolumeReclaimPolicy");
    checks::optional_one_of(&reclaim, &["Delete", "Recycle", "Retain"], errors);
    let affinity = spec.field("nodeAffinity");
    if affinity.is_set() {
        let required = affinity.field("required");
        if required.is_set() {
            scheduling::node_selector(&required, errors);
        } else {
            errors.required(&required, "must specify required node constraints");
        }
    }
    source(&spec, errors);
    let path = spec.field("hostPath");
    let path = path.field("path").text();
    if !path.is_empty() && path.chars().all(|c| c == '/') && reclaim.text() == "Recycle" {
        errors.forbidden(&reclaim, "may not be 'recycle' for a hostPath mount of '/'");
    }
    checks::optional_name(&spec.field("storageClassName"), names::dns1123_subdomain, errors);
    checks::optional_one_of(&spec.field("volumeMode"), VOLUME_MODES, errors);
    let attributes = spec.field("volumeAttributesClassName");
    if attributes.is_set() {
        if attributes.text().is_empty() {
            errors.required(&attributes, "an empty string is disallowed");
        } else {
            checks::each(&attributes, names::dns1123_subdomain(attributes.text()), errors);
        }
        if !spec.field("csi").is_set() {
            let detail = "has to be specified when using volumeAttributesClassName";
            errors.required(&spec.field("csi"), detail);
        }
    }
}

fn access_modes(modes: &At, errors: &mut Errors) {
    let supported = ACCESS_MODES.iter().map(|mode| format!("{mode:?}")).collect::<Vec<_>>();
    let supported = format!("supported values: {}", supported.join(", "));
    for mode in modes.items().filter(|mode| !ACCESS_MODES.contains(&mode.text())) {
        errors.push(Wrong::NotSupported, modes.path(), mode.value(), &supported);
    }
    let single = |mode: &At| mode.text() == "ReadWriteOncePod";
    let shared = |mode: &At| ACCESS_MODES.contains(&mode.text()) && !single(mode);
    if modes.items().any(|mode| single(&mode)) && modes.items().any(|mode| shared(&mode)) {
        errors.forbidden(modes, "may not use ReadWriteOncePod with other access modes");
    }
}

fn capacity(capacity: &At, errors: &mut Errors) {
    if capacity.is_empty() {
        errors.required(capacity, "");
    }
    if !capacity.key("storage").is_set() || capacity.len() > 1 {
        errors.not_supported(capacity, &["storage"]);
    }
    for (_, amount) in capacity.entries() {
        basic_amount(&amount, errors);
        positive_amount(&amount, errors);
    }
}

fn basic_amount(at: &At, errors: &mut Errors) {
    if let Some(amount) = checks::quantity(at)
        && amount.value() < 0
    {
        errors.invalid_value(at, amount.value(), "must be a valid resource quantity");
    }
}

fn positive_amount(at: &At, errors: &mut Errors) -> bool {
    match checks::quantity(at) {
        Some(amount) if amount <= Quantity::ZERO => {
            errors.invalid_value(at, amount.to_string(), NOT_POSITIVE);
            false
        }
        _ => true,
    }
}

fn source(spec: &At, errors: &mut Errors) {
    let mut found = false;
    for kind in SOURCES {
        let source = spec.field(kind);
        if !source.is_set() {
            continue;
        }
        if found {
            errors.forbidden(&source, "may not specify more than 1 volume type");
            continue;
        }
        found = true;
        match *kind {
            "csi" => csi(&source, errors),
            _ => volume_sources::validate(kind, &source, errors),
        }
        if *kind == "local" && !spec.field("nodeAffinity").is_set() {
            let detail = "Local volume requires node affinity";
            errors.required(&spec.field("nodeAffinity"), detail);
        }
    }
    if !found {
        errors.required(spec, "must specify a volume type");
    }
}

fn csi(source: &At, errors: &mut Errors) {
    volume_sources::driver_name(&source.field("driver"), errors);
    checks::required(&source.field("volumeHandle"), errors);
    for secret in [
        "controllerPublishSecretRef",
        "controllerExpandSecretRef",
        "nodePublishSecretRef",
        "nodeExpandSecretRef",
    ] {
        let secret = source.field(secret);
        if secret.is_set() {
            checks::named(&secret.field("name"), names::dns1123_subdomain, errors);
            checks::named(&secret.field("namespace"), names::dns1123_label, errors);
        }
    }
}

fn validate_volume_update(new: &At, old: &At, errors: &mut Errors) {
    let (spec, before) = (new.field("spec"), old.field("spec"));
    let mut changed = false;
    for kind in SOURCES {
        let (now, then) = (spec.field(kind), before.field(kind));
        let mut value = now.value().cloned().unwrap_or_default();
        let late = *kind == "csi" && !then.field("controllerExpandSecretRef").is_set();
        if late && then.is_set() {
            value.remove("controllerExpandSecretRef");
        }
        changed |= now.is_set() != then.is_set() || !same(Some(&value), then.value());
    }
    if changed {
        let path = format!("{}.persistentvolumesource", spec.path());
        let detail = "spec.persistentvolumesource is immutable after creation\n";
        errors.push(Wrong::Forbidden, path, None, detail);
    }
    // Upstream omits `spec` in these two paths.
    immutable("volumeMode", &spec, &before, metadata::IMMUTABLE, errors);
    if before.field("nodeAffinity").is_set() {
        let detail = "field is immutable, except for updating from beta label to GA";
        immutable("nodeAffinity", &spec, &before, detail, errors);
    }
    attributes_kept(&spec, &before, errors);
}

fn immutable(field: &str, new: &At, old: &At, detail: &str, errors: &mut Errors) {
    let now = new.field(field);
    if !same(now.value(), old.field(field).value()) {
        let value = now.value().cloned().unwrap_or_default();
        errors.push(Wrong::Invalid, field.to_owned(), Some(&value), detail);
    }
}

fn attributes_kept(new: &At, old: &At, errors: &mut Errors) {
    let now = new.field("volumeAttributesClassName");
    if !old.field("volumeAttributesClassName").is_set() {
        return;
    }
    if !now.is_set() {
        errors.forbidden(&now, "update from non-nil value to nil is forbidden");
    } else if now.text().is_empty() {
        errors.forbidden(&now, "update from non-nil value to an empty string is forbidden");
    }
}

pub(super) fn validate_claim_spec(spec: &At, errors: &mut Errors) {
    let modes = spec.field("accessModes");
    if modes.is_empty() {
        errors.required(&modes, "at least 1 access mode is required");
    }
    label_selector::validate(&spec.field("selector"), errors);
    access_modes(&modes, errors);
    storage_request(spec, errors);
    checks::optional_name(&spec.field("storageClassName"), names::dns1123_subdomain, errors);
    checks::optional_one_of(&spec.field("volumeMode"), VOLUME_MODES, errors);
    data_sources(spec, errors);
    let attributes = spec.field("volumeAttributesClassName");
    checks::optional_name(&attributes, names::dns1123_subdomain, errors);
}

fn storage_request(spec: &At, errors: &mut Errors) {
    let resources = spec.field("resources");
    // Upstream omits `requests` in the path.
    let shown = resources.key("storage");
    let requests = resources.field("requests");
    match checks::quantity(&requests.key("storage")) {
        None => errors.required(&shown, ""),
        Some(amount) if amount <= Quantity::ZERO => {
            errors.invalid_value(&shown, amount.to_string(), NOT_POSITIVE);
        }
        Some(amount) => resources::amount_as(&shown, amount, "storage", errors),
    }
}

fn data_sources(spec: &At, errors: &mut Errors) {
    let (old, new) = (spec.field("dataSource"), spec.field("dataSourceRef"));
    for source in [&old, &new].into_iter().filter(|source| source.is_set()) {
        checks::required(&source.field("name"), errors);
        checks::required(&source.field("kind"), errors);
        let (kind, group) = (source.field("kind").text(), source.field("apiGroup"));
        if group.text().is_empty() && kind != "PersistentVolumeClaim" {
            let detail = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
            errors.invalid_value(source, kind, detail);
        }
        checks::optional_name(&group, names::dns1123_subdomain, errors);
        checks::optional_name(&source.field("namespace"), names::dns1123_label, errors);
    }
    if !old.is_set() || !new.is_set() {
        return;
    }
    let path = old.path();
    if !new.field("namespace").text().is_empty() {
        let detail = "may not be specified when dataSourceRef.namespace is specified";
        errors.invalid_value(spec, path, detail);
    } else if ["apiGroup", "kind", "name"]
        .iter()
        .any(|f| old.field(f).text() != new.field(f).text())
    {
        errors.invalid_value(spec, path, "must match dataSourceRef");
    }
}

fn validate_claim_update(new: &At, old: &At, errors: &mut Errors) {
    let (now, then) = (new.value().cloned().unwrap_or_default(), old.value().cloned());
    let then = then.unwrap_or_default();
    beta_class(new, old, errors);
    let munged = with_old_updatable(&now, &then);
    let spec = new.field("spec");
    if !same(munged.get("spec"), then.get("spec")) {
        errors.forbidden(&spec, "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n");
    }
    let amount = |object: &Value, path: &[&str]| {
        object.at(path).and_then(Quantity::from_value).unwrap_or(Quantity::ZERO)
    };
    let request = ["spec", "resources", "requests", "storage"];
    let (requested, before) = (amount(&now, &request), amount(&then, &request));
    if requested < before && requested <= amount(&then, &["status", "capacity", "storage"]) {
        let detail = "field can not be less than status.capacity";
        errors.push(Wrong::Forbidden, request.join("."), None, detail);
    }
    immutable("volumeMode", &spec, &old.field("spec"), metadata::IMMUTABLE, errors);
    attributes_kept(&spec, &old.field("spec"), errors);
}

fn beta_class(new: &At, old: &At, errors: &mut Errors) {
    let (new, old) = (new.field("metadata"), old.field("metadata"));
    let class = |metadata: &At| metadata.field("annotations").key(BETA_CLASS).text().to_owned();
    let now = class(&new);
    if now != class(&old) {
        let path = format!("metadata.annotations.{BETA_CLASS}");
        errors.push(Wrong::Invalid, path, Some(&now.into()), metadata::IMMUTABLE);
    }
}

/// The new claim with the old values of all mutable fields.
fn with_old_updatable(new: &Value, old: &Value) -> Value {
    let mut munged = new.clone();
    let bound = new.text(&["status", "phase"]) == "Bound";
    let spec = munged.object("spec");
    let empty = Value::Null;
    let before = old.get("spec").unwrap_or(&empty);
    let mut restore = |field: &str| match before.get(field) {
        Some(value) => {
            spec.map().insert(field.into(), value.clone());
        }
        None => {
            spec.remove(field);
        }
    };
    if before.text(&["volumeName"]).is_empty() {
        restore("volumeName");
    }
    if before.at(&["storageClassName"]).is_none() {
        restore("storageClassName");
    }
    if bound {
        restore("volumeAttributesClassName");
        if let Some(storage) = before.at(&["resources", "requests", "storage"]) {
            let requests = spec.object("resources").object("requests");
            requests.map().insert("storage".into(), storage.clone());
        }
    }
    munged
}

fn validate_claim_status(new: &At, _old: &At, errors: &mut Errors) {
    let status = new.field("status");
    status.field("capacity").entries().for_each(|(_, amount)| basic_amount(&amount, errors));
}

#[cfg(test)]
mod tests {
    use super::super::trial::{NOTHING, create, created, merge, update};
    use super::*;

    fn claim(more: Value) -> Value {
        let mut claim = json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1024Mi"}}}});
        merge(&mut claim["spec"], more);
        claim
    }

    fn volume(more: Value) -> Value {
        let mut volume = json!({"spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/x"}}});
        merge(&mut volume["spec"], more);
        volume
    }

    #[test]
    fn a_147_volumes_and_claims_get_their_defaults() {
        let made = created(
            "PersistentVolumeClaim",
            claim(json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "c"}})),
        );
        assert_eq!(made["status"], json!({"phase": "Pending"}));
        assert_eq!(made["spec"]["volumeMode"], "Filesystem");
        assert_eq!(made["spec"]["resources"]["requests"]["storage"], "1Gi");
        assert_eq!(made["spec"]["dataSourceRef"], made["spec"]["dataSource"]);
        let made = created("PersistentVolume", volume(json!({})));
        assert_eq!(made["spec"]["persistentVolumeReclaimPolicy"], "Retain");
        assert_eq!(made["spec"]["hostPath"], json!({"path": "/x", "type": ""}));
    }

    #[test]
    fn a_92_invalid_volumes_and_claims_are_rejected_with_upstreams_messages() {
        for (spec, message) in [
            (
                json!({"accessModes": []}),
                "spec.accessModes: Required value: at least 1 access mode is required",
            ),
            (
                json!({"accessModes": ["ReadWriteOncePod", "ReadWriteOnce"]}),
                "spec.accessModes: Forbidden: may not use ReadWriteOncePod with other access modes",
            ),
            (json!({"resources": null}), "spec.resources[storage]: Required value"),
            (
                json!({"resources": {"requests": {"storage": "0"}}}),
                "spec.resources[storage]: Invalid value: \"0\": must be greater than zero",
            ),
            (
                json!({"volumeMode": "Tape"}),
                "spec.volumeMode: Unsupported value: \"Tape\": supported values: \"Block\", \"Filesystem\"",
            ),
        ] {
            assert_eq!(create("PersistentVolumeClaim", claim(spec)), [message]);
        }
        for (spec, message) in [
            (json!({"hostPath": null}), "spec: Required value: must specify a volume type"),
            (
                json!({"hostPath": null, "local": {"path": "/x"}}),
                "spec.nodeAffinity: Required value: Local volume requires node affinity",
            ),
            (
                json!({"persistentVolumeReclaimPolicy": "Burn"}),
                "spec.persistentVolumeReclaimPolicy: Unsupported value: \"Burn\": supported values: \"Delete\", \"Recycle\", \"Retain\"",
            ),
        ] {
            assert_eq!(create("PersistentVolume", volume(spec)), [message]);
        }
    }

    #[test]
    fn a_77_a_claim_can_only_be_bound_once_and_only_grow() {
        let mut old = created("PersistentVolumeClaim", claim(json!({})));
        let change =
            |old: &Value, spec| update("PersistentVolumeClaim", old, json!({ "spec": spec }));
        assert_eq!(change(&old, json!({"volumeName": "v"})), NOTHING);
        let grow = json!({"resources": {"requests": {"storage": "2Gi"}}});
        assert_eq!(change(&old, grow.clone()).len(), 1);
        old["spec"]["volumeName"] = "v".into();
        old["status"] = json!({"phase": "Bound", "capacity": {"storage": "1Gi"}});
        assert_eq!(change(&old, grow), NOTHING);
        let messages = change(&old, json!({"volumeName": "w"}));
        assert!(
            messages[0].starts_with(
                "spec: Forbidden: spec is immutable after creation except resources.requests"
            ),
            "{messages:?}"
        );
        assert_eq!(
            change(&old, json!({"resources": {"requests": {"storage": "1Mi"}}})),
            [
                "spec.resources.requests.storage: Forbidden: field can not be less than status.capacity"
            ]
        );
    }

    #[test]
    fn a_77_the_source_of_a_volume_is_immutable() {
        let old = created("PersistentVolume", volume(json!({})));
        let messages =
            update("PersistentVolume", &old, json!({"spec": {"hostPath": {"path": "/y"}}}));
        assert_eq!(
            messages,
            [
                "spec.persistentvolumesource: Forbidden: spec.persistentvolumesource is immutable after creation\n"
            ]
        );
        assert_eq!(
            update("PersistentVolume", &old, json!({"spec": {"capacity": {"storage": "2Gi"}}})),
            NOTHING
        );
    }
}
