//! Volumes of pods: defaults and checks of all sources.

use super::checks::{self, Duplicates};
use super::container;
use super::{environment, persistent_volume, pod_template, volume_sources};
use crate::label_selector;
use api::field::{At, Errors, Wrong};
use api::metadata;
use api::names;
use api::quantity;
use api::value::ValueExt;
use serde_json::{Value, json};

/// rw-r--r--
const FILE_MODE: i64 = 0o644;
const TOKEN_SECONDS: i64 = 3600;

/// Defaults of a volume of a pod. A volume without a source is an emptyDir.
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

/// Legacy sources from before CSI.
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

const MORE_THAN_ONE: &str = "may not specify more than 1 volume type";
const TOKEN_SECONDS_MIN: i64 = 600;

/// All sources of a pod's volumes in the order of validation.
const SOURCES: &[&str] = &[
    "emptyDir",
    "hostPath",
    "gitRepo",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "secret",
    "nfs",
    "iscsi",
    "glusterfs",
    "flocker",
    "persistentVolumeClaim",
    "rbd",
    "cinder",
    "cephfs",
    "quobyte",
    "downwardAPI",
    "fc",
    "flexVolume",
    "configMap",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "storageos",
    "projected",
    "scaleIO",
    "csi",
    "ephemeral",
    "image",
];

/// Validates the volumes and returns those that containers can mount. `pod` is the metadata of a pod, `None`
/// for templates.
pub(super) fn validate<'v>(
    volumes: &At<'_, 'v>,
    pod: Option<&At>,
    errors: &mut Errors,
) -> Vec<container::Volume<'v>> {
    let pod_name = pod.map(|metadata| metadata.field("name").text()).unwrap_or_default();
    let created: Vec<String> = volumes
        .items()
        .filter(|volume| !pod_name.is_empty() && volume.field("ephemeral").is_set())
        .map(|volume| format!("{pod_name}-{}", volume.field("name").text()))
        .collect();
    let mut good: Vec<container::Volume> = Vec::new();
    for volume in volumes.items() {
        let before = errors.iter().len();
        source(&volume, pod_name, pod.is_some(), errors);
        let name = volume.field("name");
        checks::named(&name, names::dns1123_label, errors);
        if good.iter().any(|known| known.name == name.text()) {
            errors.duplicate(&name);
        }
        if errors.iter().len() == before {
            let claimed = volume.field("persistentVolumeClaim").is_set()
                || volume.field("ephemeral").is_set();
            good.push(container::Volume { name: name.text(), claimed });
        }
        let claim = volume.field("persistentVolumeClaim");
        let claim = claim.field("claimName");
        if created.iter().any(|name| name == claim.text()) {
            let detail = "must not reference a PVC that gets created for an ephemeral volume";
            errors.invalid(&claim, detail);
        }
    }
    good
}

fn source(volume: &At, pod_name: &str, in_pod: bool, errors: &mut Errors) {
    let mut found = false;
    for kind in SOURCES {
        let source = volume.field(kind);
        if !source.is_set() {
            continue;
        }
        if found {
            errors.forbidden(&source, MORE_THAN_ONE);
            continue;
        }
        found = true;
        match *kind {
            "emptyDir" => {
                let limit = source.field("sizeLimit");
                if checks::quantity(&limit).is_some_and(|limit| limit.is_negative()) {
                    let detail = "SizeLimit field must be a valid resource quantity";
                    errors.forbidden(&limit, detail);
                }
            }
            "secret" => {
                checks::required(&source.field("secretName"), errors);
                files(&source, errors);
            }
            "configMap" => {
                checks::required(&source.field("name"), errors);
                files(&source, errors);
            }
            "persistentVolumeClaim" => {
                checks::required(&source.field("claimName"), errors);
            }
            "downwardAPI" => downward(&source, errors),
            "projected" => projected(&source, errors),
            "ephemeral" => ephemeral(volume, &source, pod_name, errors),
            "image" => {
                if in_pod {
                    checks::required(&source.field("reference"), errors);
                }
                let pull = source.field("pullPolicy");
                checks::one_of(&pull, &["Always", "IfNotPresent", "Never"], errors);
            }
            _ => volume_sources::validate(kind, &source, errors),
        }
    }
    if !found {
        errors.required(volume, "must specify a volume type");
    }
}

