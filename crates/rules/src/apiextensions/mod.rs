//! Rules of the `apiextensions.k8s.io` kinds: definitions of kinds that users add.
//!
//! Not here: rules of the kinds they define (`api::crd`).

use super::{Generation, Rules, check};
use api::field::{At, Errors};
use api::names;
use api::names::NameRule;
use api::value::ValueExt;
use serde_json::{Value, json};

mod schema;
mod structural;

const APPROVED: &str = "api-approved.kubernetes.io";
const SELECTABLE_MAX: usize = 8;

pub(crate) fn rules(kind: &str) -> Rules {
    match kind {
        "CustomResourceDefinition" => Rules {
            default,
            prepare_create,
            prepare_update: store_version,
            validate,
            validate_update,
            validate_status_update: |new, _, errors| validate_stored(new, errors),
            name: NameRule::Own,
            generation: Generation::Spec,
            unconditional_update: false,
            ..Rules::NONE
        },
        _ => Rules::NONE,
    }
}

/// Defaults of a CustomResourceDefinition.
fn default(definition: &mut Value) {
    let spec = definition.object("spec");
    let names = spec.object("names");
    let kind = names.text(&["kind"]).to_owned();
    if names.text(&["singular"]).is_empty() {
        names.map().insert("singular".into(), json!(kind.to_lowercase()));
    }
    if names.text(&["listKind"]).is_empty() && !kind.is_empty() {
        names.map().insert("listKind".into(), json!(format!("{kind}List")));
    }
    for version in spec.list_mut("versions") {
        version.set_default("served", false);
        version.set_default("storage", false);
    }
    let conversion = spec.object("conversion");
    if conversion.text(&["strategy"]).is_empty() {
        conversion.map().insert("strategy".into(), json!("None"));
    }
    if let Some(service) = conversion
        .get_mut("webhook")
        .and_then(|webhook| webhook.get_mut("clientConfig"))
        .and_then(|config| config.get_mut("service"))
    {
        service.set_default("port", 443);
    }
    if spec.at(&["preserveUnknownFields"]) == Some(&Value::Bool(false)) {
        spec.remove("preserveUnknownFields");
    }
    zero_status(definition);
}

fn zero_status(definition: &mut Value) {
    let status = definition.object("status");
    status.set_default("conditions", Value::Null);
    status.set_default("acceptedNames", json!({"plural": "", "kind": ""}));
    status.set_default("storedVersions", Value::Null);
}

/// A new definition's storedVersions has the storage version.
fn prepare_create(definition: &mut Value) {
    definition.remove("status");
    zero_status(definition);
    let nothing = json!({});
    store_version(definition, &nothing);
}

/// Adds the storage version to storedVersions, because objects may exist in it from now on.
fn store_version(definition: &mut Value, old: &Value) {
    if definition.at(&["status", "storedVersions"]).is_none()
        && let Some(stored) = old.at(&["status", "storedVersions"]).cloned()
    {
        definition.object("status").map().insert("storedVersions".into(), stored);
    }
    let storage: Vec<Value> = definition
        .object("spec")
        .list_mut("versions")
        .filter(|version| version.at(&["storage"]) == Some(&Value::Bool(true)))
        .filter_map(|version| version.get("name").cloned())
        .collect();
    let stored = definition.object("status").map().entry("storedVersions").or_insert(Value::Null);
    if !stored.is_array() {
        *stored = json!([]);
    }
    if let Some(list) = stored.as_array_mut() {
        for version in storage {
            if !list.contains(&version) {
                list.push(version);
            }
        }
    }
}

fn validate(definition: &At, errors: &mut Errors) {
    let (metadata, spec) = (definition.field("metadata"), definition.field("spec"));
    let name = metadata.field("name");
    check::text(&name, names::dns1123_subdomain, errors);
    let plural = spec.field("names").field("plural").text();
    if name.text() != format!("{plural}.{}", spec.field("group").text()) {
        errors.invalid(&name, "must be spec.names.plural+\".\"+spec.group");
    }
    validate_spec(&spec, errors);
    validate_stored(definition, errors);
    validate_approval(definition, errors);
    let open = spec.field("preserveUnknownFields");
    if open.is_true() {
        let detail = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in \
                      spec.versions[*].schema instead";
        errors.invalid(&open, detail);
    }
}

fn validate_spec(spec: &At, errors: &mut Errors) {
    let group = spec.field("group");
    if group.text().is_empty() {
        errors.required(&group, "");
    } else if !names::dns1123_subdomain(group.text()).is_empty() {
        errors.invalid(&group, &names::dns1123_subdomain(group.text()).join(","));
    } else if !group.text().contains('.') {
        errors.invalid(&group, "should be a domain with at least one dot");
    }
    required_one_of(&spec.field("scope"), &["Cluster", "Namespaced"], errors);
    validate_versions(spec, errors);
    validate_names(&spec.field("names"), errors);
    validate_conversion(&spec.field("conversion"), errors);
}

