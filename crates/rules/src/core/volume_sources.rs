//! Volume sources of both pods and PersistentVolumes: directories, network storage, disks, CSI.

use super::checks;
use api::field::{At, Errors, Wrong};
use api::names;

const DRIVER_MAX: usize = 63;

/// Validates a source of that kind. Sources that only pods have are in `volumes`.
pub(super) fn validate(kind: &str, source: &At, errors: &mut Errors) {
    match kind {
        "hostPath" => host_path(source, errors),
        "gitRepo" => {
            checks::required(&source.field("repository"), errors);
            checks::descending_path(&source.field("directory"), errors);
        }
        "gcePersistentDisk" => disk(source, "pdName", errors),
        "awsElasticBlockStore" => disk(source, "volumeID", errors),
        "nfs" => nfs(source, errors),
        "iscsi" => iscsi(source, errors),
        "glusterfs" => texts(source, &["endpoints", "path"], errors),
        "flocker" => flocker(source, errors),
        "rbd" => {
            list(source, "monitors", errors);
            texts(source, &["image"], errors);
        }
        "cephfs" => list(source, "monitors", errors),
        "cinder" => {
            texts(source, &["volumeID"], errors);
            secret(&source.field("secretRef"), errors);
        }
        "quobyte" => quobyte(source, errors),
        "fc" => fibre_channel(source, errors),
        "flexVolume" => flex(source, errors),
        "azureFile" => texts(source, &["secretName", "shareName"], errors),
        "azureDisk" => azure_disk(source, errors),
        "vsphereVolume" => texts(source, &["volumePath"], errors),
        "photonPersistentDisk" => texts(source, &["pdID"], errors),
        "portworxVolume" => texts(source, &["volumeID"], errors),
        "scaleIO" => texts(source, &["gateway", "system", "volumeName"], errors),
        "storageos" => {
            checks::named(&source.field("volumeName"), names::dns1123_label, errors);
            checks::optional_name(&source.field("volumeNamespace"), names::dns1123_label, errors);
            secret(&source.field("secretRef"), errors);
        }
        "local" => local(source, errors),
        "csi" => csi(source, errors),
        _ => {}
    }
}

fn texts(source: &At, fields: &[&str], errors: &mut Errors) {
    for field in fields {
        checks::required(&source.field(field), errors);
    }
}

fn list(source: &At, field: &str, errors: &mut Errors) {
    if source.field(field).is_empty() {
        errors.required(&source.field(field), "");
    }
}

fn secret(reference: &At, errors: &mut Errors) {
    if reference.is_set() {
        checks::required(&reference.field("name"), errors);
    }
}

fn host_path(source: &At, errors: &mut Errors) {
    if !checks::required(&source.field("path"), errors) {
        return;
    }
    checks::no_backsteps(&source.field("path"), errors);
    let kinds = [
        "",
        "BlockDevice",
        "CharDevice",
        "Directory",
        "DirectoryOrCreate",
        "File",
        "FileOrCreate",
        "Socket",
    ];
    checks::optional_one_of(&source.field("type"), &kinds, errors);
}

fn local(source: &At, errors: &mut Errors) {
    if checks::required(&source.field("path"), errors) {
        checks::no_backsteps(&source.field("path"), errors);
    }
}

fn disk(source: &At, name: &str, errors: &mut Errors) {
    texts(source, &[name], errors);
    let partition = source.field("partition");
    if partition.int().is_some_and(|number| !(0..=255).contains(&number)) {
        errors.invalid(&partition, "must be between 1 and 255, inclusive");
    }
}

fn nfs(source: &At, errors: &mut Errors) {
    texts(source, &["server", "path"], errors);
    let path = source.field("path");
    if !path.text().starts_with('/') {
        errors.invalid_value(&path, path.text(), "must be an absolute path");
    }
}

fn iscsi(source: &At, errors: &mut Errors) {
    texts(source, &["targetPortal"], errors);
    let name = source.field("iqn");
    if checks::required(&name, errors)
        && !["iqn", "eui", "naa"].iter().any(|prefix| name.text().starts_with(prefix))
    {
        errors.invalid(&name, "must be valid format starting with iqn, eui, or naa");
    }
    checks::in_range(&source.field("lun"), 0, 255, errors);
    let authenticated =
        source.field("chapAuthDiscovery").is_true() || source.field("chapAuthSession").is_true();
    if authenticated && !source.field("secretRef").is_set() {
        errors.required(&source.field("secretRef"), "");
    }
}

