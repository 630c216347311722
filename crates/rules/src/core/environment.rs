//! Environment variables of containers, and the downward API.

use super::checks;
use super::container::Pod;
use api::field::{At, Errors, Wrong};
use api::names;

const VARIABLE_FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
pub(super) const FILE_FIELDS: &[&str] = &[
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
];
const RESOURCES: &[&str] = &[
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
/// All fields that the downward API knows, in variables or in files.
const KNOWN_FIELDS: &[&str] = &[
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.serviceAccountName",
    "spec.schedulerName",
    "status.phase",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

pub(super) fn variables(variables: &At, pod: &Pod, errors: &mut Errors) {
    for variable in variables.items() {
        checks::named(&variable.field("name"), names::env_var_name, errors);
        let from = variable.field("valueFrom");
        if from.is_set() {
            value_from(&variable, &from, pod, errors);
        }
    }
}

fn value_from(variable: &At, from: &At, pod: &Pod, errors: &mut Errors) {
    let mut sources = 0;
    let field = from.field("fieldRef");
    if field.is_set() {
        sources += 1;
        field_reference(&field, VARIABLE_FIELDS, errors);
    }
    let resource = from.field("resourceFieldRef");
    if resource.is_set() {
        sources += 1;
        resource_reference(&resource, false, errors);
    }
    for key in ["configMapKeyRef", "secretKeyRef"] {
        let key = from.field(key);
        if key.is_set() {
            sources += 1;
            let name = key.field("name");
            for wrong in names::dns1123_subdomain(name.text()) {
                errors.invalid_value(&name, name.text(), &wrong);
            }
            checks::named(&key.field("key"), names::config_map_key, errors);
        }
    }
    let file = from.field("fileKeyRef");
    if file.is_set() {
        sources += 1;
        file_reference(&file, pod, errors);
    }
    if sources == 0 {
        errors.invalid_value(from, "", "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`");
    } else if !variable.field("value").text().is_empty() {
        errors.invalid_value(from, "", "may not be specified when `value` is not empty");
    } else if sources > 1 {
        errors.invalid_value(from, "", "may not have more than one field specified at a time");
    }
}

fn file_reference(file: &At, pod: &Pod, errors: &mut Errors) {
    let volume = file.field("volumeName");
    if checks::required(&volume, errors)
        && !pod.volumes.iter().any(|known| known.name == volume.text())
    {
        errors.not_found(&volume);
    }
    if checks::required(&file.field("path"), errors) {
        checks::local_path(&file.field("path"), errors);
    }
    checks::required(&file.field("key"), errors);
}

/// A field of the pod, by its path.
pub(super) fn field_reference(reference: &At, supported: &[&str], errors: &mut Errors) {
    let path = reference.field("fieldPath");
    if !checks::required(&reference.field("apiVersion"), errors) || !checks::required(&path, errors)
    {
        return;
    }
    if let Some((base, subscript)) = subscripted(path.text()) {
        let wrong = match base {
            "metadata.annotations" => names::qualified_name(&subscript.to_lowercase()),
            "metadata.labels" => names::qualified_name(subscript),
            _ => {
                let detail = format!(
                    "error converting fieldPath: field label does not support subscript: {}",
                    path.text()
                );
                errors.invalid(&path, &detail);
                return;
            }
        };
        for wrong in wrong {
            errors.invalid_value(reference, subscript, &wrong);
        }
    } else if !KNOWN_FIELDS.contains(&path.text()) {
        let detail =
            format!("error converting fieldPath: field label not supported: {}", path.text());
        errors.invalid(&path, &detail);
    } else if !supported.contains(&path.text()) {
        errors.not_supported(&path, supported);
    }
}

/// `metadata.labels['app']`
fn subscripted(path: &str) -> Option<(&str, &str)> {
    let (base, rest) = path.split_once("['")?;
    Some((base, rest.strip_suffix("']")?))
}

/// A request or limit of a container. Volumes must name the container.
pub(super) fn resource_reference(reference: &At, in_volume: bool, errors: &mut Errors) {
    let container = reference.field("containerName");
    let resource = reference.field("resource");
    let huge = ["requests.hugepages-", "limits.hugepages-"]
        .iter()
        .any(|prefix| resource.text().starts_with(prefix));
    if in_volume && container.text().is_empty() {
        errors.required(&container, "");
    } else if checks::required(&resource, errors) && !RESOURCES.contains(&resource.text()) && !huge
    {
        errors.not_supported(&resource, RESOURCES);
    }
    divisor(reference, resource.text(), huge, errors);
}

fn divisor(reference: &At, resource: &str, huge: bool, errors: &mut Errors) {
    let at = reference.field("divisor");
    let Some(divisor) = checks::quantity(&at).filter(|divisor| !divisor.is_zero()) else {
        return;
    };
    let bytes = ["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];
    let kind = match resource {
        "limits.cpu" | "requests.cpu" => {
            if !["1m", "1"].contains(&divisor.to_string().as_str()) {
                let detail = "only divisor's values 1m and 1 are supported with the cpu resource";
                errors.invalid_value(&at, resource, detail);
            }
            return;
        }
        "limits.memory" | "requests.memory" => "memory",
        "limits.ephemeral-storage" | "requests.ephemeral-storage" => "local ephemeral storage",
        _ if huge => "hugepages",
        _ => return,
    };
    if !bytes.contains(&divisor.to_string().as_str()) {
        let detail = format!(
            "only divisor's values {} are supported with the {kind} resource",
            bytes.join(", ")
        );
        errors.push(Wrong::Invalid, at.path(), Some(&resource.into()), &detail);
    }
}

/// ConfigMaps and Secrets as sources of environment variables (`envFrom`).
pub(super) fn sources(sources: &At, errors: &mut Errors) {
    for source in sources.items() {
        checks::optional_name(&source.field("prefix"), names::env_var_name, errors);
        let mut found = 0;
        for kind in ["configMapRef", "secretRef"] {
            let reference = source.field(kind);
            if reference.is_set() {
                found += 1;
                checks::named(&reference.field("name"), names::dns1123_subdomain, errors);
            }
        }
        if found == 0 {
            let detail = "must specify one of: `configMapRef` or `secretRef`";
            errors.invalid_value(sources, "", detail);
        } else if found > 1 {
            let detail = "may not have more than one field specified at a time";
            errors.invalid_value(sources, "", detail);
        }
    }
}