fn required_one_of(at: &At, supported: &[&str], errors: &mut Errors) {
    if at.text().is_empty() {
        errors.required(at, "");
    } else {
        check::one_of(at, supported, errors);
    }
}

fn validate_versions(spec: &At, errors: &mut Errors) {
    let versions = spec.field("versions");
    let mut seen = check::Unique::new();
    let mut unique = true;
    let mut stored = 0;
    for version in versions.items() {
        let name = version.field("name");
        stored += usize::from(version.field("storage").is_true());
        unique &= seen.add(name.text());
        let wrong = names::dns1035_label(name.text());
        if !wrong.is_empty() {
            errors.invalid(&name, &wrong.join(","));
        }
        validate_version(&version, errors);
    }
    if !unique {
        errors.invalid(&versions, "must contain unique version names");
    }
    if stored != 1 {
        errors.invalid(&versions, "must have exactly one version marked as storage version");
    }
}

fn validate_version(version: &At, errors: &mut Errors) {
    let warning = version.field("deprecationWarning");
    if warning.is_set() {
        if !version.field("deprecated").is_true() {
            errors.invalid(&warning, "can only be set for deprecated versions");
        }
        if warning.text().is_empty() {
            errors.required(&warning, "must not be empty if specified");
        } else if warning.text().len() > 256 {
            errors.too_long(&warning, 256);
        }
    }
    let open_api = version.field("schema");
    let root = open_api.field("openAPIV3Schema");
    if root.is_set() {
        schema::validate(&root, errors);
    } else {
        errors.required(&root, "schemas are required");
    }
    validate_scale(&version.field("subresources").field("scale"), errors);
    for column in version.field("additionalPrinterColumns").items() {
        validate_column(&column, errors);
    }
    let fields = version.field("selectableFields");
    if fields.len() > SELECTABLE_MAX {
        errors.too_many(&fields, SELECTABLE_MAX);
    }
    let mut seen = check::Unique::new();
    for field in fields.items() {
        let path = field.field("jsonPath");
        if path.text().is_empty() {
            errors.required(&path, "");
        } else if !is_simple_path(path.text()) {
            errors
                .invalid(&path, "is an invalid path: must be a simple json path in child notation");
        } else if path.text().starts_with(".metadata") {
            errors.invalid(&path, "must not point to fields in metadata");
        }
        if !seen.add(path.text()) {
            errors.duplicate(&path);
        }
    }
}

fn validate_scale(scale: &At, errors: &mut Errors) {
    if !scale.is_set() {
        return;
    }
    for (name, roots, detail) in [
        ("specReplicasPath", &[".spec."][..], "should be a json path under .spec"),
        ("statusReplicasPath", &[".status."][..], "should be a json path under .status"),
    ] {
        let path = scale.field(name);
        if path.text().is_empty() {
            errors.required(&path, "");
        } else {
            validate_path(&path, roots, detail, errors);
        }
    }
    let path = scale.field("labelSelectorPath");
    if !path.text().is_empty() {
        let detail = "should be a json path under either .status or .spec";
        validate_path(&path, &[".status.", ".spec."], detail, errors);
    }
}

fn validate_path(path: &At, roots: &[&str], detail: &str, errors: &mut Errors) {
    if !is_simple_path(path.text()) {
        errors.invalid(path, "must be a simple json path in child notation");
    } else if !roots.iter().any(|root| path.text().starts_with(root)) {
        errors.invalid(path, detail);
    }
}

/// A path of plain fields such as `.spec.replicas`.
fn is_simple_path(path: &str) -> bool {
    path.strip_prefix('.').is_some_and(|fields| {
        fields.split('.').all(|field| {
            !field.is_empty()
                && field.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))
        })
    })
}

fn validate_column(column: &At, errors: &mut Errors) {
    if column.field("name").text().is_empty() {
        errors.required(&column.field("name"), "");
    }
    let types = ["boolean", "date", "integer", "number", "string"];
    required_one_of(&column.field("type"), &types, errors);
    if !column.field("format").text().is_empty() {
        let formats =
            ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
        check::one_of(&column.field("format"), &formats, errors);
    }
    let path = column.field("jsonPath");
    if path.text().is_empty() {
        errors.required(&path, "");
    } else if !path.text().starts_with('.') && !path.text().starts_with('{') {
        errors.invalid(&path, "must be a valid json path starting with .");
    }
}