fn flocker(source: &At, errors: &mut Errors) {
    let (name, uuid) = (source.field("datasetName"), source.field("datasetUUID"));
    match (name.text().is_empty(), uuid.text().is_empty()) {
        (true, true) => errors.required(source, "one of datasetName and datasetUUID is required"),
        (false, false) => errors.invalid_value(
            source,
            "resource",
            "datasetName and datasetUUID can not be specified simultaneously",
        ),
        _ => {}
    }
    if name.text().contains('/') {
        errors.invalid(&name, "must not contain '/'");
    }
}

fn quobyte(source: &At, errors: &mut Errors) {
    let detail = "must be a host:port pair or multiple pairs separated by commas";
    let registry = source.field("registry");
    if registry.text().is_empty() {
        errors.required(&registry, detail);
    } else if source.field("tenant").text().len() > 64 {
        let detail = "must be a UUID and may not exceed a length of 64 characters";
        errors.required(&source.field("tenant"), detail);
    } else if registry.text().split(',').any(|pair| !pair.contains(':')) {
        errors.invalid(&registry, detail);
    }
    texts(source, &["volume"], errors);
}

fn fibre_channel(source: &At, errors: &mut Errors) {
    let (targets, ids) = (source.field("targetWWNs"), source.field("wwids"));
    if targets.is_empty() && ids.is_empty() {
        errors.required(&targets, "must specify either targetWWNs or wwids, but not both");
    }
    if !targets.is_empty() && !ids.is_empty() {
        errors.invalid(&targets, "targetWWNs and wwids can not be specified simultaneously");
    }
    let lun = source.field("lun");
    if !targets.is_empty() {
        if lun.is_set() {
            checks::in_range(&lun, 0, 255, errors);
        } else {
            errors.required(&lun, "lun is required if targetWWNs is specified");
        }
    }
}

fn flex(source: &At, errors: &mut Errors) {
    texts(source, &["driver"], errors);
    for (option, at) in source.field("options").entries() {
        let domain = option.split('/').next().unwrap_or_default();
        let domain = format!(".{}", domain.to_lowercase());
        if domain.ends_with(".kubernetes.io") || domain.ends_with(".k8s.io") {
            let detail = "kubernetes.io and k8s.io namespaces are reserved";
            errors.invalid_value(&at, option, detail);
        }
    }
}

fn azure_disk(source: &At, errors: &mut Errors) {
    texts(source, &["diskName", "diskURI"], errors);
    let caching = source.field("cachingMode");
    checks::optional_one_of(&caching, &["None", "ReadOnly", "ReadWrite"], errors);
    let kind = source.field("kind");
    checks::optional_one_of(&kind, &["Dedicated", "Managed", "Shared"], errors);
    let uri = source.field("diskURI");
    let (managed, blob) = (
        "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}",
        "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd",
    );
    let (prefix, supported) = match kind.text() {
        "Managed" => ("/subscriptions/", managed),
        _ => ("https://", blob),
    };
    if kind.is_set() && !uri.text().starts_with(prefix) {
        errors.not_supported(&uri, &[supported]);
    }
}

fn csi(source: &At, errors: &mut Errors) {
    driver_name(&source.field("driver"), errors);
    let reference = source.field("nodePublishSecretRef");
    if !reference.is_set() {
        return;
    }
    let name = reference.field("name");
    if checks::required(&name, errors) {
        for wrong in names::dns1123_subdomain(name.text()) {
            let path = format!("{}.name", source.path());
            errors.push(Wrong::Invalid, path, name.value(), &wrong);
        }
    }
}

/// Names of CSI drivers may have upper-case letters.
pub(super) fn driver_name(driver: &At, errors: &mut Errors) {
    checks::required(driver, errors);
    if driver.text().len() > DRIVER_MAX {
        errors.too_long(driver, DRIVER_MAX);
    }
    for wrong in names::dns1123_subdomain(&driver.text().to_lowercase()) {
        errors.invalid_value(driver, driver.text(), &wrong);
    }
}