fn files(source: &At, errors: &mut Errors) {
    checks::file_mode(&source.field("defaultMode"), errors);
    source.field("items").items().for_each(|item| key_to_path(&item, errors));
}

fn key_to_path(item: &At, errors: &mut Errors) {
    checks::required(&item.field("key"), errors);
    checks::required(&item.field("path"), errors);
    checks::local_path(&item.field("path"), errors);
    checks::file_mode(&item.field("mode"), errors);
}

fn downward(source: &At, errors: &mut Errors) {
    checks::file_mode(&source.field("defaultMode"), errors);
    source.field("items").items().for_each(|file| downward_file(&file, errors));
}

fn downward_file(file: &At, errors: &mut Errors) {
    checks::required(&file.field("path"), errors);
    checks::local_path(&file.field("path"), errors);
    let (field, resource) = (file.field("fieldRef"), file.field("resourceFieldRef"));
    if field.is_set() {
        environment::field_reference(&field, environment::FILE_FIELDS, errors);
        if resource.is_set() {
            let detail = "fieldRef and resourceFieldRef can not be specified simultaneously";
            errors.invalid_value(file, "resource", detail);
        }
    } else if resource.is_set() {
        environment::resource_reference(&resource, true, errors);
    } else {
        errors.required(file, "one of fieldRef and resourceFieldRef is required");
    }
    checks::file_mode(&file.field("mode"), errors);
}

fn projected(projected: &At, errors: &mut Errors) {
    checks::file_mode(&projected.field("defaultMode"), errors);
    let mut paths = Duplicates::default();
    let mut once = |path: &str, shown: &str, errors: &mut Errors| {
        if !path.is_empty() && paths.repeats(path.to_owned()) {
            errors.invalid_value(projected, shown, "conflicting duplicate paths");
        }
    };
    for source in projected.field("sources").items() {
        let mut kinds = 0;
        for kind in ["secret", "configMap"] {
            let files = source.field(kind);
            if !files.is_set() {
                continue;
            }
            kinds += 1;
            let name = files.field("name");
            checks::required(&name, errors);
            for item in files.field("items").items() {
                key_to_path(&item, errors);
                once(item.field("path").text(), name.text(), errors);
            }
        }
        let api = source.field("downwardAPI");
        if api.is_set() {
            kinds += 1;
            for file in api.field("items").items() {
                downward_file(&file, errors);
                once(file.field("path").text(), file.field("path").text(), errors);
            }
        }
        let token = source.field("serviceAccountToken");
        if token.is_set() {
            kinds += 1;
            service_account_token(projected, &token, errors);
        }
        for kind in ["clusterTrustBundle", "podCertificate"] {
            kinds += usize::from(source.field(kind).is_set());
        }
        let bundle = source.field("clusterTrustBundle");
        if bundle.is_set() {
            trust_bundle(&bundle, errors);
            once(bundle.field("path").text(), bundle.field("path").text(), errors);
        }
        if kinds > 1 {
            errors.forbidden(&source, "may not specify more than 1 volume type per source");
        }
    }
}

fn service_account_token(projected: &At, token: &At, errors: &mut Errors) {
    let lifetime = token.field("expirationSeconds");
    let seconds = lifetime.int().unwrap_or_default();
    if seconds < TOKEN_SECONDS_MIN {
        errors.invalid(&lifetime, "may not specify a duration less than 10 minutes");
    }
    if seconds > 1 << 32 {
        errors.invalid(&lifetime, "may not specify a duration larger than 2^32 seconds");
    }
    let path = token.field("path");
    if path.text().is_empty() {
        errors.required(&projected.field("path"), "");
    } else {
        checks::local_path(&path, errors);
    }
}

fn trust_bundle(bundle: &At, errors: &mut Errors) {
    let (name, signer) = (bundle.field("name"), bundle.field("signerName"));
    match (name.is_set(), signer.is_set()) {
        (true, true) => errors.invalid(bundle, "only one of name and signerName may be used"),
        (false, false) => errors.required(bundle, "either name or signerName must be specified"),
        (true, false) => {
            if name.text().is_empty() {
                errors.required(&name, "must be a valid object name");
            }
            let selector = bundle.field("labelSelector");
            if selector.is_set() {
                errors.invalid(&selector, "labelSelector must be unset if name is specified");
            }
        }
        (false, true) => {
            if signer.text().is_empty() {
                errors.required(&signer, "must be a valid signer name");
            }
            label_selector::validate(&bundle.field("labelSelector"), errors);
        }
    }
    checks::required(&bundle.field("path"), errors);
    checks::local_path(&bundle.field("path"), errors);
}