fn validate_names(at: &At, errors: &mut Errors) {
    let [plural, singular, kind, list] =
        ["plural", "singular", "kind", "listKind"].map(|name| at.field(name).text());
    for (name, value) in [("plural", plural), ("singular", singular)] {
        one_label(&at.field(name), value, "", errors);
    }
    for (name, value) in [("kind", kind), ("listKind", list)] {
        let prefix = "may have mixed case, but should otherwise match: ";
        one_label(&at.field(name), &value.to_lowercase(), prefix, errors);
    }
    if !kind.is_empty() && kind == list {
        errors.invalid(&at.field("listKind"), "kind and listKind may not be the same");
    }
    for name in ["shortNames", "categories"] {
        for word in at.field(name).items() {
            one_label(&word, word.text(), "", errors);
        }
    }
}

fn one_label(at: &At, value: &str, prefix: &str, errors: &mut Errors) {
    if value.is_empty() {
        errors.required(at, "");
        return;
    }
    let wrong = names::dns1035_label(value);
    if !wrong.is_empty() {
        errors.invalid(at, &format!("{prefix}{}", wrong.join(",")));
    }
}

fn validate_conversion(conversion: &At, errors: &mut Errors) {
    let strategy = conversion.field("strategy");
    required_one_of(&strategy, &["None", "Webhook"], errors);
    let webhook = conversion.field("webhook");
    if strategy.text() != "Webhook" {
        if webhook.is_set() {
            let detail = "should not be set when strategy is not set to Webhook";
            errors.forbidden(&webhook, detail);
        }
        return;
    }
    let config = webhook.field("clientConfig");
    let (url, service) = (config.field("url"), config.field("service"));
    if !config.is_set() {
        errors.required(&config, "required when strategy is set to Webhook");
    } else if url.is_set() == service.is_set() {
        errors.required(&config, "exactly one of url or service is required");
    }
    let versions = webhook.field("conversionReviewVersions");
    if versions.is_empty() {
        errors.required(&versions, "");
    } else if !versions.items().any(|v| ["v1", "v1beta1"].contains(&v.text())) {
        errors.invalid(&versions, "must include at least one of v1, v1beta1");
    }
}

/// Objects may still be stored in these versions, so the definition must keep them.
fn validate_stored(definition: &At, errors: &mut Errors) {
    let (spec, status) = (definition.field("spec"), definition.field("status"));
    let stored = status.field("storedVersions");
    if stored.is_empty() {
        errors.invalid_value(&stored, json!([]), "must have at least one stored version");
        return;
    }
    let versions = spec.field("versions");
    for version in stored.items() {
        if !versions.items().any(|known| known.field("name").text() == version.text()) {
            let v = version.text();
            let detail = format!(
                "missing from spec.versions; {v} was previously a storage version, and must remain \
                 in spec.versions until a storage migration ensures no data remains persisted in \
                 {v} and removes {v} from status.storedVersions"
            );
            errors.invalid(&version, &detail);
        }
    }
}

fn validate_approval(definition: &At, errors: &mut Errors) {
    let group = definition.field("spec").field("group").text();
    let community = |suffix: &str| group == suffix || group.ends_with(&format!(".{suffix}"));
    if !community("k8s.io") && !community("kubernetes.io") {
        return;
    }
    let metadata = definition.field("metadata");
    let annotations = metadata.field("annotations");
    let approval = annotations.key(APPROVED);
    let must = format!("protected groups must have approval annotation {APPROVED:?}");
    let see = "see https://github.com/kubernetes/enhancements/pull/1111";
    let text = approval.text();
    let is_url =
        text.split_once("://").is_some_and(|(scheme, host)| !scheme.is_empty() && !host.is_empty());
    if text.is_empty() {
        errors.required(&approval, &format!("{must}, {see}"));
    } else if !text.starts_with("unapproved") && !is_url {
        let with = "with either a URL or a reason starting with \"unapproved\"";
        errors.invalid(&approval, &format!("{must} {with}, {see}"));
    }
}

/// The group and plural are immutable; kind and scope are, once the definition is established.
fn validate_update(new: &At, old: &At, errors: &mut Errors) {
    let status = old.field("status");
    let conditions = status.field("conditions");
    let established = conditions
        .items()
        .any(|c| c.field("type").text() == "Established" && c.field("status").text() == "True");
    let (spec, before) = (new.field("spec"), old.field("spec"));
    let (called, was_called) = (spec.field("names"), before.field("names"));
    if established {
        check::immutable(&spec.field("scope"), &before.field("scope"), errors);
        check::immutable(&called.field("kind"), &was_called.field("kind"), errors);
    }
    check::immutable(&spec.field("group"), &before.field("group"), errors);
    check::immutable(&called.field("plural"), &was_called.field("plural"), errors);
}

#[cfg(test)]
mod tests;