fn ephemeral(volume: &At, ephemeral: &At, pod_name: &str, errors: &mut Errors) {
    let template = ephemeral.field("volumeClaimTemplate");
    if !template.is_set() {
        errors.required(&template, "");
        return;
    }
    let metadata = template.field("metadata");
    metadata::annotations(&metadata.field("annotations"), errors);
    metadata::labels(&metadata.field("labels"), errors);
    for (field, value) in metadata.entries() {
        if !["annotations", "labels", "creationTimestamp"].contains(&field) && value.is_set() {
            errors.forbidden(&metadata.field(field), "cannot be set");
        }
    }
    persistent_volume::validate_claim_spec(&template.field("spec"), errors);
    let name = volume.field("name");
    if !pod_name.is_empty() && !name.text().is_empty() {
        let claim = format!("{pod_name}-{}", name.text());
        for wrong in names::dns1123_subdomain(&claim) {
            let detail = format!("PVC name {claim:?}: {wrong}");
            errors.push(Wrong::Invalid, name.path(), name.value(), &detail);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::trial::{NOTHING, create, defaulted, pod};
    use serde_json::{Value, json};

    fn volume(mut source: Value) -> Vec<String> {
        source["name"] = "v".into();
        create("Pod", pod(json!({"volumes": [source]})))
    }

    #[test]
    fn a_147_volumes_are_filled_in() {
        let volumes = json!([
            {"name": "none"},
            {"name": "limited", "emptyDir": {"sizeLimit": "1024Mi"}},
            {"name": "host", "hostPath": {"path": "/x"}},
            {"name": "image", "image": {"reference": "app"}},
            {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}},
        ]);
        let made = defaulted("Pod", pod(json!({ "volumes": volumes })));
        assert_eq!(
            made["spec"]["volumes"],
            json!([
                {"name": "none", "emptyDir": {}},
                {"name": "limited", "emptyDir": {"sizeLimit": "1Gi"}},
                {"name": "host", "hostPath": {"path": "/x", "type": ""}},
                {"name": "image", "image": {"reference": "app", "pullPolicy": "Always"}},
                {"name": "token", "projected": {"defaultMode": 420, "sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 3600}}]}},
            ])
        );
    }

    #[test]
    fn a_92_invalid_volumes_are_rejected_with_upstreams_messages() {
        let rows: &[(Value, &str)] = &[
            (
                json!({"emptyDir": {}, "hostPath": {"path": "/x"}}),
                "spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type",
            ),
            (json!({"secret": {}}), "spec.volumes[0].secret.secretName: Required value"),
            (
                json!({"configMap": {"name": "c", "items": [{"key": "k", "path": "../x"}]}}),
                "spec.volumes[0].configMap.items[0].path: Invalid value: \"../x\": must not contain '..'",
            ),
            (
                json!({"hostPath": {"path": "/x", "type": "Pipe"}}),
                "spec.volumes[0].hostPath.type: Unsupported value: \"Pipe\": supported values: \"\", \"BlockDevice\", \"CharDevice\", \"Directory\", \"DirectoryOrCreate\", \"File\", \"FileOrCreate\", \"Socket\"",
            ),
            (
                json!({"projected": {"sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 5}}]}}),
                "spec.volumes[0].projected.sources[0].serviceAccountToken.expirationSeconds: Invalid value: 5: may not specify a duration less than 10 minutes",
            ),
            (
                json!({"downwardAPI": {"items": [{"path": "x"}]}}),
                "spec.volumes[0].downwardAPI.items[0]: Required value: one of fieldRef and resourceFieldRef is required",
            ),
            (
                json!({"nfs": {"server": "s", "path": "x"}}),
                "spec.volumes[0].nfs.path: Invalid value: \"x\": must be an absolute path",
            ),
            (
                json!({"csi": {"driver": "a_b"}}),
                "spec.volumes[0].csi.driver: Invalid value: \"a_b\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
            ),
        ];
        for (source, message) in rows {
            assert_eq!(volume(source.clone()), [*message]);
        }
        assert_eq!(volume(json!({"persistentVolumeClaim": {"claimName": "c"}})), NOTHING);
    }
}
